#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which heads find the repeated name, and which rest on the first token? One sentence with a name twice (DMI-Lib, 7.1), both heads as pages of a report.

    dmi-run --attach token_ids,q_rot,k_rot,v,z --out RUN -- python ioi.py capture MODEL
    python ioi.py show RUN MODEL ioi.html

MODEL is a folder of Hugging Face's, or a GGUF file.
"""
import argparse
import subprocess

import numpy

import dmi
import pretrained

PROMPT = "While John and Mary were working at the office, John gave a notebook to"


def capture(options):
    """One forward over the prompt; dmi-run attaches the model."""
    tokenizer, model = pretrained.load(options.model)
    logits = pretrained.prefill(model, 0, "ioi", tokenizer(PROMPT, add_special_tokens=False)["input_ids"])
    print(f"{PROMPT}{tokenizer.decode(int(logits.argmax()))}")


def show(options):
    with dmi.open(options.run) as run:
        scores = dmi.attention.heads(run, "ioi")
        duplicate, sink = scores["duplicate"], scores["sink"]
        best = [tuple(map(int, numpy.unravel_index(at, duplicate.shape))) for at in numpy.argsort(-duplicate, axis=None)[:4]]
        rest = tuple(map(int, numpy.unravel_index(sink.argmax(), sink.shape)))
        answer = dmi.attention.attention(run, "ioi", heads=[best[0]])
        ids = run["ioi/token_ids"].numpy().ravel().tolist()
    weights = answer.weights[0, 0]
    again = next(i for i, token in enumerate(ids) if token in ids[:i])
    before = ids.index(ids[again])
    print(f"A v = z {answer.proof.state}: off by {answer.proof.error:.1e} of z's norm")
    print(f"duplicate-token heads: {', '.join(f'{layer}.{head} {duplicate[layer, head]:.3f}' for layer, head in best)}")
    print(f"head {best[0][0]}.{best[0][1]}: token {again} gives {weights[again, before]:.3f} to token {before}, the same name")
    print(f"sink head: {rest[0]}.{rest[1]} {sink[rest]:.4f}; {(sink > 0.9).sum()} of {sink.size} heads rest on the first token with more than 0.9")
    heads = [word for layer, head in (best[0], rest) for word in ("--head", f"{layer}.{head}")]
    subprocess.run(["dmi-view", options.run, "--tokenizer", options.model, *heads, "-o", options.report, "--force"], check=True)
    for (layer, head), token in ((best[0], again), (rest, len(ids) - 1)):
        print(f"{options.report}#attention/ioi/{layer}/{head}/{token}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("capture")
    first.add_argument("model")
    first.set_defaults(action=capture)
    second = commands.add_parser("show")
    for name in ("run", "model", "report"):
        second.add_argument(name)
    second.set_defaults(action=show)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()
