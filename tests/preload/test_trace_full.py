# SPDX-License-Identifier: Apache-2.0
"""The tier full over the stand-in's CUPTI: what the driver's log has is in the trace once, under the right step; what is lost makes nothing wrong.

The program says and computes the same with and without the library.
"""
import json
import pathlib
import subprocess
import sys

import pytest

from full_trace import COPY, FIRST, KERNEL, UNKNOWN, differences
from harness import BUILD, DMI_RUN, ROOT
from kit import START, site, spec
from test_trace import alike, complete, step, traced

sys.path.insert(0, str(ROOT / "tests" / "standin"))
from standin_log import Log  # noqa: E402

CUPTI = BUILD / "tests" / "standin" / "cupti" / "libcupti.so.13"
DMI_TRACE = BUILD / "tools" / "dmi-trace"
pytestmark = pytest.mark.built(DMI_TRACE, DMI_RUN, CUPTI)
RAN, RAN_LOST, RAN_DROPPED, ALONE = 7, 8, 9, 10


def full(bench, what, script, text=None, cupti="13000", **env):
    log = bench.folder / f"{what.replace(' ', '-')}.log"
    result = alike(bench, what, script, text, DMI_TRACE="full", DMI_CUPTI=CUPTI, DMI_STANDIN_CUPTI=cupti, DMI_STANDIN_LOG=log, **env)
    return result, traced(result), Log(log)


def marks(run):
    return {kind: (value, text) for _, value, kind, text in run.marks}


def forward(number, stream=0):
    """A step's launches, whose grids tell it from others."""
    return [f"launch {name} {stream} {number + 1} 64 p 64 {number}" for name in ("first", "block", "block", "last")]


def engine(n, every=1):
    """@n steps, of which the program waits after each @every, for longer than clocks err; and launches between them."""
    return [line for i in range(n) for line in [*step(i, *forward(i), *(["sync", "sleep 1"] if i % every == every - 1 else [])), *forward(i + 1)[:i % 3]]]


@pytest.mark.parametrize("layout", ["11080", "12020", "12080", "13000", "13010", "13030", "13050", "14000"])
def test_each_launch_is_there_once_under_its_step(bench, layout):
    script = [*START, *forward(0)[:1], *engine(6), "launch nothing 0 1 64 p 64 5", *step(9), *step(10, *forward(3)), "digest p 256"]
    result, run, log = full(bench, layout, script, cupti=layout)
    bench.check(not differences(log, run), "what ran, by step", differences(log, run))
    bench.check(marks(run)[RAN] == (len(run.ran), "") and RAN_LOST not in marks(run) and run.marks[0][3] == "full", "the account", run.marks)
    kernel = next(r for r in run.ran if r.kind == KERNEL)
    bench.check(kernel.registers > 0 and 0 < kernel.end - kernel.begin < 10**9 and kernel.device == 0, "what is said of a kernel", kernel)
    copies = [r for r in run.ran if r.kind == COPY]
    bench.check(copies and all(r.how == 2 and r.n_bytes == 256 for r in copies), "copies to the host", copies)
    bench.check(all(t["launches"] == sum(r.step == t["number"] + FIRST and r.kind == KERNEL for r in run.ran) for t in run.step_times), "as steps count them")
    bench.check(("newer than the layouts" in result.stderr) == (layout == "14000"), "a version that is not known is named", result.stderr)
    said = complete(bench, layout, result)
    bench.check(said["ran"] == said["ran_stored"] == len(run.ran) and not said["ran_unknown"], "dmi-trace check", said)


