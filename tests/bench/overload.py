#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an engine feels of a link that is too slow, by what happens under pressure.

    tests/bench/overload.py DMI_RUN DMI_DUMP BENCH_OVERLOAD [STEPS [PLOT.png]]

Tensors of 0.5 to 10 times what the stand-in's link carries. In one process three graphs take turns, step by step: plain, with copies on the device, and
captured (bench_overload.c). A capture is judged by the launching thread: how long its calls take, and its CPU time, beside those of the graph with
copies, medians of all steps; the time of a step includes what the device does, which here shares the CPUs. `link`: bytes kept, of what the link carries in all that time (the ring's are carried after it). With matplotlib there is a plot, too.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

LOADS = (0.5, 1, 2, 5, 10)
LINK = 20_000_000          # bytes a second
PACE_US, LAYERS, REQUESTS = 4000, 8, 32
RING = "{bytes: 32M, slots: 8192}"
MODES = {
    "complete": "{mode: complete, wait_ms: 60000}",
    "drop": "{mode: drop}",
    "drop-recent": "{mode: best-effort}",
    "keep-by-pattern": "{mode: best-effort, strategy: keep-by-pattern, keep: ['vip-*']}",
    "sample": "{mode: best-effort, strategy: sample, share: 0.5}",
    "naive": None,
}


def spec(folder, overload, row_bytes):
    path = folder / "spec.yaml"
    path.write_text(f"hookspec: 1\nname: bench-overload\nring: {RING}\noverload: {overload}\nforward: [{{kind: step, begin: step}}]\nsites:\n"
                    f"  - {{name: armed, kernel: '^armed$', pointer: 'arg[0]', dtype: f32, dims: [{{row: true, count: grid.x}}, {{count: {row_bytes // 4}}}]}}\n")
    return path


def row_bytes_of(load):
    """Of what the link carries in the time of three steps, one of which is captured."""
    return int(load * LINK * 3 * PACE_US / 1e6 / LAYERS / REQUESTS) // 16 * 16


def account(dump, out):
    """(bytes kept, launches that waited, requests that are complete, requests) as dmi-dump says."""
    run = next(path for path in out.iterdir() if path.is_dir())
    stats = json.loads(subprocess.run([dump, "stats", "--json", run], stdout=subprocess.PIPE, check=True).stdout)
    requests = json.loads(subprocess.run([dump, "list", "--requests", "--json", run], stdout=subprocess.PIPE, check=True).stdout)["requests"]
    total = stats["total"]
    return total["captured"]["bytes"], stats["waits"]["launches"], sum(r["shed"] is None for r in requests), len(requests), total["dropped"]["bytes"]


def measure(run, dump, program, mode, load, steps):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        row_bytes = row_bytes_of(load)
        command = [program, steps, PACE_US, mode, row_bytes]
        if MODES[mode]:
            command = [run, "--spec", spec(folder, MODES[mode], row_bytes), "--out", folder / "out", "--log", "none", "--", *command]
        done = subprocess.run([str(word) for word in command], env={**os.environ, "DMI_STANDIN_DTOH_BPS": str(LINK)}, stdout=subprocess.PIPE, text=True, check=True)
        found = {name: [float(word) / 1000 for word in words] for name, *words in map(str.split, done.stdout.splitlines())}
        return found, account(dump, folder / "out") if MODES[mode] else None


def plot(path, found):
    try:
        import matplotlib
    except ImportError:
        print(f"no plot: matplotlib is not installed ({path})")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for mode in MODES:
        left.plot(LOADS, [found[mode, load][0]["captured"][3] / found[mode, load][0]["plain"][3] for load in LOADS], marker="o", label=mode)
        if MODES[mode]:
            right.plot(LOADS, [found[mode, load][0]["captured"][0] / 1000 for load in LOADS], marker="o", label=mode)
    for axes, title, unit in ((left, "a step", "times a step without capture"), (right, "the launching thread's calls", "milliseconds")):
        axes.set(title=title, xlabel="what is wanted, times what the link carries", ylabel=unit, xscale="log", yscale="log")
        axes.set_xticks(LOADS, [f"{load:g}" for load in LOADS])
        axes.legend()
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")


def main():
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    run, dump, program = sys.argv[1:4]
    steps, found = int(sys.argv[4]) if len(sys.argv) > 4 else 240, {}
    print(f"a link of {LINK / 1e6:.0f} MB/s, a step each {PACE_US / 1000:g} ms, every third captured, {steps} of these; load average {os.getloadavg()[0]:.1f} on "
          f"{os.cpu_count()} CPUs at the start\n  microseconds: calls and CPU of the launching thread, and the step, as medians; beside them the copies' own")
    print(f"  {'load':>5} {'mode':<16} {'calls':>8} {'longest':>9} {'copies':>8} {'CPU':>7} {'copies':>7} {'step':>8} {'copies':>8} {'plain':>8}  waits   kept  link requests")
    for load in LOADS:
        for mode in MODES:
            found[mode, load] = times, sums = measure(run, dump, program, mode, load, steps)
            captured, copies, plain = times["captured"], times["copies"], times["plain"]
            kept = f"{sums[1]:6} {100 * sums[0] / max(1, sums[0] + sums[4]):5.1f}% {sums[0] / LINK / times['elapsed'][0] * 1e6:5.2f} {sums[2]} of {sums[3]} complete" if sums else ""
            print(f"  {load:5g} {mode:<16} {captured[0]:8.0f} {captured[1]:9.0f} {copies[0]:8.0f} {captured[2]:7.0f} {copies[2]:7.0f} {captured[3]:8.0f} "
                  f"{copies[3]:8.0f} {plain[3]:8.0f} {kept}", flush=True)
    if len(sys.argv) > 5:
        plot(sys.argv[5], found)


if __name__ == "__main__":
    main()
