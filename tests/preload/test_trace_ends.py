# SPDX-License-Identifier: Apache-2.0
"""What ends while it is traced: the process at any moment, by a kill, an exit within a flush of CUPTI's or past its time; a context; a module. What is stored can be read,
lies under the right step, its counts agree, and the program says and computes the same.
"""
import json
import random
import subprocess
import time

import pytest

import format_reader
import harness
from full_trace import FIRST, KERNEL, OUTSIDE, differences
from harness import BUILD, DMI_RUN, PRELOAD
from kit import CLIENT, START
from test_trace import complete, step, traced
from test_trace_full import CUPTI, DMI_TRACE, engine, forward, full, wrong
from test_trace_kernels import BUSY, FORWARD, counts, kernels

DUMP = BUILD / "tools" / "dmi-dump"
pytestmark = pytest.mark.built(DMI_TRACE, DMI_RUN, DUMP, CUPTI)
SECOND = [*START, "ctx e d", "module n again", *(f"func {name}2 n {name}" for name in ("first", "block", "last")), "alloc q 4096"]
OTHER = [line.replace("first ", "first2 ").replace("block ", "block2 ").replace("last ", "last2 ").replace(" p ", " q ") for line in forward(0)]


def other(number):
    """forward(@number) in the second context"""
    return ["setctx e", *(line.replace(" 1 64 q 64 0", f" {number + 1} 64 q 64 {number}") for line in OTHER), "sync", "setctx c"]


