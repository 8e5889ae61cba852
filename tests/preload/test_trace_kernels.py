# SPDX-License-Identifier: Apache-2.0
"""The tier kernels over the stand-in's CUPTI: its sums are those of what the program launches, step by step and name by name, and account for each record that the driver's log has.

The program says and computes the same with and without the library.
"""
import collections
import json
import subprocess

import pytest

import harness
from full_trace import COPY, FIRST, KERNEL, OUTSIDE, UNKNOWN
from harness import BUILD, DMI_RUN
from kit import CLIENT, START, site, spec
from test_trace import alike, complete, step, traced
from test_trace_full import ALONE, CLOCKS, CUPTI, DMI_TRACE, RAN, RAN_DROPPED, RAN_LOST, Log, engine, forward, marks

pytestmark = pytest.mark.built(DMI_TRACE, DMI_RUN, CUPTI)
FURTHER, BUSY, SUMMED = 4, 5, 11
FORWARD = {"first": 1, "block": 2, "last": 1}


def kernels(bench, what, script, text=None, cupti="13000", **env):
    log = bench.folder / f"{what.replace(' ', '-')}.log"
    result = alike(bench, what, script, text, DMI_TRACE="kernels", DMI_CUPTI=CUPTI, DMI_STANDIN_CUPTI=cupti, DMI_STANDIN_LOG=log, **env)
    return result, traced(result), Log(log)


def counts(run):
    """{step: {name: records}} of kernels."""
    found = collections.defaultdict(collections.Counter)
    for s in run.sums:
        if s.kind == KERNEL:
            found[s.step][s.name] += s.n
    return found


def wanted(n):
    """The same of engine(@n), by what it says."""
    outside = [line.split()[1] for i in range(n) for line in forward(i + 1)[:i % 3]]
    return {OUTSIDE: collections.Counter(outside), **{FIRST + i: collections.Counter(FORWARD) for i in range(n)}}


def agrees(bench, what, run):
    """A step's sum of all is that of its other sums, and no time is longer than what it is in."""
    by_step = collections.defaultdict(lambda: [[], []])
    for s in run.sums:
        by_step[s.step][s.kind == BUSY].append(s)
    for at, (names, busy) in by_step.items():
        bench.check(sum(s.n for s in names) == sum(s.n for s in busy), f"{what}: records of {at}", (names, busy))
        bench.check(all(s.most <= s.sum <= s.n * s.most for s in names), f"{what}: times of {at}", names)
        bench.check(sum(s.sum for s in busy) <= sum(s.sum for s in names), f"{what}: busy time of {at}", (names, busy))
        bench.check(all(s.sum + s.most <= s.n_bytes for s in busy), f"{what}: idle time of {at}", busy)


def tool(*words):
    return subprocess.run([DMI_TRACE, *words], text=True, capture_output=True, check=True).stdout


@pytest.mark.parametrize("layout", ["11080", "13050"])
def test_sums_are_those_of_what_ran(bench, layout):
    script = [*START, *engine(6), "launch nothing 0 1 64 p 64 5", *step(9), "digest p 256"]
    result, run, log = kernels(bench, layout, script, cupti=layout)
    bench.check(counts(run) == wanted(6), "kernels by step and name", (counts(run), wanted(6)))
    agrees(bench, layout, run)
    copies = [s for s in run.sums if s.kind == COPY]
    bench.check(sum(s.n for s in copies) == 1 and all(s.how == 2 and s.n_bytes == 256 for s in copies), "the copy to the host", copies)
    n = len(log.launches) + 1
    bench.check(marks(run)[RAN] == (n, "") and marks(run)[SUMMED] == (n, "") and RAN_LOST not in marks(run) and run.marks[0][3] == "kernels", "the account", run.marks)
    bench.check(not run.ran and all(s.registers > 0 for s in run.sums if s.kind == KERNEL), "no record is stored", run.ran)
    said = complete(bench, layout, result)
    bench.check((said["ran"], said["ran_summed"], said["sums"], said["ran_stored"], said["ran_unknown"]) == (n, n, n, 0, 0), "dmi-trace check", said)
    bench.check("of the time of kernels" in result.stderr and "block" in result.stderr, "the log names the dearest", result.stderr)


