# SPDX-License-Identifier: Apache-2.0
"""dmi-ctl trace keep: the steps that are asked for are stored record by record, these alone and each record once, as the tier full stores them."""
import collections
import json
import os
import random
import subprocess
import sys
import time

import pytest

import harness
from full_trace import FIRST, KERNEL
from harness import BUILD, DMI_RUN, PRELOAD, ROOT
from kit import CLIENT, START
from test_trace import complete, step, traced
from test_trace_full import CLOCKS, CUPTI, DMI_TRACE, engine, forward, marks
from test_trace_kernels import BUSY, FORWARD, RAN, SUMMED, tool

sys.path.insert(0, str(ROOT / "tests" / "unit"))
import format_reader  # noqa: E402

CTL = BUILD / "tools" / "dmi-ctl"
FAIL_DISK = BUILD / "tests" / "preload" / "libfail_disk.so"
RECORD = 112  # bytes of memory that a record takes
KEPT, RING = 12, 13
pytestmark = pytest.mark.built(DMI_TRACE, DMI_RUN, CTL, CUPTI, FAIL_DISK)


def ask(out, *words):
    return f"spawn {CTL} {out} trace {' '.join(map(str, words))} --json"


def served(bench, script, tier="kernels", code=0, **env):
    """The result, and the answers to @script's questions: it is called with the folder for the runs."""
    out = bench.folder / f"runs-{bench.n}"
    result = bench.run([*START, *script(out)], None, DMI_OUT=out, DMI_CONTROL="1", **{"DMI_TRACE": tier, "DMI_CUPTI": CUPTI, **env})
    bench.check(result.code == code, "the program ends as it would", result.stderr)
    return result, [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def window(first, end):
    return {"first": first, "end": end}


def stored(run):
    """{step: {name: (records, sum of times)}} by records."""
    found = collections.defaultdict(lambda: collections.defaultdict(lambda: (0, 0)))
    for r in run.ran:
        n, ns = found[r.step][r.name]
        found[r.step][r.name] = n + 1, ns + r.end - r.begin
    return found


def summed(run):
    """The same by sums; a step has one part of them."""
    found = collections.defaultdict(dict)
    for s in run.sums:
        if s.kind != BUSY and s.step >= FIRST:
            found[s.step][s.name] = s.n, s.sum
    return found


def whole(bench, what, run, first, end):
    """Records of these steps are there, and no others; they are what the program launched, and what sums are of."""
    got, sums = stored(run), summed(run)
    bench.check(sorted(got) == [FIRST + i for i in range(first, end)], f"{what}: these steps alone", sorted(got))
    bench.check(all({name: n for name, (n, _) in names.items()} == FORWARD for names in got.values()), f"{what}: what each launched, once", got)
    bench.check(all(names == sums[at] for at, names in got.items()), f"{what}: counts and times are those of sums", [(got[at], sums[at]) for at in got])
    steps = {t["number"]: run.steps[t["step"]].step for t in run.step_times}
    wrong = [r for r in run.ran if r.kind == KERNEL and r.grid[0] != steps[r.step - FIRST] + 1]
    bench.check(not wrong, f"{what}: kernels are under their steps", wrong[:3])


def test_keep_stores_the_steps_that_are_asked_for(bench):
    result, (answer,) = served(bench, lambda out: [*engine(20), ask(out, "keep", 5), *engine(4), "digest p 256"])
    run = traced(result)
    bench.check(answer["ok"] and answer["kept"] == window(15, 20) and answer["gone"] == 0 and answer["records"] == 20, "the answer", answer)
    whole(bench, "the last five", run, 15, 20)
    told = marks(run)
    bench.check(told[KEPT] == (0, "15:20") and told[RING] == (0, "0:24") and told[SUMMED][0] == told[RAN][0] - 20, "marks", run.marks)
    said = complete(bench, "keep", result)
    kept = {**window(15, 20), "records": 20, "summed": 20, "gone": 0}
    bench.check(said["kept"] == [kept] and said["ran_stored"] == 20 and said["ran_summed"] + 20 == said["ran"] == said["sums"], "dmi-trace check", said)
    bench.check("kept on demand: steps 15:20, 20 of 20 records" in tool("check", result.folders[0]), "as text")
    lines = {n: tool("show", "--step", str(n), result.folders[0]) for n in (14, 15)}
    bench.check("in sums" in lines[14] and "in sums" not in lines[15] and "on the device" in lines[15], "dmi-trace show", lines)
    count = json.loads(tool("kernels", "--json", "--steps", "15:20", result.folders[0]))["kernels"]
    bench.check({k["name"]: k["n"] for k in count} == {name: 5 * n for name, n in FORWARD.items()}, "dmi-trace kernels counts nothing twice", count)
    file = bench.folder / "trace.pftrace"
    slices = [int(tool("export", "--perfetto", file, "--steps", steps, result.folders[0]).split(", ")[1].split()[0]) for steps in ("10:15", "15:20") if not file.unlink(True)]
    calls = [sum(run.step_times[a]["begin_ns"] <= call[1] and call[0] <= run.step_times[b - 1]["end_ns"] for call in run.calls) for a, b in ((10, 15), (15, 20))]
    bench.check(slices[1] - calls[1] - slices[0] + calls[0] == 20, "the time line has a slice for each kernel that was kept", (slices, calls))
    file.unlink()
    kept = tool("export", "--perfetto", file, "--kept", result.folders[0])
    bench.check(f"{slices[1]} slices" in kept and " 5 steps" in kept, "--kept exports these steps alone", (kept, slices))


@pytest.mark.parametrize("clock", [clock for clock, _ in CLOCKS])
def test_another_clock_than_the_hosts_keeps_no_record_of_another_step(bench, clock):
    """Kernels that are alike, but for the grid. The collector looks at records once before a clock is set, whatever the machine's speed: after the step 24."""
    steps = [line for i in range(60) for line in [*step(i, *[f"launch block 0 {i + 1} 64 p 64 {i}"] * 4, "sync"), f"sleep {150 if i == 24 else 2}"]]
    for lost in ("", ",drop:31"):
        result, (answer,) = served(bench, lambda out: [*steps, ask(out, "keep", 40), "digest p 256"], DMI_STANDIN_CUPTI=f"13000,{clock}{lost}")
        run = traced(result)
        numbers = {t["number"] + FIRST: run.steps[t["step"]].step for t in run.step_times}
        wrong = [r for r in run.ran if r.step >= FIRST and r.kind == KERNEL and r.grid[0] != numbers[r.step] + 1]
        bench.check(not wrong and marks(run)[KEPT] == (0, "20:60"), f"{clock}{lost}: kept kernels are under their steps", (answer, wrong[:3], run.marks))
        n = sum(r.step >= FIRST and r.kind == KERNEL for r in run.ran)
        bench.check((n == answer.get("records") == 160 if not lost else "lag" in clock or n >= (20 if "set" in clock else 80)), f"{clock}{lost}: what is known", (answer, n))
        complete(bench, f"{clock}{lost}", result)


def test_what_was_kept_is_not_stored_again(bench):
    result, answers = served(bench, lambda out: [*engine(6), ask(out, "keep", 2), ask(out, "keep", 2), ask(out, "keep", 4), *step(6, *forward(6), "sync"), ask(out, "keep")])
    bench.check([(a["kept"], a["records"], a["gone"]) for a in answers] == [(window(4, 6), 8, 0), (window(4, 6), 0, 0), (window(2, 6), 8, 0), (window(0, 7), 12, 0)],
                "the answers", answers)
    whole(bench, "all of them", traced(result), 0, 7)
    complete(bench, "again", result)


@pytest.mark.parametrize("room", [1, 17, 40])
def test_what_left_the_ring_is_counted(bench, room):
    """Steps have four kernels, and those between some of them are of no step: whole steps that are in memory when the question comes are kept, and no others."""
    result, (answer,) = served(bench, lambda out: [*engine(30), "sleep 600", ask(out, "keep", 12), "digest p 256"], DMI_TRACE_RING=RECORD * room)
    first = max(18, 30 - room // 4)
    run = traced(result)
    bench.check(answer["kept"] == window(first, 30) and answer["gone"] == first - 18 and answer["records"] == 4 * (30 - first), "the answer", answer)
    whole(bench, "whole steps", run, first, 30)
    told = marks(run)
    bench.check(told[KEPT] == (first - 18, f"{first}:30") and told[RING] == (4 * 30 - room, f"{30 - room // 4}:30"), "marks", run.marks)
    complete(bench, "ring", result)


def test_keep_while_the_device_is_busy(bench):
    """A kernel that does not end: its step's neighbours are stored when it has ended."""
    spin = ["module w spin", "func spin w spin", "hostalloc h 4096", "launch spin 0 1 1 h 16 0"]
    result, (answer,) = served(bench, lambda out: [*engine(3), *step(3, *spin), ask(out, "keep", 4), "store h 1", "sync"])
    run = traced(result)
    bench.check("the device is not done with the last step" in answer["error"], "the answer", answer)
    got = stored(run)
    bench.check(all({name: n for name, (n, _) in got[FIRST + i].items()} == FORWARD for i in range(3)), "the steps before it", got)
    bench.check(marks(run)[KEPT] == (0, "0:4"), "marks", run.marks)
    complete(bench, "busy", result)


def test_other_clients_are_served_meanwhile(bench):
    """While one waits for a device that is not done, others get their answers, and of two that ask for steps the second one is refused."""
    out = bench.folder / "meanwhile"
    spin = ["module v spin", "func spin v spin", "hostalloc h 4096", "launch spin 0 1 1 h 16 0"]
    (bench.folder / "script").write_text("\n".join([*START, *engine(3), *step(3, *spin), "sleep 20000", "store h 1", "sync"]) + "\n")
    env = harness.environment(LD_PRELOAD=PRELOAD, DMI_OUT=out, DMI_CONTROL="1", DMI_TRACE="kernels", DMI_CUPTI=CUPTI)

    def ctl(*words):
        return subprocess.Popen([CTL, out, *words, "--json"], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    with subprocess.Popen([CLIENT, bench.folder / "script", "dlopen"], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        while not process.stdout.readline().startswith("stepend") or not list(out.glob("*/control")):
            pass
        time.sleep(0.5)  # the step with `spin` has begun
        both = [ctl("trace", "keep", "4"), ctl("trace", "keep", "4")]
        time.sleep(0.3)
        status = ctl("status").communicate()[0]
        waits = any(asked.poll() is None for asked in both)
        answers = sorted(json.loads(asked.communicate()[0])["error"] for asked in both)
        process.kill()
    bench.check(waits and "no HookSpec" in status, "another one is answered while the first one waits", (waits, status))
    bench.check("another client has asked for steps" in answers[0] and "the device is not done with the last step" in answers[1], "each gets its own answer", answers)


def test_what_cannot_be_kept_is_said(bench):
    for tier, words in (("full", "no kernels are in memory"), ("steps", "no kernels are in memory")):
        result, (answer,) = served(bench, lambda out: [*engine(2), ask(out, "keep", 2)], tier)
        bench.check(not answer["ok"] and words in answer["error"], f"the tier {tier}", answer)
    _, answers = served(bench, lambda out: [*engine(1), *(ask(out, *words) for words in (("keep", 0), ("keep", "1.5"), ("keep", "x"), ("keep", 1, 2), ("drop",), ()))])
    bench.check(len(answers) == 6 and all("expected: trace keep, or trace keep N" in a["error"] for a in answers), "wrong words", answers)
    _, answers = served(bench, lambda out: [*engine(1), *(f"spawn {CTL} {out} {words} --json" for words in ("status", "sites off x", "overload {}", "edit list", "bank list"))])
    bench.check(len(answers) == 5 and all("there is no HookSpec" in a["error"] for a in answers), "commands for a HookSpec", answers)


@pytest.mark.skipif("DMI_TEST_RUNTIME" in os.environ, reason="the sanitizer's calls stand in front of those that fail")
def test_a_disk_that_refuses_is_said(bench):
    """What it does not take is in no window; the sums of it are lost with it, by name."""
    rules = bench.folder / "rules"
    rules.write_text("")
    out = bench.folder / "refused"
    script = [*START, *engine(4), "sleep 1200", "disk pwritev ENOSPC", ask(out, "keep", 2), "disk", *engine(2)]
    result = bench.run(script, None, DMI_OUT=out, DMI_CONTROL="1", DMI_TRACE="kernels", DMI_CUPTI=CUPTI, FAIL_DISK=rules, before=[FAIL_DISK])
    answer, = (json.loads(line) for line in result.stdout.splitlines() if line.startswith("{"))
    run = traced(result)
    bench.check(answer == {**answer, "ok": False, "error": "the disk has not taken all of them"}, "the answer", answer)
    bench.check(KEPT not in marks(run) and not run.ran and "cannot write the trace" in result.stderr, "no window is marked", (run.marks, result.stderr))
    complete(bench, "refused", result)


def test_no_memory_for_the_ring(bench):
    result, (answer,) = served(bench, lambda out: [*engine(3), ask(out, "keep", 2)], DMI_TRACE_RING="1000000G")
    bench.check("no kernels are in memory" in answer["error"] and "no memory for a ring" in result.stderr, "it is said", (answer, result.stderr))
    run = traced(result)
    bench.check(len(summed(run)) == 3 and RING not in marks(run), "sums go on", run.marks)
    complete(bench, "no memory", result)


def test_keep_while_the_engine_serves(bench, seeds):
    """
    Random moments, delays and windows: no window that is answered lacks a record, and each record in it is there once.

    A process that ends meanwhile answers that the steps will be stored, and stores them.
    """
    for seed in range(seeds(1, 12)):
        draw, out = random.Random(seed), bench.folder / f"serves-{seed}"
        (bench.folder / "script").write_text("\n".join([*START, *engine(400, draw.choice((1, 3))), "digest p 256"]) + "\n")
        room = draw.choice((150, 100000))
        env = harness.environment(LD_PRELOAD=PRELOAD, DMI_OUT=out, DMI_CONTROL="1", DMI_TRACE="kernels", DMI_CUPTI=CUPTI, DMI_TRACE_RING=RECORD * room,
                                  DMI_STANDIN_DELAY_SEED=seed + 1, DMI_STANDIN_DELAY_MAX_NS=3000000)
        answers = []
        with subprocess.Popen([CLIENT, bench.folder / "script", "dlopen"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None:
                time.sleep(draw.uniform(0, 0.4))
                done = subprocess.run([CTL, out, "trace", "keep", str(draw.randint(1, 60)), "--json"], text=True, capture_output=True, check=False)
                answers += [json.loads(line) for line in done.stdout.splitlines()]
        folder, = harness.runs_of(out)
        run = format_reader.Run(folder)
        said = json.loads(tool("check", "--json", folder))[0]
        windows = [range(k["first"], k["end"]) for k in said["kept"]]
        answered = [w for w in (range(a["kept"]["first"], a["kept"]["end"]) for a in answers if a["ok"]) if w]
        late, more = sum("will be stored" in a.get("error", "") for a in answers), len(windows) - len(answered)
        got, sums = stored(run), collections.defaultdict(collections.Counter)
        for s in run.sums:
            sums[s.step].update({} if s.kind == BUSY else {s.name: s.n})
        bench.check(process.returncode == 0 and answered, f"seed {seed}: some steps are kept", answers)
        bench.check(set(got) == {FIRST + i for window in windows for i in window}, f"seed {seed}: these steps alone", windows)
        bench.check(all({name: n for name, (n, _) in names.items()} == FORWARD == sums[at] for at, names in got.items()), f"seed {seed}: whole, and once", got)
        bench.check(said["holds"] and [w for w in windows if w in answered] == answered, f"seed {seed}: dmi-trace check", (said, answers))
        bench.check(more == late or (room == 150 and more < late), f"seed {seed}: what was promised is stored, unless it left a small ring", (said, answers))


def test_a_killed_process_leaves_what_was_kept(bench):
    result, (answer,) = served(bench, lambda out: [*engine(8), ask(out, "keep", 3), *engine(2), "kill9"], code=-9)
    run = traced(result)
    whole(bench, "killed", run, 5, 8)
    done = subprocess.run([DMI_TRACE, "check", "--json", result.folders[0]], text=True, capture_output=True, check=False)
    said, = json.loads(done.stdout)
    bench.check(done.returncode == 0 and said["ran"] is None and said["ran_stored"] == 12 and answer["records"] == 12, "dmi-trace check", done.stdout)


def test_keep_after_a_fork(bench):
    result, (answer,) = served(bench, lambda out: [*engine(6), "fork", "stepend", "exit 0", "endfork", ask(out, "keep", 2), *engine(1)])
    bench.check(answer["kept"] == window(4, 6), "the answer", answer)
    whole(bench, "the parent's", traced(result), 4, 6)
    complete(bench, "fork", result)


def test_keep_before_cuda(bench):
    """A run that begins with a range, as an engine's scheduler has: it keeps nothing, and refuses nothing."""
    out = bench.folder / "early"
    result = bench.run(["range early", "rangeend", ask(out, "keep"), *START, *engine(3), ask(out, "keep")], None, DMI_OUT=out, DMI_CONTROL="1", DMI_TRACE="kernels", DMI_CUPTI=CUPTI)
    before, after = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    bench.check(before["ok"] and (before["kept"], before["records"]) == (window(0, 0), 0), "before cuInit", before)
    bench.check((after["kept"], after["records"]) == (window(0, 3), 12), "after it", after)
    whole(bench, "early", traced(result), 0, 3)


def test_dmi_run_listens_and_dmi_ctl_says_it(tmp_path):
    out = tmp_path / "out"
    (tmp_path / "script").write_text("\n".join([*START, *engine(3), f"spawn {CTL} {out} trace keep 2"]) + "\n")
    env = harness.environment(DMI_CUPTI=CUPTI)
    done = subprocess.run([DMI_RUN, "--trace", "--out", out, "--", CLIENT, tmp_path / "script", "dlopen"], env=env, text=True, capture_output=True, check=True)
    assert "done: 2 steps are stored, from number 1 to before 3; 8 kernels, copies and fills of them were not stored before" in done.stdout, done.stdout + done.stderr