def test_a_kill_at_any_moment(bench, seeds):
    """Of what was stored the counts agree, dmi-dump recover copies all of it, and no kernel is under another step."""
    for seed in range(seeds(1, 12)):
        for tier in ("full", "kernels"):
            draw, out = random.Random(seed), bench.folder / f"killed-{tier}-{seed}"
            once = [line.replace(" 1 64 p 64 0", " 1%i 64 p 64 %i") for line in forward(0)]
            (bench.folder / "script").write_text("\n".join([*START, "repeat 3000", "step %i 1 a:0:1:0:2", *once, "stepend", "sync", "sleep 4", "endrepeat"]) + "\n")
            env = harness.environment(LD_PRELOAD=PRELOAD, DMI_OUT=out, DMI_TRACE=tier, DMI_CUPTI=CUPTI)
            with subprocess.Popen([CLIENT, bench.folder / "script", "dlopen"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                deadline = time.monotonic() + 30
                while not list(out.glob("*/seg-*.dmi")) and time.monotonic() < deadline:
                    time.sleep(0.02)
                time.sleep(draw.uniform(1.3, 3))
                process.kill()
            what = f"{tier}, seed {seed}"
            folder, = harness.runs_of(out)
            run = format_reader.Run(folder)
            done = subprocess.run([DMI_TRACE, "check", "--json", folder], text=True, capture_output=True, check=False)
            said, = json.loads(done.stdout)
            bench.check(process.returncode == -9 and done.returncode == 0 and said["holds"] and said["ran"] is None, f"{what}: dmi-trace check", done.stdout + done.stderr)
            n = {"full": sum(r.kind == KERNEL for r in run.ran), "kernels": sum(s.n for s in run.sums if s.kind == BUSY)}[tier]
            stored = said["ran_stored" if tier == "full" else "sums"]
            bench.check(n == stored > 0 and len(run.step_times) > 20, f"{what}: some is stored", (n, said, len(run.step_times)))
            bench.check(not wrong_of(run), f"{what}: no kernel is under another step", wrong_of(run)[:3])
            copy = bench.folder / f"recovered-{tier}-{seed}"
            subprocess.run([DUMP, "recover", folder, "-o", copy], check=True, capture_output=True)
            tables = [json.loads(subprocess.run([DMI_TRACE, "kernels", "--json", path], text=True, capture_output=True, check=True).stdout)["kernels"] for path in (folder, copy)]
            bench.check(tables[0] == tables[1] and sum(k["n"] for k in tables[0]) == n, f"{what}: recover keeps it", (tables, n))


def wrong_of(run):
    """Kernels and sums of a step that has more of a name than it launched, or a grid of another's."""
    steps = {t["number"] + FIRST for t in run.step_times}
    sums = [s for s in run.sums if s.kind == KERNEL and s.step in steps and s.n > FORWARD[s.name]]
    return sums + [r for r in run.ran if r.kind == KERNEL and r.step in steps and str(r.grid[0]) != f"1{r.step - FIRST}"]


def test_an_exit_within_a_flush(bench):
    """CUPTI takes 40 of each 90 ms to give records back: the process ends meanwhile, by each way that flushes."""
    for way, code in (("exit 3", 3), ("_exit 3", 3), ("quick_exit 3", 3), ("exec false", 1)):
        result, run, log = full(bench, way, [*START, *engine(6), "sleep 120", *engine(2), way], cupti="13000,slow:40")
        bench.check(result.code == code and not differences(log, run), f"{way}: all is there", (result.code, differences(log, run)[:2]))
        complete(bench, way, result)


def test_a_flush_that_does_not_end_is_not_waited_for(bench):
    """DMI_EXIT_MS bounds the end of the process, whatever CUPTI does."""
    began = time.monotonic()
    result = bench.run([*START, *engine(4), "sleep 200", "digest p 256"], None, DMI_TRACE="full", DMI_CUPTI=CUPTI, DMI_STANDIN_CUPTI="13000,slow:50000", DMI_EXIT_MS="300")
    took = time.monotonic() - began
    bench.check(result.code == 0 and took < 20, "the process ends", (result.code, took, result.stderr))
    run = traced(result)
    bench.check(not run.ran, "what CUPTI did not give back is not there", run.ran)
    bench.check("the last flush did not end within 300 ms" in result.stderr, "and the log says so", result.stderr)


def test_two_contexts(bench):
    """A step in each in turn, and launches outside of steps: each is there once, under its step."""
    script = [*SECOND, "setctx c", *(line for i in range(6) for line in step(i, *(other(i) if i % 2 else [*forward(i), "sync"]))), *other(7), "digest p 256"]
    _, run, log = full(bench, "two contexts", script)
    bench.check(not differences(log, run) and not wrong(run), "what ran, by step", differences(log, run)[:2])
    bench.check(len({r.context for r in run.ran if r.kind == KERNEL}) == 2, "in two contexts", {r.context for r in run.ran})
    _, run, _ = kernels(bench, "two contexts, sums", script)
    bench.check(counts(run) == {OUTSIDE: {"first": 1, "block": 2, "last": 1}, **{FIRST + i: FORWARD for i in range(6)}}, "their sums", counts(run))


def test_a_context_ends(bench):
    """What ran in it is there, and the other one goes on."""
    script = [*SECOND, "setctx c", *(line for i in range(4) for line in step(i, *(other(i) if i % 2 else [*forward(i), "sync"]))), "ctxdestroy e", "setctx c",
              *(line for i in range(4, 8) for line in step(i, *forward(i), "sync")), "digest p 256"]
    result, run, log = full(bench, "a context ends", script)
    bench.check(sum(r.kind == KERNEL for r in run.ran) == len(log.launches) and not wrong(run), "each launch is there, none under another step", (len(run.ran), len(log.launches)))
    bench.check(not differences(log, run), "and each under its own", differences(log, run)[:2])
    complete(bench, "a context ends", result)


def test_a_module_is_unloaded(bench):
    """Its kernels keep their names, though records of them come after it went."""
    again = ["module n again", *(f"func {name} n {name}" for name in ("first", "block", "last"))]
    script = [*START, *step(0, *forward(0)), "sync", "unload m", *again, *step(1, *forward(1)), "sync", "unload n", *again, *step(2, *forward(2)), "digest p 256"]
    for cupti in ("13000", "13000,late"):
        result, run, log = full(bench, f"a module is unloaded {cupti}", script, cupti=cupti)
        bench.check(not differences(log, run), f"{cupti}: what ran, by step", differences(log, run)[:2])
        complete(bench, cupti, result)
