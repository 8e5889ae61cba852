# SPDX-License-Identifier: Apache-2.0
"""dmi-trace why: where the time of turns goes. made_trace.py writes runs from docs/format.md; a second program says what each nanosecond of a turn is."""
import json
import random
import re
import resource
import subprocess

import pytest

from harness import BUILD, ROOT

made = pytest.importorskip("made_trace", reason="needs the packages of tools/setup/python.txt", exc_type=ImportError)
from made_trace import BEGUN, BUSY, ENDED, FIRST, KERNEL, RAN, RAN_LOST, SUMMED, run, step  # noqa: E402

DMI_TRACE = BUILD / "tools" / "dmi-trace"
pytestmark = pytest.mark.built(DMI_TRACE)
SAID, NVTX, OVERLAPS, CALL, STOPPED = 1, 2, 3, 4, 5
TURN = 800


def tool(*words, status=0):
    done = subprocess.run([DMI_TRACE, *words], text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == status, (words, done.returncode, done.stdout[-1500:], done.stderr[-500:])
    return done


EARLY = 2  # the status of a run of which no turn is judged, as fewer than 128 came


def why(folder, *words, status=0):
    return json.loads(tool("why", folder, "--json", *words, status=status).stdout)


def steps(n, lengths=None, **more):
    return [step(i, 1000 * (i + 1), 1000 * (i + 1) + (lengths or {}).get(i, TURN), decode=4, rows=4, **more) for i in range(n)]


def shifted(n, *at):
    """The same of each step: (begin, end, ...) from its begin on."""
    return [(1000 * (i + 1) + begin, 1000 * (i + 1) + end, *more) for i in range(n) for begin, end, *more in at]


RANGES = [(0, 150, "Schedule"), (500, 600, "cuMemAlloc_v2", 7, 0, "", CALL), (500, 700, "Sample"), (600, 700, "cuStreamSynchronize_ptsz", 7, 1, "", CALL),
          (0, 800, "Request a", 7, 0, "", OVERLAPS), (0, 800, "elsewhere", 8)]
KERNELS = [(100, 300, "gemm"), (250, 500, "norm")]


def full(folder, n, kernels, ranges, times=None, marks=(), late=(), also=()):
    """A run of the tier full. @late, @also: kernels and ranges beside those of each step."""
    ran = [(i + FIRST, 1000 * (i + 1) + begin, 1000 * (i + 1) + end, name) for i in range(n) for begin, end, name in kernels] + [*late]
    return run(folder, (made.STEP_TIMES, made.table(times or steps(n))), (made.RANGES, made.ranges(*shifted(n, *ranges), *also)), (made.TRACE, made.ran(*ran)),
               (made.MARKS, made.marks((BEGUN, 0, "full"), *(marks or [(RAN, len(ran))]), (ENDED, n))))


def lines(kind):
    return {(line["what"], line["name"]): round(line["ns"]) for line in kind["lines"]}


def test_each_nanosecond_has_one_line(check, tmp_path):
    said = why(full(tmp_path / "r", 160, KERNELS, RANGES))
    kind, = said["usual"]
    check((said["n_judged"], said["n_rare"], said["n_slow"], said["slow"]) == (152, 8, 0, []), "all are judged but the first of their load, and none is slow", said["n_judged"])
    check((kind["phase"], kind["rows"], kind["turns"], kind["by"], kind["median_ns"]) == ("decode", 4, 160, "records", TURN), "the kind of batch", kind)
    check(lines(kind) == {("device busy", ""): 400, ("device idle", "Schedule"): 100, ("device idle: driver", "cuMemAlloc_v2"): 100, ("device idle: the thread waits for it", ""): 100,
                          ("device idle: not seen", ""): 100}, "the lines", lines(kind))
    busy = kind["lines"][0]
    check({part["name"]: round(part["ns"]) for part in busy["of"]} == {"gemm": 200, "norm": 200}, "where two run at once the one that began first counts", busy)
    text = tool("why", tmp_path / "r").stdout
    check("usual   decode, 4 rows: 0.001 ms, the median of 160 turns (noise 0%); 33 of those near it:" in text and "device idle: Schedule" in text, "as text", text)


def paint(kernels, ranges):
    """{(what, name): nanoseconds} of a turn, one nanosecond after the other."""
    out = {}
    for ns in range(TURN):
        running = [k for k in kernels if k[0] <= ns < k[1]]
        does = [r for r in ranges if r[0] <= ns < r[1] and r[3] == 7 and r[6] != OVERLAPS]
        inner = max(does, key=lambda r: (r[6] == CALL, r[4]), default=None)
        if running:
            key = ("busy", "")
        elif not inner:
            key = ("not seen", "")
        else:
            key = ("wait", "") if inner[2].startswith("cuStreamS") else ("call" if inner[6] == CALL else "range", inner[2])
        out[key] = out.get(key, 0) + 1
    return out


WORDS = {"busy": "device busy", "not seen": "device idle: not seen", "wait": "device idle: the thread waits for it", "call": "device idle: driver", "range": "device idle"}


def nested(dice, begin, end, depth, out):
    """Ranges of a thread, as they nest; the innermost are calls of the driver's."""
    at = begin
    while at < end - 20 and dice.random() < 0.8:
        first = dice.randrange(at, end - 10)
        last = dice.randrange(first + 5, end + 1)
        call = dice.random() < 0.3
        out.append((first, last, dice.choice(["cuStreamSynchronize", "cuModuleLoadData"]) if call else f"r{depth}", 7, depth, "", CALL if call else SAID))
        if not call and depth < 3:
            nested(dice, first, last, depth + 1, out)
        at = last


@pytest.mark.parametrize("seed", range(12))
def test_against_one_nanosecond_after_the_other(check, tmp_path, seed):
    dice, ranges, kernels = random.Random(seed), [], []
    nested(dice, 0, TURN, 0, ranges)
    for i in range(dice.randrange(1, 9)):
        begin = dice.randrange(TURN - 1)
        kernels.append((begin, dice.randrange(begin + 1, TURN + 1), f"k{i % 3}"))
    kernels.append((TURN - 1, TURN, "last"))  # a turn is accounted up to the last record that there is
    kind, = why(full(tmp_path / "r", 20, sorted(kernels), ranges), status=EARLY)["usual"]
    want = {(WORDS[what], name): ns for (what, name), ns in paint(kernels, ranges).items()}
    check(lines(kind) == want and sum(want.values()) == TURN, f"seed {seed}", (lines(kind), want))


def test_by_sums_of_steps(check, tmp_path):
    """Without records: the step's own span, where no other step's meets the turn; what lies between its kernels is not placed."""
    n = 40
    sums = [s for i in range(n) for s in [(BUSY, "", i + FIRST, 1000 * (i + 1) + 100, 3, 300, 100, 400), (KERNEL, "gemm", i + FIRST, 1000 * (i + 1) + 100, 2, 250, 200, 0),
                                          (KERNEL, "dmi_close", i + FIRST, 1000 * (i + 1) + 100, 1, 50, 50, 0)]]
    marks = [(BEGUN, 0, "kernels"), (RAN, 3 * n), (SUMMED, 3 * n), (ENDED, n)]
    chunks = made.right(n, step_times=steps(n), ranges=shifted(n, *RANGES), sums=sums, marks=marks)
    kind, = why(run(tmp_path / "r", *chunks), status=EARLY)["usual"]
    check(kind["by"] == "sums" and lines(kind) == {("device busy", ""): 250, ("device busy: DMI's kernels alone", ""): 50, ("device idle: between its kernels", ""): 100,
                                                   ("device idle", "Schedule"): 100, ("device idle: driver", "cuMemAlloc_v2"): 100,
                                                   ("device idle: the thread waits for it", ""): 100, ("device idle: not seen", ""): 100}, "the lines", kind)
    later = [(BUSY, "", i + FIRST, 1000 * (i + 1) + 700, 3, 300, 100, 400) for i in range(n)]  # an engine that schedules ahead
    kind, = why(run(tmp_path / "ahead", *made.right(n, step_times=steps(n), ranges=shifted(n, *RANGES), sums=later, marks=marks)), status=EARLY)["usual"]
    check(kind["by"] == "host" and lines(kind)[("host", "Schedule")] == 150 and sum(lines(kind).values()) == TURN, "what runs beside another step has no account of the device", kind)


def test_records_that_are_lost_tell_nothing_apart(check, tmp_path):
    kind, = why(full(tmp_path / "r", 40, KERNELS, RANGES, marks=[(RAN, 81), (RAN_LOST, 1, "no memory")]), status=EARLY)["usual"]
    check(kind["by"] == "host" and ("device busy", "") not in lines(kind), "nothing tells busy from idle", kind)
    check("nothing tells busy from idle" in tool("why", tmp_path / "r", status=EARLY).stdout, "and the text says so")


def test_a_step_beside_the_usual_ones(check, tmp_path):
    times = steps(41, {40: 1800})
    said = why(full(tmp_path / "r", 41, KERNELS, RANGES, times), "--step", "39")
    check(said["step"]["ns"] == TURN and all(round(line["ns"]) == round(line["usual_ns"]) for line in said["step"]["lines"]), "one that is as usual", said["step"])
    folder = full(tmp_path / "slow", 41, KERNELS, RANGES, times, late=[(FIRST + 40, 42799, 42800, "norm")], also=[(41800, 42400, "Evict", 7)])
    said = why(folder, "--step", "40")["step"]
    more = {line["name"] or line["what"]: round(line["ns"] - line["usual_ns"]) for line in said["lines"]}
    check(said["ns"] == 1800 and said["slow"] is None, "how long it took; too few came to judge it", said)
    check({name: ns for name, ns in more.items() if ns} == {"Evict": 600, "device idle: not seen": 399, "device busy": 1}, "where the excess went", more)
    text = tool("why", folder, "--step", "40").stdout
    check("0.001 ms     +0.001 ms  device idle: Evict" in text and "step    40: 0.002 ms, not judged" in text, "as text", text)


def test_slow_turns(check, tmp_path):
    """In a row they are one entry; the greatest excess comes first; each line says what it has more than usual."""
    dice, ms, slow = random.Random(3), 1000000, {300: 3, 301: 3, 302: 3, 303: 3, 350: 20}
    times, ran, ranges = [], [], []
    for i in range(400):
        begin = i * 40 * ms
        took, more = round(5 * ms * dice.uniform(0.99, 1.01)), slow.get(i, 0) * ms
        times.append(step(i, begin, begin + took + more, decode=4, rows=4))
        ran += [(FIRST + i, begin + ms, begin + took - ms, "gemm")]
        if more:
            ranges.append((begin + took, begin + took + more, *(("cuGraphLaunch", 7, 0, "", CALL) if i == 350 else ("Evict", 7))))
            ran += [(FIRST + i, begin + took + more - 10, begin + took + more, "norm")]
    ran += [(FIRST + 399, 400 * 40 * ms, 400 * 40 * ms + 1, "last")]
    folder = run(tmp_path / "r", (made.STEP_TIMES, made.table(times)), (made.RANGES, made.ranges(*ranges)), (made.TRACE, made.ran(*ran)),
                 (made.MARKS, made.marks((BEGUN, 0, "full"), (RAN, len(ran)), (ENDED, 400))))
    said = why(folder, status=1)
    check([(s["first"], s["last"], s["turns"]) for s in said["slow"]] == [(350, 350, 1), (300, 303, 4)] and said["n_slow"] == 5, "which", said["slow"])
    check(all(abs(s["excess_ns"] - more * ms) < 0.2 * ms * s["turns"] for s, more in zip(said["slow"], (20, 12))), "by how much", said["slow"])
    first = [{line["name"] or line["what"]: line["ns"] - line["usual_ns"] for line in s["lines"]} for s in said["slow"]]
    check(abs(first[0]["cuGraphLaunch"] - 20 * ms) < 20 and abs(first[1]["Evict"] - 3 * ms) < 20, "why", first)
    check(all(abs(ns) < 0.1 * ms for lines in first for name, ns in lines.items() if name not in ("cuGraphLaunch", "Evict")), "and nothing else", first)
    text = tool("why", folder, status=1).stdout
    check("1       step 350: 2" in text and "2       steps 300 to 303, 4 in a row: " in text and "5 of 400 turns are slow" in text and "judged  392 of 400 turns (98%)" in text, "as text", text)
    check(why(folder, "--step", "350", status=1)["step"]["slow"] is True and why(folder, "--step", "351")["step"]["slow"] is False, "of one step")
    many = [step(i, i * 40 * ms, i * 40 * ms + (5 + 5 * (i > 200 and i % 9 == 0)) * ms, decode=4, rows=4) for i in range(400)]
    folder = run(tmp_path / "many", (made.STEP_TIMES, made.table(many)), (made.MARKS, made.marks((BEGUN, 0, "steps"), (ENDED, 400))))
    check(len(why(folder, status=1)["slow"]) == 10 and len(why(folder, "--all", status=1)["slow"]) == 22, "ten, or all")
    check("--all lists the others" in tool("why", folder, status=1).stdout, "which the text says")

def test_a_turn_ends_with_the_last_wait(check, tmp_path):
    """Requests are known, and none goes on: the step's wait ends the turn, and without one there is none."""
    marks = (made.MARKS, made.marks((BEGUN, 0, "steps"), (ENDED, 20)))
    times = [step(i, 1000 * (i + 1), 1000 * (i + 1) + 100, decode=4, rows=4, requests=2, waited=1000 * (i + 1) + (500 if i % 2 else 0) * (i % 2)) for i in range(40)]
    said = why(run(tmp_path / "r", (made.STEP_TIMES, made.table(times)), marks), status=EARLY)
    check(said["n_turns"] == 20 and said["usual"][0]["median_ns"] == 500 and said["none"] == [{"steps": 20, "why": "none of their requests goes on, and no wait ends them"}], "turns", said)


MS = 1000000
# What is done to one turn of 15 ms in place of 5: kernels and ranges more (milliseconds from 5 on, name), how much longer gemm runs, what the step says; and what then speaks against it.
SUSPECTS = {
    "REPLAY": ({"ranges": [(0, 10, "Forward")], "step": {"graphs": 0, "launches": 40}}, {"replayed": 0.6}),
    "STOPPED": ({"ranges": [(0, 10, "no thread of the process ran", 0, 0, "", STOPPED)]}, {"kernels": [(10, 18, "gemm")]}),
    "LAUNCH": ({"ranges": [(0, 10, "cuGraphLaunch", 7, 0, "", CALL)]}, {"step": {"allocations": 1}}),
    "LOAD": ({"ranges": [(0, 10, "cuModuleLoadData", 7, 0, "", CALL)], "step": {"loads": 1}}, {"usual": {"loads": 1}}),
    "ALLOCATION": ({"ranges": [(0, 10, "cuMemAlloc_v2", 7, 0, "", CALL)], "step": {"allocations": 1}}, {"usual": {"allocations": 1}}),
    "NEW_KERNEL": ({"kernels": [(0, 10, "flash")]}, {"gemm": "fused"}),
    "KERNELS": ({"longer": 10}, {"ranges": [(10, 14, "Evict")]}),
    "OWN": ({"kernels": [(0, 10, "dmi_copy_eager")]}, {"kernels": [(0, 10, "dmi_copy_eager"), (10, 14, "norm")]}),
    "RANGE": ({"ranges": [(0, 10, "Evict")]}, {"ranges": [(0, 10, "Evict"), (10, 17, "Bookkeep")]}),
    "LATE": ({"ranges": [(0, 10, "cuStreamSynchronize", 7, 0, "", CALL)]}, {"ranges": [(0, 10, "cuStreamSynchronize", 7, 0, "", CALL), (10, 14, "Evict")]}),
}


def with_a_slow_turn(folder, done):
    """400 turns of 5 ms, and one that is slow: number 350."""
    dice, times, ran, said = random.Random(3), [], [], []
    ranges, kernels, longer = done.get("ranges", []), done.get("kernels", []), done.get("longer", 0)
    more = max([longer, *(end for _, end, *_ in [*ranges, *kernels])])
    for i in range(400):
        begin, slow = i * 40 * MS, i == 350
        took = round(5 * MS * dice.uniform(0.99, 1.01))
        replayed = i % 10 < 10 * done.get("replayed", 1)
        facts = {"graphs": int(replayed), "launches": 1 if replayed else 40, **done.get("usual", {}), **(done.get("step", {}) if slow else {})}
        times.append(step(i, begin, begin + took + slow * more * MS, decode=4, rows=4, **facts))
        ran.append((FIRST + i, begin + MS, begin + took - MS + slow * longer * MS, done.get("gemm", "gemm") if slow else "gemm"))
        ran.append((FIRST + i, begin + took - MS + slow * longer * MS, begin + took - MS + slow * longer * MS + 100, "dmi_close"))
        said.append((begin, begin + MS, "Forward"))
        if slow:
            said += [(begin + took + a * MS, begin + took + b * MS, *rest) for a, b, *rest in ranges]
            ran += [(FIRST + i, begin + took + a * MS, begin + took + b * MS, name) for a, b, name in kernels]
    ran.append((FIRST + 399, 400 * 40 * MS, 400 * 40 * MS + 1, "last"))
    return run(folder, (made.STEP_TIMES, made.table(times)), (made.RANGES, made.ranges(*said)), (made.TRACE, made.ran(*ran)),
               (made.MARKS, made.marks((BEGUN, 0, "full"), (RAN, len(ran)), (ENDED, 400))))


def rows_of_the_table():
    """{id: (words, against)} of the suspects that the tool knows"""
    text = (ROOT / "tools" / "trace" / "suspects.def").read_text().split("*/", 2)[2]
    return {row[0]: row[1:3] for row in re.findall(r'SUSPECT\((\w+), "([^"]*)", "([^"]*)",\s+"[^"]*"\)', text)}


@pytest.mark.parametrize("suspect", SUSPECTS)
def test_a_suspect_by_its_evidence_and_what_is_against_it(check, tmp_path, suspect):
    done, against = SUSPECTS[suspect]
    _, counter = rows_of_the_table()[suspect]
    first, = [s for s in why(with_a_slow_turn(tmp_path / "r", done), status=1)["slow"] if s["first"] == 350]
    check(first["suspects"][0]["suspect"] == suspect and first["suspects"][0]["against"] is None, "the first one, and nothing against it", first["suspects"])
    check(0.9 < first["suspects"][0]["ns"] / first["excess_ns"] <= 1, "it explains the excess", (first["suspects"], first["excess_ns"]))
    text = tool("why", tmp_path / "r", status=1).stdout
    check("likely: " in text and "Against it: nothing" in text, "as text", text)
    other = why(with_a_slow_turn(tmp_path / "against", {**done, **{key: {**done.get(key, {}), **value} if isinstance(value, dict) else value for key, value in against.items()}}), status=1)
    found = [s for s in other["slow"] if s["first"] == 350][0]["suspects"]
    check([s["against"] for s in found if s["suspect"] == suspect] == [counter], "what speaks against it", found)


def test_no_suspect_without_evidence(check, tmp_path):
    """An idle device, and a thread of which nothing is known: nothing known fits."""
    folder = with_a_slow_turn(tmp_path / "r", {"ranges": [(0, 10, "of another thread", 8)]})
    check("nothing known fits" in tool("why", folder, status=1).stdout and not why(folder, status=1)["slow"][0]["suspects"], "none")


def test_each_row_of_the_table_has_a_test_and_stands_in_the_page(check):
    rows, page = rows_of_the_table(), (ROOT / "docs" / "diagnosis.md").read_text()
    check(set(rows) == set(SUSPECTS), "tests", set(rows) ^ set(SUSPECTS))
    for words, against in rows.values():
        check(all(words) and words.replace("%s", "NAME") in page and against in page, f"{words}: in docs/diagnosis.md, with what speaks against it")


def test_what_cannot_be_answered(check, tmp_path):
    few = full(tmp_path / "few", 5, KERNELS, RANGES)
    check("no turn is judged: the judge learns from 128 turns" in tool("why", few, status=2).stderr, "too few turns")
    check("no step with a turn has the number 9" in tool("why", few, "--step", "9", status=2).stderr, "no such step")
    check("no usual account" in tool("why", few, "--step", "2").stdout, "a step whose kind is rare has its account")
    for words in (["why"], ["why", few, few], ["why", few, "--step", "x"], ["why", few, "--steps", "1:2"], ["why", few, "--all", "--step", "2"], ["steps", few, "--all"], ["why", tmp_path / "none"]):
        tool(*words, status=2)
    empty = run(tmp_path / "empty", (made.MARKS, made.marks((BEGUN, 0, "steps"))))
    check("no turn is judged" in tool("why", empty, status=2).stderr, "no step at all")
    check("has no trace" in tool("why", run(tmp_path / "plain"), status=2).stderr, "no trace")


def test_times_that_contradict(check, tmp_path):
    """A clock that was set within a turn, ends before begins, records that end before they begin: no account is negative, and nothing breaks."""
    times = [step(i, 1000 * (i + 1), 1000 * (i + 1) + (TURN if i % 4 else -500), decode=4, rows=4, launch=1000 * (i + 1) + (2000 if i % 5 == 1 else 1)) for i in range(60)]
    said = why(full(tmp_path / "r", 60, [(300, 100, "backwards"), *KERNELS, (TURN, TURN + 1, "last")], [(400, 300, "backwards"), *RANGES], times), status=EARLY)
    check({n["why"] for n in said["none"]} == {"the clock was set within them"} and said["n_turns"] == 36, "turns", said["none"])
    check(all(line["ns"] >= 0 for kind in said["usual"] for line in kind["lines"]), "lines", said["usual"])


def serving(folder, n, begins, times=None, marks=(), gone=()):
    """An engine that says the same request in each of @n steps, which begin at @begins; the times of the steps @gone are lost, and none waits."""
    said = [made.kit.step(i, [(b"a", i, 0, 1)]) for i in range(n)]
    rows = [step(i - sum(g < i for g in gone), b, b + 1, step=i, decode=4, rows=4, requests=1) for i, b in enumerate(begins) if i not in gone]
    return run(folder, (made.kit.STEPS, b"".join(said)), (made.STEP_TIMES, made.table(rows)), (made.MARKS, made.marks((BEGUN, 0, "steps"), *marks, (ENDED, n))))


def test_a_turn_whose_next_step_is_lost_is_none(check, tmp_path):
    begins = [1000 * (i + 1) for i in range(40)]
    said = why(serving(tmp_path / "r", 40, begins, gone=[20], marks=[(made.LOST, 1)]), status=EARLY)
    check(said["none"] == [{"steps": 1, "why": "none of their requests goes on, and no wait ends them"},
                           {"steps": 1, "why": "the step that goes on from them has no times: it was lost, or is not written yet"}], "why", said["none"])
    check(said["n_turns"] == 37 and said["n_steps"] == 39, "step 19 would have taken twice as long", said)


@pytest.mark.parametrize("by", [3600 * 10**9, 15 * 10**6, -3600 * 10**9])
def test_a_clock_that_was_set_makes_no_turn_slow(check, tmp_path, by):
    """The collector sees it up to 20 ms later; the turns are of 5 ms, and 300 is the one in which it was set."""
    ms, base = 10**6, 10**13
    begins = [base + i * 5 * ms + i % 7 * ms // 100 + (by if i > 300 else 0) for i in range(500)]
    seen = base + 300 * 5 * ms + 2 * ms + by + 19 * ms
    said = why(serving(tmp_path / "r", 500, begins, marks=[(made.CLOCK_SET, by, "", seen)]))
    check(said["n_slow"] == 0 and said["n_turns"] >= 490, "no turn is slow for it, and few are lost", (said["slow"], said["none"]))
    text = tool("why", tmp_path / "r").stdout
    check(0 < float(re.search(r"500 steps in ([0-9.]+) s", text)[1]) < 4000, "how long the run was", text)


def test_more_rows_than_a_signed_number_has(check, tmp_path):
    rows = [step(i, 1000 * (i + 1), 1000 * (i + 1) + TURN, decode=4, rows=2**32 - 1 - i % 2) for i in range(20)]
    kind, = why(run(tmp_path / "r", (made.STEP_TIMES, made.table(rows)), (made.MARKS, made.marks((BEGUN, 0, "steps"), (ENDED, 20)))), status=EARLY)["usual"]
    check((kind["phase"], kind["rows"], kind["turns"]) == ("decode", 2**32, 20), "the kind of batch", kind)
    tool("steps", tmp_path / "r")


def test_steps_without_requests_are_counted(check, tmp_path):
    """A warm-up alone says none: the others' turns are not called steps."""
    begins = [1000 * (i + 2) for i in range(40)]
    folder = serving(tmp_path / "r", 40, begins)
    check(why(folder, status=EARLY)["n_by_step"] == 0 and "no requests" not in tool("why", folder, status=EARLY).stdout, "all say requests")
    text = tool("why", full(tmp_path / "none", 20, KERNELS, RANGES), status=EARLY).stdout
    check("of 20 steps the engine says no requests" in text, "none says them", text)


def test_a_step_of_very_many_ranges_and_kernels(check, tmp_path):
    """40,000 of each, of which one outer range meets all: by their product it would take 3 s of a CPU, and takes 0.1."""
    n = 40000
    said = [(1000, 1000 + 100 * n, "Forward")] + [(1000 + 100 * i + 50, 1000 + 100 * i + 90, f"r{i % 5}", 7, 1) for i in range(n)]
    ran = [(FIRST, 1000 + 100 * i, 1000 + 100 * i + 40, f"k{i % 5}") for i in range(n)] + [(FIRST, 1000 + 100 * n - 1, 1000 + 100 * n, "last")]
    folder = run(tmp_path / "r", (made.STEP_TIMES, made.table([step(0, 1000, 1000 + 100 * n)])), (made.RANGES, made.ranges(*said)), (made.TRACE, made.ran(*ran)),
                 (made.MARKS, made.marks((BEGUN, 0, "full"), (RAN, n + 1), (ENDED, 1))))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    found = lines(why(folder, "--step", "0")["step"])
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    check(took < 1.5, "time", took)
    check(found == {("device busy", ""): 40 * n + 1, ("device idle", "Forward"): 20 * n - 1, **{("device idle", f"r{i}"): 8 * n for i in range(5)}}, "the lines", found)


def test_replay_does_not_explain_what_a_stop_does(check, tmp_path):
    folder = with_a_slow_turn(tmp_path / "r", {"ranges": [(0, 8, "no thread of the process ran", 0, 0, "", STOPPED), (8, 10, "Forward")], "step": {"graphs": 0, "launches": 40}})
    slow, = [s for s in why(folder, status=1)["slow"] if s["first"] == 350]
    found = {s["suspect"]: round(s["ns"] / MS) for s in slow["suspects"]}
    check(slow["suspects"][0]["suspect"] == "STOPPED" and found["STOPPED"] == 8 and found["REPLAY"] == 2, "each its part", slow["suspects"])


def test_what_explains_little_is_not_likely(check, tmp_path):
    folder = with_a_slow_turn(tmp_path / "r", {"ranges": [(0, 2, "Evict"), (2, 10, "of another thread", 8)]})
    text = tool("why", folder, status=1).stdout
    check("in part: the thread was in Evict" in text and "likely: " not in text, "2 of 10 ms", text)


def test_a_suspect_says_of_how_much(check, tmp_path):
    """Times of an entry are of all its turns, and those of its lines and suspects of one."""
    dice, times, said = random.Random(3), [], []
    for i in range(400):
        begin, more = i * 40 * MS, 5 * MS if i in (300, 301) else 0
        took = round(5 * MS * dice.uniform(0.99, 1.01))
        times.append(step(i, begin, begin + took + more, decode=4, rows=4))
        said += [(begin + took, begin + took + more, "no thread of the process ran", 0, 0, "", STOPPED)] if more else []
    folder = run(tmp_path / "r", (made.STEP_TIMES, made.table(times)), (made.RANGES, made.ranges(*said)), (made.MARKS, made.marks((BEGUN, 0, "steps"), (ENDED, 400))))
    slow, = why(folder, status=1)["slow"]
    first, = slow["suspects"]
    check(slow["turns"] == 2 and first["of_ns"] == slow["excess_ns"] / 2 and first["ns"] > 0.9 * first["of_ns"], "of the excess of a turn", slow)
    check(f"({first['ns'] / 1e6:.3f} of {first['of_ns'] / 1e6:.3f} ms)" in tool("why", folder, status=1).stdout, "as the text says it")


def test_names_that_a_terminal_must_not_see(check, tmp_path):
    """Control characters, quotes, 4 KB, a name that goes on after a 0: one line each, and JSON that a program reads."""
    names = ["\x1b[31mred\n", 'quote"\\', "k" * 4096, "same\0a", "same\0b"]
    kernels = [(100 * i, 100 * i + 40, name) for i, name in enumerate(names)] + [(TURN - 1, TURN, "last")]
    folder = full(tmp_path / "r", 20, kernels, [(100 * i + 40, 100 * i + 100, name) for i, name in enumerate(names)])
    kind, = why(folder, status=EARLY)["usual"]
    found = {name: ns for (what, name), ns in lines(kind).items() if what == "device idle"}
    check(sum(lines(kind).values()) == TURN and found["same"] == 120 and found["k" * 4096] == 60, "lines", found)
    text = tool("why", folder, status=EARLY).stdout
    check(all(c == "\n" or c >= " " for c in text), "as text", text)
