#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a report costs: view.py DMI_VIEW [TOKENS...].

One request in steps of 512 tokens, TOKENS: 16 1000 10000 100000. maps: 30 layers of 64 elements, f32. two runs: the same, twice, other numbers. attention: q_rot, k_rot, v, z, f32, of two layers of 9
heads of 64 elements, which share 3 of k and v; at most 10,000 tokens. It prints bytes of the report, CPU seconds, the peak of resident memory. Medians of three rounds.
"""
import argparse
import pathlib
import tempfile

from attention import DIM, HEADS, KV, cost
from long_runs import write_heads, write_hidden

LAYERS, WIDTH, WITH_HEADS, MOST_WITH_HEADS = 30, 64, 2, 10000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("view")
    parser.add_argument("tokens", nargs="*", type=int, default=[16, 1000, 10000, 100000])
    opt = parser.parse_args()
    for n in opt.tokens:
        with tempfile.TemporaryDirectory(prefix="dmi-bench-view-") as name:
            folder = pathlib.Path(name)
            one, other = (write_hidden(folder / str(seed), n, LAYERS, WIDTH, seed) for seed in (0, 1))
            pages = {"maps": [one], "two runs": [one, other]}
            if n <= MOST_WITH_HEADS:
                pages["attention"] = [write_heads(folder / "heads", n, WITH_HEADS, HEADS, KV, DIM)]
            for what, runs in pages.items():
                out = folder / "r.html"
                seconds, peak = cost(opt.view, *runs, "-o", out, "--force")
                print(f"{n:6} tokens  {what:10} {out.stat().st_size / 1e6:7.2f} MB  {seconds:8.3f} s  peak {peak:6.1f} MB", flush=True)


if __name__ == "__main__":
    main()