def test_what_tools_say_of_sums(bench):
    script = [*START, *engine(4), "digest p 256"]
    result, run, _ = kernels(bench, "tools", script)
    told = json.loads(tool("kernels", "--json", result.folders[0]))
    want = collections.defaultdict(lambda: [0, 0])
    for s in run.sums:
        if s.kind != BUSY:
            want[s.name or "copy to the host"][0] += s.n
            want[s.name or "copy to the host"][1] += s.sum
    bench.check({k["name"]: [k["n"], k["sum_ns"]] for k in told["kernels"]} == want, "counts and times by name", (told, want))
    one = json.loads(tool("kernels", "--json", "--steps", "1:2", result.folders[0]))
    bench.check({k["name"]: k["n"] for k in one["kernels"] if k["kind"] == "kernel"} == {"first": 1, "block": 2, "last": 1}, "of one step", one)
    shown = tool("show", "--step", "1", result.folders[0])
    bench.check("on the device, in sums" in shown and "busy" in shown and {line.split()[-1] for line in shown.splitlines()[-3:]} == {"first", "block", "last"}, "dmi-trace show", shown)
    said = json.loads(tool("show", "--json", "--step", "1", result.folders[0]))
    busy = next(s for s in run.sums if s.kind == BUSY and s.step == FIRST + 1)
    bench.check(said["kernels"] == one["kernels"] and said["busy"] == {"records": busy.n, "busy_ns": busy.sum, "span_ns": busy.n_bytes, "longest_ns": busy.most},
                "as JSON", said)
    steps = json.loads(tool("steps", "--json", result.folders[0]))
    each = json.loads(tool("steps", "--each", "--json", result.folders[0]))["steps"][1]
    bench.check((each["busy_ns"], each["longest_idle_ns"]) == (busy.sum, busy.most) and "BUSY ms" in tool("steps", "--each", result.folders[0]), "of each step", each)
    bench.check(0 < steps["busy"] <= 1 and steps["own_share"] == 0 and "something runs for" in tool("steps", result.folders[0]), "dmi-trace steps", steps)
    copy = bench.folder / "recovered"
    subprocess.run([BUILD / "tools" / "dmi-dump", "recover", result.folders[0], "-o", copy], check=True, capture_output=True)
    bench.check(tool("kernels", "--json", copy).split('"kernels"')[1] == tool("kernels", "--json", result.folders[0]).split('"kernels"')[1], "dmi-dump recover keeps sums")


def test_modelled_times_are_those_that_the_tools_tell(bench):
    """To the nanosecond, whatever the machine's load. A kernel of 0.4 s holds back the steps after the first, which loads the code."""
    takes = {"other": 400_000_000, "first": 700_000, "block": 250_000, "last": 90_000}
    model = bench.folder / "times"
    model.write_text("".join(f"kernel {name} {ns}\n" for name, ns in takes.items()) + "copy 1000 1\n")
    script = [*START, *engine(1), "launch other 0 1 64 p 64 5", *engine(4, every=9), "digest p 256"]
    result, run, _ = kernels(bench, "modelled", script, DMI_STANDIN_TIMES=model)
    n = {name: sum(c[name] for c in counts(run).values()) for name in takes}
    told = {k["name"]: (k["n"], k["sum_ns"]) for k in json.loads(tool("kernels", "--json", result.folders[0]))["kernels"]}
    bench.check(told == {**{name: (n[name], n[name] * takes[name]) for name in n}, "copy to the host": (1, 1256)}, "dmi-trace kernels", (told, n))
    step_ns = sum(n * takes[name] for name, n in FORWARD.items())
    each = json.loads(tool("steps", "--each", "--json", result.folders[0]))["steps"]
    bench.check([s["device_ns"] for s in each[1:]] == [step_ns] * 4, "device time of each step", each)
    bench.check([s["busy_ns"] for s in each] == [step_ns] * 4 + [step_ns + 1256], "busy time of each step: the copy comes after the last", each)


