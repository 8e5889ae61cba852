#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dmi-analyze attention and heads cost: attention.py DMI_ANALYZE DMI_DUMP [TOKENS...] [--torch PYTHON].

Runs with one layer of 9 heads of 64 elements, which share 3 of k and v (SmolLM2's), f32, in steps of 512 tokens; TOKENS: 1000 10000. It prints for one
head and for all: CPU seconds without a pattern in memory, the proof included, and the peak of resident memory; beside dmi-dump verify, which reads all of it once, and
softmax(q k^T) v of one head by torch on one thread with the pattern in memory. Medians of three rounds.
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "unit"))
import costs  # noqa: E402

HEADS, KV, DIM = 9, 3, 64
TORCH = """
import sys, time, resource, torch
n = int(sys.argv[1]); torch.set_num_threads(1); torch.manual_seed(0)
q, k, v = (torch.randn(n, 64) for _ in range(3))
mask = torch.ones(n, n, dtype=torch.bool).tril()
times = []
for _ in range(4):
    began = time.process_time()
    a = (q @ k.T * 0.125).masked_fill(~mask, -torch.inf).softmax(-1); z = a @ v
    times.append(time.process_time() - began)
print(sorted(times[1:])[1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
"""


def make(folder, n):
    """A run of random q_rot, k_rot, v and the z that follows, computed head by head in blocks, in a process of its own."""
    import numpy as np
    from long_runs import STEP, write_steps
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, heads, DIM), np.float32) for heads in (HEADS, KV, KV))
    z = np.empty_like(q)
    for h in range(HEADS):
        for at in range(0, n, STEP):
            s = q[at:at + STEP, h] @ k[:, h // 3].T * DIM ** -0.5
            s[np.arange(n) > np.arange(at, min(at + STEP, n))[:, None]] = -np.inf
            e = np.exp(s - s.max(1, keepdims=True))
            z[at:at + STEP, h] = e / e.sum(1, keepdims=True) @ v[:, h // 3]
    write_steps(folder, n, 1, ("q_rot", "k_rot", "v", "z"), lambda at, m: (x[at:at + m] for x in (q, k, v, z)))


def cost(*command):
    """(median CPU seconds, highest peak in MB)"""
    rounds = [costs.cost(*command) for _ in range(3)]
    if any(status for status, _, _ in rounds) and "verify" not in command:  # a run of ours that was killed is no clean one
        sys.exit(f"{command}: status {rounds[0][0]}")
    return statistics.median(seconds for _, seconds, _ in rounds), max(peak for _, _, peak in rounds) / 1e6


def main():
    if sys.argv[1] == "--make":
        make(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("analyze")
    parser.add_argument("dump")
    parser.add_argument("tokens", nargs="*", type=int, default=[1000, 10000])
    parser.add_argument("--torch", help="a Python that has it")
    opt = parser.parse_args()
    for n in opt.tokens:
        with tempfile.TemporaryDirectory(prefix="dmi-bench-attention-") as folder:
            run = pathlib.Path(folder) / "run"
            subprocess.run([sys.executable, __file__, "--make", run, str(n)], check=True)
            rows = {"dmi-dump verify": (opt.dump, "verify", run), "attention, one head": (opt.analyze, "attention", run, "--heads", "4"),
                    "attention, 9 heads": (opt.analyze, "attention", run), "heads, 9 heads": (opt.analyze, "heads", run),
                    "the last query, 9 heads": (opt.analyze, "attention", run, "--tokens", "last"),
                    "attention, 9 heads, 64 MiB": (opt.analyze, "attention", run, "--memory", "64M")}
            for name, command in rows.items():
                seconds, peak = cost(*command)
                print(f"{n:6} tokens  {name:28} {seconds:8.3f} s  {peak:7.1f} MB", flush=True)
            if opt.torch:
                said = subprocess.run([opt.torch, "-c", "import os,sys\nsys.setdlopenflags(os.RTLD_LAZY)\n" + TORCH, str(n)], stdout=subprocess.PIPE, text=True, check=True)
                seconds, peak = map(float, said.stdout.split())
                print(f"{n:6} tokens  {'torch, one head':28} {seconds:8.3f} s  {peak:7.1f} MB", flush=True)


if __name__ == "__main__":
    main()
