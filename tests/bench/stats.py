#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dmi-analyze stats costs beside dmi-dump verify, which reads as much: stats.py DMI_ANALYZE DMI_DUMP BENCH_STATS [TOKENS].

Runs of activations (bench_stats.c), f32 and bf16, of TOKENS (1024) and of ten times as many, in steps of 64 tokens and (as many records, ten times the rows) of
640. Rounds in turn on warm files: medians of the CPU time and, with two threads, of the time by the clock; and the peak of resident memory.
"""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 3


def once(*command):
    """(CPU seconds, seconds by the clock, peak MB) of a command whose output is of no interest"""
    began = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime, time.monotonic() - began, usage.ru_maxrss / 1e3


def medians(commands):
    """{name: (CPU seconds, seconds by the clock, peak MB)}: medians of the times, and the highest peak"""
    found = {name: [] for name in commands}
    for _ in range(ROUNDS + 1):
        for name, command in commands.items():
            found[name].append(once(*command))
    return {name: (*(statistics.median(times) for times in zip(*(r[:2] for r in rounds[1:]))), max(r[2] for r in rounds)) for name, rounds in found.items()}


def measure(analyze, dump, make, n, dtype, size, rows):
    """Prints a line. Return: the peak of stats."""
    with tempfile.TemporaryDirectory(prefix="dmi-bench-stats-") as folder:
        run = subprocess.run([make, folder, str(n), dtype, str(rows)], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        stored = sum(path.stat().st_size for path in pathlib.Path(run).glob("seg-*.dmi"))
        found = medians({"verify": (dump, "verify", run), "stats": (analyze, "stats", run), "two": (analyze, "stats", run, "--threads", "2")})
    verify, stats, two = (found[name] for name in ("verify", "stats", "two"))
    raw = n * 4 * 30 * 576 * size
    print(f"{dtype}, {n} tokens, {rows} a step, {raw / 1e6:.0f} MB of tensors, {stored / 1e6:.0f} MB on disk: CPU time of verify {verify[0]:.3f} s, stats {stats[0]:.3f} s "
          f"({stats[0] / verify[0]:.2f}); by the clock {verify[1]:.3f} s, {stats[1]:.3f} s ({stats[1] / verify[1]:.2f}), two threads {two[1]:.3f} s "
          f"({two[1] / verify[1]:.2f}); peak {stats[2]:.1f} MB", flush=True)
    return stats[2]


def main():
    analyze, dump, make, *more = sys.argv[1:]
    tokens = int(more[0]) if more else 1024
    for dtype, size in (("f32", 4), ("bf16", 2)):
        first, records, rows = (measure(analyze, dump, make, n, dtype, size, some) for n, some in ((tokens, 64), (10 * tokens, 64), (10 * tokens, 640)))
        print(f"{dtype}: peak at ten times the tokens {records / first:.2f} in ten times the records, {rows / first:.2f} in as many", flush=True)


if __name__ == "__main__":
    main()