@pytest.mark.parametrize("clock", [clock for clock, _ in CLOCKS])
def test_another_clock_than_the_hosts_makes_no_sum_wrong(bench, clock):
    """Steps that differ in their inner kernels alone: first and last kernels, and counts, are alike."""
    views = ["module v view", *[f"func view{i} v view{i}" for i in range(12)]]
    inner = [line for i in range(60) for line in [*step(i, *[f"launch {name} 0 1 1 p 1 1" for name in ("block", f"view{i % 12}", f"view{i % 12}", "block")], "sync"), "sleep 2"]]
    for lost in ("", ",drop:31"):
        what = f"{clock}{lost}"
        result, run, _ = kernels(bench, what, [*START, *views, *inner, "digest p 256"], cupti=f"13000,{clock}{lost}")
        own = {t["number"] + FIRST: {"block", f"view{run.steps[t['step']].step % 12}"} for t in run.step_times}
        found = {at: names for at, names in counts(run).items() if at >= FIRST}
        bench.check(not [at for at, names in found.items() if set(names) - own[at] or max(names.values()) > 2], f"{what}: no kernel is in another step's sum", found)
        known = sum(sum(names.values()) for names in found.values())
        # Where records are lost, what clocks prove depends on how well a busy machine reads them, and after a setting it may be nothing: unit/trace_join judges how much.
        bench.check(known == 240 if not lost else "lag" in clock or "set" in clock or known >= 120, f"{what}: what is known", known)
        agrees(bench, what, run)
        complete(bench, what, result)


def test_a_step_names_sixteen_kernels(bench):
    """No name of a kernel is dear enough to be known before: which are left out is what their times say."""
    views = [f"view{i}" for i in range(12)]
    many = ["module v view", *[f"func {view} v {view}" for view in views], "module w spin", "func spin w spin"]
    names = ["first", "block", "other", "last", *views, "spin"]  # what `block` writes ends `spin` at once
    once = [f"launch {name} 0 1 {1 if name in ('spin', *views) else 64} p 64 1" for name in names]
    script = [*START, *many, *step(1, *once, *once), *step(2, *once[:16]), "digest p 256"]
    result, run, log = kernels(bench, "names", script)
    first, second = ([s for s in run.sums if s.step == FIRST + i and s.kind in (KERNEL, FURTHER)] for i in (0, 1))
    bench.check([len([s for s in all_of if s.kind == KERNEL]) for all_of in (first, second)] == [16, 16], "names of a step", (first, second))
    further = [s for s in first if s.kind == FURTHER]
    bench.check([(s.n, s.name) for s in further] == [(2, "")] and all(s.kind == KERNEL for s in second), "further ones are one sum", (first, second))
    bench.check(min(s.sum for s in first if s.kind == KERNEL) >= further[0].most, "those with the most time are named", first)
    agrees(bench, "names", run)
    complete(bench, "names", result)
    bench.check("(kernels with less time)" in tool("kernels", result.folders[0]), "dmi-trace kernels has a line for them")


def test_own_kernels_beside_a_capture(bench):
    text = spec(site("block", layer="occ"), head="forward:\n  - {kind: step, begin: {kernel: '^first$'}}")
    script = [*START, *engine(4), *forward(2), "sync", "digest p 256"]
    plain = alike(bench, "without a trace", script, text)
    result, run, _ = kernels(bench, "beside", script, text)
    words = [[r.words for r in one.run().of(0)] for one in (plain, result)]
    bench.check(words[0] == words[1] and words[0], "the same is captured")
    own = [sum(s.n for s in run.sums if s.name.startswith("dmi_") and s.step == t["number"] + FIRST) for t in run.step_times]
    bench.check(own == [t["own"] for t in run.step_times] and any(own), "own kernels have sums of their own", own)
    share = json.loads(tool("steps", "--json", result.folders[0]))["own_share"]
    bench.check(0 < share < 1, "and their share of the time is said", share)


