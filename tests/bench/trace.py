#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a trace costs a serving engine, beside py-spy and OpenTelemetry: trace.py DMI_RUN PRELOAD [ROUNDS [LAYERS [TOKENS]]].

Eight requests are decoded together by tests/engine/serve.py in graphs. Two ways have no trace: without the library, and with the library, to which the
engine says each step. The tiers are those of `dmi-run --trace`, and --spans has the engine's ranges too. DMI_CUPTI names the libcupti of the tiers `kernels`
and `full`. py-spy reads the engine's stack each 10 ms. OpenTelemetry's SDK takes the engine's ranges (otel_serve.py). Both come from PyPI, into build/profilers,
and are left out by name where they cannot be had. Rounds in turn, every second one backwards, so that a noisy machine shifts all alike. Of each way it
prints the median decode step by the clock, of the process's CPU and of the thread that launches. It prints how many times what the thread takes without a
trace that is, too: the median of the rounds' ratios of medians, and the least and the greatest.
"""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import pytest

import serve

TESTS = serve.ROOT / "tests"
sys.path += [str(TESTS / folder) for folder in ("engine", "preload", "standin")]
import columns  # noqa: E402

PLAIN, SAID = "without the library", "steps are said, no trace"
TIERS = {"--trace=steps": "steps", "--trace=steps, ranges": "steps", "--trace=kernels": "kernels", "--trace=full": "full"}
PY_SPY, OTEL = "py-spy at 10 ms", "OpenTelemetry's SDK, ranges"


def command_of(way, folder, dmi_run, layers, profilers):
    """The engine's command, in @way. Its results are in @folder."""
    python, *words = serve.command_of(folder, layers, *(["--steps"] if way == SAID or way in TIERS else []), *(["--spans"] if "ranges" in way else []))
    if way in TIERS:
        return [dmi_run, f"--trace={TIERS[way]}", "--out", folder / "out", "--", python, *words]
    if way == PY_SPY:
        return [profilers.with_name("py-spy"), "record", "--rate", "100", "--format", "raw", "--output", folder / "taken", "--", python, *words]
    return [python, TESTS / "bench" / "otel_serve.py", folder / "taken", *words[1:]] if way == OTEL else [python, *words]


def check(way, folder, dmi_run):
    """The trace, the samples or the spans of the engine are there."""
    if way in TIERS:
        run = next((folder / "out").glob("*/manifest.json")).parent
        tool = [pathlib.Path(dmi_run).with_name("dmi-trace"), "steps" if TIERS[way] == "steps" else "kernels", run]
        there = len(subprocess.run(tool, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()) > 3
    else:
        there = way in (PLAIN, SAID) or ("engine.py:" if way == PY_SPY else "EngineCore::Execute") in (folder / "taken").read_text()
    if not there:
        raise SystemExit(f"trace.py: {way}: nothing was taken of the engine's steps")


def decode_steps(way, folder, dmi_run, preload, layers, profilers):
    """(by the clock, of the process, of the launching thread) of each decode step"""
    more = {"LD_PRELOAD": preload} if way == SAID else {}
    if way == OTEL:
        more["PYTHONPATH"] = str(next(profilers.parents[1].glob("lib/python3*/site-packages")))
    command = [str(word) for word in command_of(way, folder, dmi_run, layers, profilers)]
    subprocess.run(command, env=os.environ | more, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    check(way, folder, dmi_run)
    return serve.decodes_of(folder)


def main():
    dmi_run, preload, *more = sys.argv[1:]
    rounds, layers, tokens = (int(word) for word in (more + ["7", "1", "24"][len(more):]))
    profilers, ways = None, [PLAIN, SAID, *TIERS, PY_SPY, OTEL]
    try:
        profilers = columns.environment("py-spy and OpenTelemetry's SDK", serve.ROOT / "tools" / "setup" / "profilers.txt")
    except pytest.skip.Exception as why:
        ways = ways[:-2]
        print(f"{PY_SPY}, {OTEL}: left out: {why}")
    taken = {way: [] for way in ways}
    loads = [os.getloadavg()[0]]
    for i in range(rounds):
        for way in ways[::(1, -1)[i % 2]]:
            with tempfile.TemporaryDirectory(prefix="bench-trace-") as name:
                folder = pathlib.Path(name)
                serve.write_requests(folder, tokens)
                taken[way].append(decode_steps(way, folder, dmi_run, preload, layers, profilers))
        loads.append(os.getloadavg()[0])
    print(f"load average {min(loads):.1f} to {max(loads):.1f}, {os.cpu_count()} CPUs; {rounds} rounds, {sum(map(len, taken[PLAIN]))} decode steps")
    thread = {way: [statistics.median(step[-1] for step in steps) for steps in by_round] for way, by_round in taken.items()}
    for way, by_round in taken.items():
        words = [f"{1e3 * statistics.median(column):.3f} ms" for column in zip(*(step for steps in by_round for step in steps))]
        untraced = SAID if way in TIERS else PLAIN
        ratios = [one / other for one, other in zip(thread[way], thread[untraced])]
        print(f"{way}: clock {words[0]}, CPU {words[1]}, launching thread {words[2]}: {statistics.median(ratios):.3f} times "
              f"({min(ratios):.3f} to {max(ratios):.3f}) '{untraced}'", flush=True)


if __name__ == "__main__":
    main()
