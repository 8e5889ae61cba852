# SPDX-License-Identifier: Apache-2.0
"""Reference activations of a model of Hugging Face's, on the CPU: what `dmi-sites match` and `dmi-dump verify --against` read.

    dmi-sites reference MODEL --prompt TEXT [--prompt TEXT ...] -o REF.safetensors
    dmi-sites reference MODEL --requests FILE -o REF.safetensors

One pass of float32 over all tokens of a request: attention is causal, so each row is what a decode gives, too.
"""
import argparse
import json
import pathlib
import sys

from .. import files


def rows_first(tensor, rows):
    """[tokens, elements] of a tensor of one request, whose dimensions @rows count tokens."""
    others = [d for d in range(tensor.dim()) if d not in rows]
    n = 1
    for d in rows:
        n *= tensor.shape[d]
    return tensor.permute(*rows, *others).reshape(n, -1)


def activations(model, tokens, sites="all", layers=None):
    """{SITE or SITE.LAYER: [tokens, elements]} of one pass of @model over @tokens, on the CPU, and all that attach() lacks."""
    import torch

    import dmi.torch
    found = {}

    def keep(tensor, name, layer, n_layers, rows):
        kept = rows_first(tensor.detach(), rows)
        found[name if layer is None else f"{name}.{layer}"] = (kept.float() if kept.is_floating_point() else kept).clone()
    with dmi.torch.attach(model, sites, layers, sink=keep) as attached, torch.no_grad():
        model(torch.tensor([tokens]), use_cache=False)
        missing = attached.missing
    return found, missing


def source(model):
    """A folder, a name or a GGUF file, as from_pretrained() takes it."""
    path = pathlib.Path(model)
    if path.suffix == ".gguf":
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    return {"pretrained_model_name_or_path": model}


def continued(model, tokens, n):
    """@tokens and the likeliest @n after them."""
    import torch
    if not n:
        return tokens
    ids = torch.tensor([tokens])
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)[0].tolist()


def requests_of(opt, model):
    """[(id, tokens of the prompt, tokens after it)]"""
    if opt.requests:
        given = files.read_json(opt.requests)["requests"]
        return [(r["id"], r["prompt_tokens"], r.get("forced_tokens") or
                 continued(model, r["prompt_tokens"], opt.tokens)[len(r["prompt_tokens"]):]) for r in given]
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(**source(opt.model))
    prompts = [(f"prompt{i}", tokenizer(text)["input_ids"]) for i, text in enumerate(opt.prompt)]
    return [(name, tokens, continued(model, tokens, opt.tokens)[len(tokens):]) for name, tokens in prompts]


def arguments():
    parser = argparse.ArgumentParser(prog="dmi-sites reference", description=__doc__.split("\n\n")[0])
    parser.add_argument("model", metavar="MODEL", help="a folder, a GGUF file, or a name that Hugging Face's hub knows")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="a request: prompt0, prompt1, ...")
    parser.add_argument("--requests", metavar="FILE", help="JSON: {requests: [{id, prompt_tokens, forced_tokens}]} in place of prompts")
    parser.add_argument("--tokens", type=int, default=8, metavar="N", help="tokens that are generated after each prompt (8)")
    parser.add_argument("--sites", action="append", help="as dmi.torch.attach() takes them (all)")
    parser.add_argument("--layers", action="append", help="as dmi.torch.attach() takes them (all)")
    parser.add_argument("--write-requests", metavar="FILE", help="the requests as --requests takes them: for the engine to serve")
    parser.add_argument("-o", "--output", required=True, metavar="REF", help="the safetensors file to write")
    opt = parser.parse_args()
    if bool(opt.prompt) == bool(opt.requests):
        parser.error("expected --prompt TEXT, once or more, or --requests FILE")
    return opt


def main():
    opt = arguments()
    try:
        import torch
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise SystemExit(f"dmi-sites reference: it needs PyTorch, transformers and safetensors: {error}") from None
    try:
        model = AutoModelForCausalLM.from_pretrained(**source(opt.model), dtype=torch.float32).eval()
    except (ImportError, OSError, ValueError) as error:  # what it says is for whoever wrote MODEL
        raise SystemExit(f"dmi-sites reference: {opt.model}: {error}") from None
    tensors, requests = {}, requests_of(opt, model)
    for i, (name, prompt, after) in enumerate(requests):
        found, missing = activations(model, prompt + after, ",".join(opt.sites or ["all"]), opt.layers and ",".join(opt.layers))
        tensors.update({f"{name}/{key}": value.contiguous() for key, value in found.items()})
        print(f"{name}: {len(prompt)} + {len(after)} tokens, {len(found)} tensors", file=sys.stderr)
        if not i:
            for lack in missing:
                print(f"not there: {lack.name}: {lack.reason}", file=sys.stderr)
    save_file(tensors, opt.output)
    if opt.write_requests:
        pathlib.Path(opt.write_requests).write_text(json.dumps(
            {"requests": [{"id": name, "prompt_tokens": prompt, "forced_tokens": after} for name, prompt, after in requests]}))


if __name__ == "__main__":
    main()
