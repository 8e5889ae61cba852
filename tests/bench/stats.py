#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dmi-analyze stats costs beside dmi-dump verify, which reads as much: stats.py DMI_ANALYZE DMI_DUMP BENCH_STATS [TOKENS].

Runs of activations (bench_stats.c), f32 and bf16, of TOKENS (1024) and of ten times as many. Rounds in turn on warm files: medians of the CPU time and their
ratio, and the peak of resident memory for both sizes.
"""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROUNDS = 3


def once(*command):
    """(CPU seconds, peak MB) of a command whose output is of no interest"""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def medians(commands):
    """{name: (CPU seconds, peak MB)}: the median of the times, and the highest peak"""
    found = {name: [] for name in commands}
    for _ in range(ROUNDS + 1):
        for name, command in commands.items():
            found[name].append(once(*command))
    return {name: (statistics.median(t for t, _ in rounds[1:]), max(m for _, m in rounds)) for name, rounds in found.items()}


def main():
    analyze, dump, make, *more = sys.argv[1:]
    tokens = int(more[0]) if more else 1024
    for dtype, size in (("f32", 4), ("bf16", 2)):
        peaks = []
        for n in (tokens, 10 * tokens):
            with tempfile.TemporaryDirectory(prefix="dmi-bench-stats-") as folder:
                run = subprocess.run([make, folder, str(n), dtype], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
                stored = sum(path.stat().st_size for path in pathlib.Path(run).glob("seg-*.dmi"))
                found = medians({"verify": (dump, "verify", run), "stats": (analyze, "stats", run)})
            (verify, _), (stats, peak) = found["verify"], found["stats"]
            peaks.append(peak)
            raw = n * 4 * 30 * 576 * size
            print(f"{dtype}, {n} tokens, {raw / 1e6:.0f} MB of tensors, {stored / 1e6:.0f} MB on disk: verify {verify:.3f} s, stats {stats:.3f} s "
                  f"({stats / verify:.2f}, {1e9 * (stats - verify) * size / raw:.2f} ns a value more), peak {peak:.1f} MB")
        print(f"{dtype}: peak at ten times the tokens {peaks[1] / peaks[0]:.2f}")


if __name__ == "__main__":
    main()
