#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""When a model knows the answer, and who writes it: the lens and direct logit attribution of one prompt.

    dmi-run --attach resid_pre,z,mlp_out,resid_final,final_ln,final_logits --out RUN -- python lens.py capture MODEL "While John and Mary ... to"
    python lens.py show RUN MODEL " Mary" " John"

MODEL is a folder of Hugging Face's, or a GGUF file.
"""
import argparse

import numpy

import dmi
import pretrained


def capture(options):
    """One forward over the prompt; dmi-run attaches the model."""
    tokenizer, model = pretrained.load(options.model)
    pretrained.prefill(model, 0, "prompt", tokenizer(options.prompt, add_special_tokens=False)["input_ids"])


def show(options):
    weights = dmi.weights.Weights(options.model)
    vocabulary = weights.vocabulary()
    with dmi.open(options.run) as run:
        last = run.select(tokens="-1:")
        lens = dmi.analysis.lens(last, weights, words=[options.right, options.wrong])
        parts = dmi.analysis.dla(last, weights, options.right, options.wrong)
    for k, layer in enumerate(lens["layers"]):
        first, ranks = vocabulary.shown(int(lens["top_ids"][0, k, 0])), lens["followed_ranks"][:, k].tolist()
        print(f"enters layer {layer:2}: {first:12} rank of {options.right!r} {ranks[0]:5}, of {options.wrong!r} {ranks[1]:5}")
    print(f"logit of {options.right!r} less that of {options.wrong!r}: {parts['difference'][0]:.4f}; all parts together: {parts['sum'][0]:.4f}")
    heads = parts["heads"][0]
    for at in numpy.argsort(-numpy.abs(heads).ravel())[:6]:
        layer, head = divmod(int(at), heads.shape[1])
        print(f"  head {layer}.{head}: {heads[layer, head]:+.3f}")
    for layer in numpy.argsort(-numpy.abs(parts["mlps"][0]))[:2]:
        print(f"  mlp {layer}: {parts['mlps'][0, layer]:+.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("capture")
    first.add_argument("model")
    first.add_argument("prompt")
    first.set_defaults(action=capture)
    second = commands.add_parser("show")
    for name in ("run", "model", "right", "wrong"):
        second.add_argument(name)
    second.set_defaults(action=show)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()