def test_dmi_trace_kernels(bench):
    script = [*START, *engine(4), "digest p 256"]
    result, run, _ = full(bench, "kernels", script)
    told = json.loads(subprocess.run([DMI_TRACE, "kernels", "--json", result.folders[0]], text=True, capture_output=True, check=True).stdout)
    want = {}
    for r in run.ran:
        name = r.name if r.kind == KERNEL else "copy to the host"
        n, ns = want.get(name, (0, 0))
        want[name] = n + 1, ns + r.end - r.begin
    bench.check({k["name"]: (k["n"], k["sum_ns"]) for k in told["kernels"]} == want, "counts and times by name", told)
    bench.check([k["sum_ns"] for k in told["kernels"]] == sorted((k["sum_ns"] for k in told["kernels"]), reverse=True), "the dearest first")
    one = json.loads(subprocess.run([DMI_TRACE, "kernels", "--json", "--steps", "1:2", result.folders[0]], text=True, capture_output=True, check=True).stdout)
    bench.check({k["name"]: k["n"] for k in one["kernels"] if k["kind"] == "kernel"} == {"first": 1, "block": 2, "last": 1}, "of one step", one)
    shown = subprocess.run([DMI_TRACE, "show", "--step", "1", result.folders[0]], text=True, capture_output=True, check=True).stdout
    bench.check(shown.splitlines()[-5].split()[:1] == ["on"] and {line.split()[-1] for line in shown.splitlines()[-3:]} == {"first", "block", "last"}, "dmi-trace show", shown)
    said = json.loads(subprocess.run([DMI_TRACE, "show", "--json", "--step", "1", result.folders[0]], text=True, capture_output=True, check=True).stdout)
    bench.check(said["kernels"] == one["kernels"], "as JSON", said)
    text = subprocess.run([DMI_TRACE, "kernels", result.folders[0]], text=True, capture_output=True, check=True).stdout
    bench.check("of no known step" in text and "block" in text and "registers" in text, "as text", text)


def test_beside_a_capture(bench):
    text = spec(site("block", layer="occ"), head="forward:\n  - {kind: step, begin: {kernel: '^first$'}}")
    script = [*START, *engine(4), *forward(2), "sync", "digest p 256"]
    plain = alike(bench, "without a trace", script, text)
    result, run, log = full(bench, "beside", script, text)
    words = [[r.words for r in one.run().of(0)] for one in (plain, result)]
    bench.check(words[0] == words[1] and words[0], "the same is captured")
    bench.check(not differences(log, run), "what ran, with DMI's own kernels", differences(log, run))
    own = [t["own"] for t in run.step_times]
    bench.check(own == [sum(r.name.startswith("dmi_") and r.step == t["number"] + FIRST for r in run.ran) for t in run.step_times] and any(own), "own kernels", own)


@pytest.mark.since(12030, "names of functions")
def test_steps_that_kernels_begin_in_several_threads(bench):
    script = [*START, *forward(0), *forward(1), "sync", *forward(2), "digest p 256"]
    result, run, log = full(bench, "named", script, DMI_TRACE_STEP="kernel:^first$")
    bench.check(len(run.step_times) == 3 and not differences(log, run), "steps of a thread", (differences(log, run), result.stderr))
    own = ["threads 3", "setctx c", "stream s%t", *[line for i in range(6) for line in forward(i, "s%t")], "ssync s%t", "endthreads"]
    result, run, log = full(bench, "own streams", [*START, *own], DMI_TRACE_STEP="kernel:^first$")
    bench.check(len(run.step_times) == 18 and not differences(log, run), "steps of threads in streams of their own", (differences(log, run)[:2], result.stderr))
    one = ["threads 3", "setctx c", "repeat 40", *forward(1), "endrepeat", "endthreads", "sync"]
    _, run, log = full(bench, "one stream", [*START, *one], DMI_TRACE_STEP="kernel:^first$")
    kernels, said = [r for r in run.ran if r.kind == KERNEL], differences(log, run)
    bench.check(len(kernels) == 480 and all(not more for step, _, more in said if step != UNKNOWN), "steps of threads in one stream are right or not known",
                {step: sum(more.values()) for step, _, more in said})


def wrong(run):
    """Kernels under a step that did not launch them: the grid says which did."""
    steps = {t["number"]: run.steps[t["step"]].step for t in run.step_times}
    return [r for r in run.ran if r.kind == KERNEL and r.step >= FIRST and r.grid[0] != steps[r.step - FIRST] + 1]


