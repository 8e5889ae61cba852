#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's on the CPU, attached, one forward each over given tokens: lens_client.py FOLDER PLAN.json

PLAN: [{"request", "tokens", "family" (attach_models.py) or "gguf" (a file), "dtype", "sites", "router", "write", "edits" (a file)}]. What the taps see is copied to the device and tapped there, as
generate_client.py does. A family's model is saved in FOLDER/REQUEST, and its lens is in FOLDER/REQUEST.safetensors, as the model's own modules compute it; with "router"
the logits of its routers, by layer, in FOLDER/REQUEST.router.safetensors.
"""
import contextlib
import json
import os
import pathlib
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import attach_models as models  # noqa: E402
import dmi.torch  # noqa: E402
from dmi.torch import config  # noqa: E402
from edits_client import Writing  # noqa: E402
from generate_client import Device  # noqa: E402


class Sink(Device):
    """What edits write on the device is copied back."""

    def __call__(self, tensor, name, layer, n_layers, rows, writable=False):
        (Writing if writable else Device).__call__(self, tensor, name, layer, n_layers, rows, *[True] * writable)


def model_of(wanted):
    dtype = getattr(torch, wanted.get("dtype", "float32"))
    if "gguf" in wanted:
        path = pathlib.Path(wanted["gguf"])
        return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype, attn_implementation="eager").eval()
    return models.model_of(wanted["family"], attention="eager").to(dtype)


def expected(model, out):
    """{layer: [tokens, vocabulary]}: what the model's norm and head make of each hidden state; at the end its logits."""
    body = models.backbone_of(model)
    norm = next(getattr(body, name) for name in ("norm", "final_layernorm", "ln_f", "final_layer_norm") if hasattr(body, name))
    config = model.config

    def logits(x):
        y = model.get_output_embeddings()(norm(x))[0]
        cap = getattr(config, "final_logit_softcapping", None)
        y = y / getattr(config, "logits_scaling", 1.0) * getattr(config, "logit_scale", 1.0)
        return torch.tanh(y / cap) * cap if cap else y
    found = {str(i): logits(x) for i, x in enumerate(out.hidden_states[:-1])}
    return {name: x.float().contiguous() for name, x in found.items()} | {"end": out.logits[0].float().contiguous()}


def main():
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    folder, plan, device = pathlib.Path(sys.argv[1]), json.loads(pathlib.Path(sys.argv[2]).read_text()), Sink()
    for step, wanted in enumerate(plan):
        model, tokens = model_of(wanted), wanted["tokens"]
        device.on = False
        out = model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
        device.on = True
        config.describe(model)  # attach() does so where the library taps
        with dmi.torch.attach(model, wanted["sites"], write=wanted.get("write"), sink=device), dmi.edit(wanted["edits"]) if "edits" in wanted else contextlib.nullcontext():
            dmi.step_begin(step, [dmi.Span(wanted["request"], 0, len(tokens), phase=dmi.Phase.PREFILL, n_prompt=len(tokens))], caches=False)
            model(torch.tensor([tokens]), use_cache=False)
        dmi.step_end()
        dmi.request_end(wanted["request"], dmi.End.STOP)
        if wanted.get("router"):
            routed = model(torch.tensor([tokens]), use_cache=False, output_router_logits=True).router_logits
            save_file({str(i): x.float().contiguous() for i, x in enumerate(routed)}, folder / f"{wanted['request']}.router.safetensors")
        if "family" in wanted:
            save_file(expected(model, out), folder / f"{wanted['request']}.safetensors")
            model.save_pretrained(folder / wanted["request"])


if __name__ == "__main__":
    main()
