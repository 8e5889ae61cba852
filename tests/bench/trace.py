#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a trace costs a serving engine: trace.py DMI_RUN PRELOAD [ROUNDS [LAYERS [TOKENS]]].

Eight requests are decoded together by tests/engine/serve.py in graphs: without the library; with the library, to which it says each step and which keeps
nothing; with `dmi-run --trace=steps`; and with the engine's ranges (--spans) too.
Rounds in turn, so that a noisy machine shifts all alike; the median of the decode steps by the clock, of the process's CPU and of the thread that launches,
each with its ratio to that without the library.
"""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import serve

# {way: (options of the engine, how it is started)}
WAYS = {"without the library": ((), None), "steps are said, no trace": (("--steps",), "preload"), "--trace=steps": (("--steps",), "trace"),
        "--trace=steps, ranges": (("--steps", "--spans"), "trace")}


def decode_steps(folder, way, dmi_run, preload, layers):
    """(by the clock, of the process, of the launching thread) of each decode step"""
    options, start = WAYS[way]
    command = serve.command_of(folder, layers, *options)
    if start == "trace":
        command = [dmi_run, "--trace=steps", "--out", folder / "out", "--", *command]
    env = os.environ | ({"LD_PRELOAD": preload} if start == "preload" else {})
    subprocess.run([str(word) for word in command], env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return serve.decodes_of(folder)


def main():
    dmi_run, preload, *more = sys.argv[1:]
    rounds, layers, tokens = (int(word) for word in (more + ["7", "1", "24"][len(more):]))
    taken = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as name:
        folder = pathlib.Path(name)
        serve.write_requests(folder, tokens)
        for _ in range(rounds):
            for way in WAYS:
                taken[way] += decode_steps(folder, way, dmi_run, preload, layers)
    base = None
    for way, steps in taken.items():
        medians = [statistics.median(column) for column in zip(*steps)]
        base = base or medians
        words = [f"{1e3 * ms:.3f} ms ({ms / one:.3f})" for ms, one in zip(medians, base)]
        print(f"{way}: {len(steps)} decode steps; clock {words[0]}, CPU {words[1]}, launching thread {words[2]}", flush=True)


if __name__ == "__main__":
    main()