@pytest.mark.parametrize("trouble", ["drop:7", "drop:23", "no-time:11", "late"])
@pytest.mark.parametrize("every", [1, 3])
def test_records_that_are_lost_make_no_step_wrong(bench, trouble, every):
    script = [*START, *engine(60, every), "digest p 256"]
    result, run, log = full(bench, f"{trouble} {every}", script, cupti=f"13000,{trouble}")
    kind, n = trouble.partition(":")[::2]
    bench.check(not wrong(run), "no kernel is under another step", wrong(run)[:3])
    told, seen = marks(run), len(run.ran)
    n_all = len(log.launches) + 1  # and the copy of the digest
    if kind == "late":
        bench.check(not differences(log, run), "what comes at the end comes under its step", differences(log, run)[:2])
    elif kind == "drop":
        bench.check(told[RAN_DROPPED][0] > 0 and told[RAN][0] == seen and seen + told[RAN_DROPPED][0] == n_all, "what CUPTI dropped is counted", told)
    else:
        bench.check(told[RAN][0] == seen + told[RAN_LOST][0] and told[RAN_LOST][0] > 0, "what has no times is counted and not stored", told)
    bench.check(("launches ran is of no known step" in result.stderr) == (kind != "late"), "the log says that some launches have no records", result.stderr)
    complete(bench, trouble, result)


CLOCKS = [("clock:-3000", "CUPTI's clock is 3.0 ms behind"), ("clock:100000", "CUPTI's clock is 100.0 ms ahead"),
          ("set:100:-20000", "CUPTI's clock is 20.0 ms behind"), ("lag:-3000", "records ran while their stream was idle"), ("13000", None)]


@pytest.mark.parametrize("clock,said", CLOCKS)
def test_another_clock_than_the_hosts_makes_no_step_wrong(bench, clock, said):
    """Kernels that are alike: counts tell them apart, and clocks do where records are lost. lag: records do not keep to the clock that CUPTI says."""
    script = [*START, *(line for i in range(60) for line in [*step(i, *[f"launch block 0 {i + 1} 64 p 64 {i}"] * 4, "sync"), "sleep 2"]), "digest p 256"]
    for lost in ("", ",drop:31"):
        what = f"{clock}{lost}"
        result, run, log = full(bench, what, script, cupti=f"13000,{clock}{lost}")
        known = [r for r in run.ran if r.kind == KERNEL and r.step >= FIRST]
        bench.check(not wrong(run), f"{what}: no kernel is under another step", wrong(run)[:3])
        # Where records are lost, a busy machine measures the clock with an error of whole steps, and may prove nothing: unit/trace_join judges how much.
        bench.check(lost or len(known) == 240, f"{what}: what is known", len(known))
        bench.check("by CUPTI's clock" in result.stderr if said and "lag" in clock else said in result.stderr if said else "CUPTI's clock" not in result.stderr, f"{what}: the log", result.stderr)
        steps = {t["number"] + FIRST: t for t in run.step_times}
        off = [(r.begin - steps[r.step]["begin_ns"], r.begin - steps[r.step]["end_ns"]) for r in known]  # a step waits for its kernels
        bench.check("clock" not in clock or all(since > -500000 and after < 500000 for since, after in off), f"{what}: they lie at their steps", off[:3])


KINDS = {  # of a graph: how many records each launch leaves, of kernels and of others; None: CUPTI does not say whether there are any
    "nothing": (0, 0), "empty": (0, 0), "children": (0, 0), "event": (0, 0), "host": (0, 0), "memory": (0, 0), "off": (0, 0), "not_taken": (0, 0), "copies": (0, 1), "fills": (0, 1),
    "child_kernel": (1, 0), "again": (1, 0), "body": None}
QUIET = pathlib.Path(__file__).with_name("quiet_client.py")


