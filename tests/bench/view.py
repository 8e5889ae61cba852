#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a report costs: view.py DMI_VIEW MAKE_SCHEDULE [TOKENS...].

One request in steps of 512 tokens, TOKENS: 16 1000 10000 100000. maps: 30 layers of 64 elements, i32. attention: q_rot, k_rot, v, z, f32, of two layers of 9 heads of 64 elements, which share 3 of
k and v; all rows of v are alike, so z is known without the pattern; at most 10,000 tokens. It prints bytes of the report, CPU seconds, the peak of resident memory. Medians of three rounds.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

from attention import DIM, HEADS, KV, STEP, cost, write_steps

LAYERS, WIDTH, WITH_HEADS, PREFILL, HIDDEN = 30, 64, 2, 1, 5


def make_maps(program, folder, n):
    lines = []
    for number, at in enumerate(range(0, n, STEP)):
        m = min(STEP, n - at)
        lines += [f"step {number} {m} r:0:{m}:{at}:{PREFILL}:{n}:0", *(f"wide {layer} {WIDTH} {HIDDEN}" for layer in range(LAYERS))]
    subprocess.run([program, folder, "job", "0", "1", "0", "1", "hidden"], input="".join(f"{line}\n" for line in lines), text=True, check=True)


def make_heads(folder, n):
    """A process of its own: a child's peak begins with its parent's."""
    import numpy as np
    rng = np.random.default_rng(0)
    value = rng.standard_normal((KV, DIM), np.float32)

    def tensors(_, m):
        return [*(rng.standard_normal((m, heads, DIM), np.float32) for heads in (HEADS, KV)), np.broadcast_to(value, (m, KV, DIM)),
                np.broadcast_to(np.repeat(value, HEADS // KV, axis=0), (m, HEADS, DIM))]
    write_steps(folder, n, WITH_HEADS, tensors)


def main():
    if sys.argv[1] == "--make":
        make_heads(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("view")
    parser.add_argument("make_schedule")
    parser.add_argument("tokens", nargs="*", type=int, default=[16, 1000, 10000, 100000])
    opt = parser.parse_args()
    for n in opt.tokens:
        with tempfile.TemporaryDirectory(prefix="dmi-bench-view-") as folder:
            maps, heads, out = (pathlib.Path(folder) / name for name in ("maps", "heads", "r.html"))
            make_maps(opt.make_schedule, maps, n)
            if n <= 10000:
                subprocess.run([sys.executable, __file__, "--make", heads, str(n)], check=True)
            for run in (maps, heads)[:1 + (n <= 10000)]:
                seconds, peak = cost(opt.view, run, "-o", out, "--force")
                print(f"{n:6} tokens  {'attention' if run == heads else 'maps':10} {out.stat().st_size / 1e6:7.2f} MB  {seconds:8.3f} s  peak {peak:6.1f} MB", flush=True)


if __name__ == "__main__":
    main()
