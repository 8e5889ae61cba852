#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments: what was committed reads back, and the rest is accounted for.

loop_client launches four kernels a forward, forever; every element that it writes says which launch
wrote it.  After each kill: captured (what the segments hold) + dropped + lost_at_kill = expected, and
expected is what the driver's call log says was launched, give or take the launch in flight.
"""
import argparse
import pathlib
import random
import signal
import subprocess
import time

import numpy as np

import harness
from harness import DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN, Checks

SPEC = ROOT / "tests" / "engine" / "loop.yaml"
SITES = ("input", "output")  # in the spec's order
KERNELS = ("first", "block")
COLUMNS, LAYERS = 64, 3


def killed_run(client, folder, rows, delay):
    """Run the client, kill it @delay seconds after it began to launch. Returns its call log's launches."""
    from standin_log import Log
    env = harness.environment(DMI_STANDIN_LOG=folder / "calls")
    command = [DMI_RUN, "--spec", SPEC, "--out", folder / "out", "--", client, "0", str(rows)]
    with open(folder / "stderr", "wb") as stderr:
        program = subprocess.Popen([str(word) for word in command], env=env, stdout=subprocess.PIPE, stderr=stderr)
        try:
            if program.stdout.readline() != b"ready\n":
                raise SystemExit(f"the client did not start: {(folder / 'stderr').read_text()}")
            time.sleep(delay)
        finally:
            program.send_signal(signal.SIGKILL)
            program.wait()
            program.stdout.close()
    return Log(folder / "calls").launches


def check_rows(site, layer, x, rows):
    """What is wrong with the rows of one tensor, and how many records they are."""
    if len(x) % rows:
        return f"{len(x)} rows, no multiple of {rows}", 0
    x = x.reshape(-1, rows, COLUMNS)
    seeds = x[:, 0, 0] >> 16
    place = np.arange(rows * COLUMNS, dtype=np.uint32).reshape(rows, COLUMNS)
    if not (x == (seeds[:, None, None].astype(np.uint32) << 16) + place).all():
        return "a row that no launch wrote so", len(x)
    # Seeds count launches modulo 2^16: `first` is every fourth, `block` number n stands n + 1 behind it.
    offset = 0 if site == "input" else layer + 1
    if len(seeds) and (seeds % (LAYERS + 1) != offset).any():
        return "another layer's launch", len(x)
    if (np.diff(seeds.astype(np.int64)) % (1 << 16) != LAYERS + 1).any():
        return "launches out of order, missing or twice", len(x)
    return "", len(x)


def check_run(folder, rows, launches):
    """(complaints, (expected, captured, dropped, lost) in records)"""
    complaints, total = [], np.zeros(4, dtype=int)
    out = folder / "out"
    launched = [sum(launch["kernel"] == kernel for launch in launches) for kernel in KERNELS]
    runs = harness.runs_of(out)
    if not runs:
        return ([] if sum(launched) <= 1 else [f"{sum(launched)} launches and no run"]), total
    counters = harness.Counters(runs[0])
    in_flight = 0
    for i, kernel in enumerate(KERNELS):
        ahead = counters.expected[i].records - launched[i]
        in_flight += abs(ahead)
        if ahead not in (0, 1):
            complaints.append(f"{kernel}: {counters.expected[i].records} expected, {launched[i]} launched")
    if in_flight > 1:
        complaints.append(f"{in_flight} launches in flight on one thread")
    tensors = harness.export(out, folder / "export.safetensors")
    captured = dict.fromkeys(SITES, 0)
    for key, x in tensors.items():
        site, _, layer = key.partition(".")
        wrong, n = check_rows(site, int(layer or 0), x, rows)
        captured[site] += n
        if wrong:
            complaints.append(f"{key}: {wrong}")
    stats = harness.dump_json("stats", out)
    for i, site in enumerate(SITES):
        dropped, expected = counters.dropped_sum(i).records, counters.expected[i].records
        lost = expected - captured[site] - dropped
        said = lost_of(stats, site)
        if lost < 0 or said != lost:
            complaints.append(f"{site}: {captured[site]} read back + {dropped} dropped + {said} lost_at_kill is not {expected}")
        if counters.captured[i].records > captured[site]:
            complaints.append(f"{site}: {counters.captured[i].records} counted as captured, {captured[site]} read back")
        total += (expected, captured[site], dropped, lost)
    if harness.run([DMI_DUMP, "verify", out], check=False).returncode != 0:
        complaints.append("dmi-dump verify finds the run damaged")
    return complaints, total


def lost_of(stats, site):
    return sum(entry["lost_at_kill"]["records"] for entry in stats["sites"] if entry["site"] == site)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("client", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    opt = parser.parse_args()
    opt.client = opt.client.resolve()
    harness.need(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", opt.client)
    checks, chance, total, n_read = Checks(), random.Random(opt.seed), np.zeros(4, dtype=int), 0
    # Once to its end: all kernels are then in the driver's cache. While one is compiled nothing is launched.
    folder = harness.workspace()
    harness.run([DMI_RUN, "--spec", SPEC, "--out", folder / "out", "--", opt.client, "1"],
                env=harness.environment(DMI_STANDIN_LOG=folder / "calls"))
    for i in range(opt.kills):
        folder, rows = harness.workspace(), chance.choice((1, 4, 32))
        # Half of them early: while the library makes its arena and the first segment.
        delay = chance.uniform(0, 0.02) if i % 2 else chance.uniform(0, 0.5)
        launches = killed_run(opt.client, folder, rows, delay)
        complaints, sums = check_run(folder, rows, launches)
        checks.check(not complaints, f"kill {i}: {rows} rows, after {delay:.3f} s, {len(launches)} launches", "; ".join(complaints))
        total += sums
        n_read += sums[1] > 0
    print("       {} expected = {} read back + {} dropped + {} lost at the kill".format(*total))
    checks.check(n_read >= opt.kills // 4, f"{n_read} of {opt.kills} kills came late enough for records to be read back")
    checks.exit()


if __name__ == "__main__":
    main()