@pytest.mark.parametrize("trouble", ["drop:7", "no-time:11", "late"])
def test_records_that_are_lost_are_counted(bench, trouble):
    script = [*START, *engine(60, 2), "digest p 256"]
    result, run, log = kernels(bench, trouble, script, cupti=f"13000,{trouble}")
    told = marks(run)
    n_all, summed = len(log.launches) + 1, sum(s.n for s in run.sums if s.kind == BUSY)
    lost = told.get(RAN_DROPPED, (0,))[0] + told.get(RAN_LOST, (0,))[0]
    bench.check(summed == told[SUMMED][0] and summed + lost == n_all and bool(lost) == (trouble != "late"), "each record is summed or lost by name", (told, n_all))
    more = {at: names - wanted(60)[at] for at, names in counts(run).items() if at != UNKNOWN and names - wanted(60)[at]}
    bench.check(not more, "no step has more than it launched", more)
    agrees(bench, trouble, run)
    said = complete(bench, trouble, result)
    bench.check(said["ran_lost_why"] == ({"they have no times": lost} if trouble == "no-time:11" else {}), "and dmi-trace check says why", said)


def test_each_way_to_steps_alone_is_named(bench):
    script = [*START, *engine(3), "digest p 256"]
    missing = bench.folder / "libnone.so"
    for what, env, words in (("missing", {"DMI_CUPTI": missing}, f"DMI_CUPTI={missing} cannot be loaded"),
                             ("taken", {"DMI_STANDIN_CUPTI": "taken"}, "another profiler has CUPTI (error 39)")):
        result = alike(bench, what, script, None, **{"DMI_TRACE": "kernels", "DMI_CUPTI": CUPTI, **env})
        run = traced(result)
        problems = [p["sentence"] for p in run.manifest["problems"] if p["reason"] == "steps_alone"]
        bench.check(words in marks(run).get(ALONE, (0, ""))[1] and f"DMI_TRACE=kernels: {words}" in result.stderr and words in " ".join(problems),
                    f"{what}: the reason, in log, marks and manifest", (run.marks, problems, result.stderr))
        bench.check(len(run.step_times) == 3 and not run.ran and not run.sums, f"{what}: steps go on", len(run.step_times))
        bench.check("steps alone were traced" in tool("kernels", result.folders[0]), f"{what}: dmi-trace kernels says it")
        complete(bench, what, result)


def test_children(bench):
    """A child before CUDA has a tracer of its own; one after it has none, and the parent's goes on."""
    early = ["fork", *START, *step(2, *forward(2), "sync"), "exit 0", "endfork", *START, *engine(3)]
    forks = [*START, *engine(3), "fork", "stepend", "exit 0", "endfork", *engine(3)]
    for what, script, want in (("early", early, [4, 12]), ("forks", forks, [24])):
        result = alike(bench, what, script, None, DMI_TRACE="kernels", DMI_CUPTI=CUPTI)
        runs = [traced(result, i) for i in range(len(result.folders))]
        bench.check(sorted(sum(s.n for s in run.sums if s.kind == BUSY and s.step >= FIRST) for run in runs) == want, f"{what}: each process has its own kernels",
                    result.stderr)
        for i in range(len(runs)):
            complete(bench, what, result, i)


def test_dmi_run_means_kernels(tmp_path):
    (tmp_path / "script").write_text("\n".join([*START, *engine(3), "digest p 256"]) + "\n")
    env = harness.environment(DMI_CUPTI=CUPTI)
    done = subprocess.run([DMI_RUN, "--trace", "--out", tmp_path / "out", "--", CLIENT, tmp_path / "script", "dlopen"], env=env, text=True, capture_output=True, check=True)
    lines = [line.split("trace: ", 1)[1] for line in done.stderr.splitlines() if "trace: " in line]
    assert len(lines) == 5, done.stderr
    for line, words in zip(lines, ("3 steps", "a step takes", "the device is idle", "of the time of kernels", "dmi-trace steps"), strict=True):
        assert line.startswith(words), lines
