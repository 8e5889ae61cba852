#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The first layers of SmolLM2, served by tinygrad again and again in one process, each time under another schedule.

A line of JSON a pass: the new tokens, and a hash of the KV caches that they come from.  The same
prompt every time, so every line must be the same.  Between passes the stand-in driver, if it began with a seed of
delays, is given the next one; with --switch, sites are switched off and on at random between forwards.
"""
import argparse
import ctypes
import hashlib
import json
import random
import sys

from tinygrad_client import PYTHON, model_path

PROMPT = [504, 3575, 282, 4649, 314]  # the reference's `france`


def switches():
    """What is switched before each forward, without end: (pattern, on) or None; the same in every process."""
    dice = random.Random(3)
    while True:
        yield (dice.choice(["q", "k*", "resid_*", "z", "*"]), dice.random() < 0.6) if dice.random() < 0.7 else None


def reseed(seed):
    change = getattr(ctypes.CDLL("libcuda.so.1"), "standin_seed", None)
    if change is not None:
        change(ctypes.c_ulonglong(seed))


def serve(model, n_tokens, between):
    """[tokens made], hash of what the KV caches hold of them."""
    from tinygrad import Tensor, UOp
    v_start_pos = UOp.variable("start_pos", 0, model.max_context - 1)
    v_toks = UOp.variable("toks", 1, 32)
    padded = Tensor(PROMPT + [0] * (model.max_context - len(PROMPT)), dtype="int32").reshape(1, model.max_context)
    temperature, made, start = Tensor(0.0).contiguous(), [], 0
    while len(made) < n_tokens:
        between()
        position = v_start_pos.bind(start)
        given = Tensor([[made[-1]]], dtype="int32").realize() if made else padded[:, position:position + v_toks.bind(len(PROMPT))]
        made.append(int(model(given, position, temperature).item()))
        start = len(PROMPT) + len(made) - 1
    digest = hashlib.sha256()
    for block in model.blk:
        digest.update(block.cache_kv.numpy()[:, :, :, :start].tobytes())
    return made, digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=3, help="made a pass")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--switch", action="store_true")
    opt = parser.parse_args()

    from tinygrad import Tensor
    from tinygrad.llm.model import Transformer
    Tensor.manual_seed(1)
    model, _ = Transformer.from_gguf(model_path(), max_context=256)
    model.blk = model.blk[:opt.layers]
    changes = switches()

    def switch():
        if opt.switch and (change := next(changes)):
            dmi.site_enable(*change)

    if opt.switch:
        sys.path.insert(0, PYTHON)
        import dmi
    for i in range(opt.passes):
        reseed(opt.first_seed + i)
        made, caches = serve(model, opt.tokens, switch)
        print(json.dumps({"made": made, "caches": caches}), flush=True)


if __name__ == "__main__":
    main()
