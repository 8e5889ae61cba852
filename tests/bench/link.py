#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole library against the stand-in's link: bytes captured a second, as a share of what the link carries.

    tests/bench/link.py DMI_RUN BENCH_LINK [SECONDS]

The stand-in runs kernels, and so the copies of the sites, on the CPU: where the machine has no CPU left, that and
not the link is the limit.  bench_drain leaves the kernels out.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

LINKS = (100_000_000, 250_000_000, 1_000_000_000, 0)  # bytes a second; 0: no limit
DATA = (("normal", "f32, normally distributed"), ("noise", "bytes that do not shrink"))
SPEC = pathlib.Path(__file__).with_name("drain.yaml")


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    seconds = sys.argv[3] if len(sys.argv) > 3 else "1"
    print(f"records of 4 MiB; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs at the start")
    for data, title in DATA:
        for link in LINKS:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.argv[1], "--spec", SPEC, "--out", folder, "--", sys.argv[2], data, seconds, "4"]
                done = subprocess.run([str(word) for word in command], env={**os.environ, "DMI_STANDIN_DTOH_BPS": str(link)},
                                      stdout=subprocess.PIPE, text=True, check=True)
            n_bytes, spent, cpu = (float(word) for word in done.stdout.split())
            share = f"{n_bytes / spent / link:5.2f} of the link" if link else " " * 17
            print(f"  {title:<26} link {link / 1e9 if link else 'no limit':>8}: {n_bytes / spent / 1e9:6.3f} GB/s {share}, "
                  f"{cpu / spent:4.2f} CPUs busy")


if __name__ == "__main__":
    main()