@pytest.mark.since(12040, "conditional nodes in graphs that are launched more than once, and parameters of any kernel")
@pytest.mark.parametrize("how", ["between", "alone"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_leaves_no_record_costs_no_step(bench, kind, how):
    """By itself, with children, or switched on and off: all other launches keep their step, and nothing is said to be missing."""
    command = [sys.executable, QUIET, kind, *(["alone"] if how == "alone" else [])]
    result = bench.run([], None, command=command, timeout=120, DMI_TRACE="full", DMI_CUPTI=CUPTI, DMI_STANDIN_CUPTI="13000")
    plain = bench.run([], None, command=command, timeout=120, preload=False)
    bench.check(result.code == 0 and result.stdout == plain.stdout, "the same bits", result.stderr[-500:])
    run, n = traced(result), 48
    steps = {t["number"]: run.steps[t["step"]].step for t in run.step_times}
    launched = [i for i in range(n) if how == "between" or i % 2]
    eager = [r for r in run.ran if r.kind == KERNEL and r.grid[0] < 1000]
    inner = [r for r in run.ran if r.graph]
    bench.check(sum(r.step >= FIRST and r.grid[0] == steps[r.step - FIRST] + 1 for r in eager) == len(eager) == 4 * (n if how == "between" else n // 2),
                "each kernel outside of the graph is under its step", [r for r in eager if r.step < FIRST or r.grid[0] != steps[r.step - FIRST] + 1][:3])
    bench.check(all(r.step < FIRST or steps[r.step - FIRST] in launched for r in inner), "what the graph ran is under no step that did not launch it", inner[:3])
    if KINDS[kind]:
        on = [i for i in launched if kind != "again" or 16 <= i < 32]
        found = [sum(r.step == at + FIRST and (r.kind == KERNEL) == kernels for r in inner) for kernels in (True, False) for at, i in sorted(steps.items()) if i in on]
        bench.check(found == [KINDS[kind][0]] * len(on) + [KINDS[kind][1]] * len(on), "what it ran is under the step that launched it", found)
        bench.check("of no known step" not in result.stderr and not complete(bench, kind, result)["kernels_unknown"], "nothing is in doubt", result.stderr)
    else:
        bench.check(len([r for r in inner if r.kind == KERNEL]) == len(launched), "each record is there", len(inner))


GRAPHS = ["stream s", *(line for name in "ab" for line in ["capture s", "launch block s 1 64 p 64 1", f"endcapture g{name} s", f"graphexec {name} g{name}"])]


def in_turn(n, every):
    """@n steps of one launch each, of two graphs of the same kernel in turn; the program waits after each @every."""
    return [line for i in range(n) for line in [*step(i, f"graphlaunch {'ab'[i % 2]} s"), *(["ssync s"] if i % every == every - 1 else [])]]


@pytest.mark.since(12000, "updates of execs by cuGraphExecUpdate_v2()")
def test_a_graph_is_told_by_its_id(bench):
    """Two graphs of the same kernel launched in turn: where records are lost and CUPTI does not say so, the id alone says whose a record is."""
    script = [*START, *GRAPHS, *in_turn(60, 10), "graphupdate a gb", "graphdestroy b", *step(60, "graphlaunch a s"), "digest p 256"]
    _, run, log = full(bench, "none lost", script)
    ids = {r.graph for r in run.ran if r.graph}
    bench.check(len(ids) == 2 and not differences(log, run), "each is under its step", (ids, differences(log, run)[:2]))
    for what, cupti, words in (("lost", "13000,lose:7", "by the ids of graphs the records are of others"),
                               ("other ids", "13000,other-graphs", "name graphs by other ids than it gives for them"),
                               ("not told", "13000,fail:cuptiGetGraphExecId:0:1", None)):
        result, run, log = full(bench, what, script, cupti=cupti)
        of = {t["number"] + FIRST: run.steps[t["step"]].step % 2 for t in run.step_times}
        by_step = {(of[r.step], r.graph) for r in run.ran if r.kind == KERNEL and r.step >= FIRST}
        bench.check(what != "lost" or len(by_step) == 2, f"{what}: no kernel is under a step of the other graph", sorted(by_step))
        bench.check(what == "lost" or not differences(log, run), f"{what}: without ids all goes on by counts and names", differences(log, run)[:2])
        bench.check((" ids " in result.stderr) == bool(words) and (words or "") in result.stderr, f"{what}: the log says what was found", result.stderr)


def test_random_delays(bench, seeds):
    script = [*START, *engine(12, 2), "digest p 256"]
    digests = bench.run(script, preload=False).stdout.splitlines()[-2:]
    for seed in range(seeds(4, 60)):
        path = bench.folder / f"delays-{seed}.log"
        result = bench.run(script, None, DMI_TRACE="full", DMI_CUPTI=CUPTI, DMI_STANDIN_LOG=path, DMI_STANDIN_DELAY_SEED=seed + 1, DMI_STANDIN_DELAY_MAX_NS=400000)
        run, log = traced(result), Log(path)
        bench.check(result.stdout.splitlines()[-2:] == digests, f"seed {seed}: the same bits", result.stdout[-200:])
        bench.check(not differences(log, run), f"seed {seed}: what ran, by step", differences(log, run)[:2])


def test_before_cuinit_there_is_no_cupti(bench):
    """A process that has ranges alone, as an engine's scheduler: CUPTI 13.2 would crash it where there is no driver."""
    for tier in ("kernels", "full"):
        result = alike(bench, tier, ["range early", "rangeend"], None, DMI_TRACE=tier, DMI_CUPTI=CUPTI)
        bench.check(len(traced(result).ranges) == 1 and ALONE not in marks(traced(result)) and "libcupti" not in result.stderr, f"{tier}: nothing is tried", result.stderr)


def test_a_second_cuinit(bench):
    """CUPTI is started once a process: all goes on."""
    result, run, log = full(bench, "again", [*START, *engine(2), "init 0", *engine(2), "digest p 256"])
    bench.check(not differences(log, run) and ALONE not in marks(run) and "steps alone" not in result.stderr, "what ran, by step", (differences(log, run)[:2], result.stderr))


def test_each_way_to_steps_alone_is_named(bench):
    script = [*START, *engine(3), "digest p 256"]
    missing = bench.folder / "libnone.so"
    no_cupti = BUILD / "tests" / "preload" / "libplugin.so"
    for what, env, words in (("missing", {"DMI_CUPTI": missing}, f"DMI_CUPTI={missing} cannot be loaded"),
                             ("other", {"DMI_CUPTI": no_cupti}, "lacks cuptiGetVersion"),
                             ("taken", {"DMI_STANDIN_CUPTI": "taken"}, "another profiler has CUPTI (error 39)")):
        result = alike(bench, what, script, None, **{"DMI_TRACE": "full", "DMI_CUPTI": CUPTI, **env})
        run = traced(result)
        bench.check(words in marks(run).get(ALONE, (0, ""))[1] and words in result.stderr, f"{what}: the reason, in log and marks", (run.marks, result.stderr))
        bench.check(len(run.step_times) == 3 and not run.ran, f"{what}: steps go on", len(run.step_times))
        said = subprocess.run([DMI_TRACE, "kernels", result.folders[0]], text=True, capture_output=True, check=True).stdout
        bench.check("steps alone were traced" in said, f"{what}: dmi-trace kernels says it", said)



def test_children(bench):
    """A child before CUDA has a tracer of its own; one after it has none, and the parent's goes on."""
    early = ["fork", *START, *step(2, *forward(2), "sync"), "exit 0", "endfork", *START, *engine(3)]
    forks = [*START, *engine(3), "fork", "stepend", "exit 0", "endfork", *engine(3)]
    for what, script, want in (("early", early, [4, 12]), ("forks", forks, [24])):
        result = alike(bench, what, script, None, DMI_TRACE="full", DMI_CUPTI=CUPTI)
        runs = [traced(result, i) for i in range(len(result.folders))]
        bench.check(sorted(sum(r.step >= FIRST for r in run.ran) for run in runs) == want, f"{what}: each process has its own kernels", (runs, result.stderr))
        for i, run in enumerate(runs):
            bench.check(not wrong(run) and marks(run)[RAN] == (len(run.ran), ""), f"{what}: under their steps, once", run.marks)
            complete(bench, what, result, i)
