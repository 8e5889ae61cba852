# SPDX-License-Identifier: Apache-2.0
"""Whether a trace is complete and agrees with docs/format.md 6.4 to 6.8: dmi-trace check and dmi-dump verify judge it alike. Other commands of dmi-trace on the same runs."""
import json
import subprocess
import sys

import pytest

from harness import BUILD, ROOT

made = pytest.importorskip("made_trace", reason="needs the packages of tools/setup/python.txt", exc_type=ImportError)
from made_trace import BUSY, COPY, ENDED, FIRST, FURTHER, KEPT, KERNEL, LOST, RAN, RAN_LOST, RANGES_LOST, RING, SUMMED, DROPPED, run, step, sums_of  # noqa: E402

sys.path.insert(0, str(ROOT / "python"))
import dmi  # noqa: E402

READ = BUILD / "read" / "libdmi_read.so.1"
DMI_TRACE, DMI_DUMP = BUILD / "tools" / "dmi-trace", BUILD / "tools" / "dmi-dump"
pytestmark = pytest.mark.built(DMI_TRACE, DMI_DUMP, READ)
BEGUN = (made.BEGUN, 0, "kernels")
ACCOUNT = [(RAN, 9), (SUMMED, 9)]


def tool(*words, status=0):
    done = subprocess.run(words, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == status, (words, done.returncode, done.stdout[-1500:], done.stderr[-500:])
    return done.stdout


def judged(folder, wrong):
    """What both tools say of a run: [(clause, how many, the first)]. @wrong: whether they must find something."""
    said, = json.loads(tool(DMI_TRACE, "check", "--json", folder, status=int(wrong)))
    done = subprocess.run([DMI_DUMP, "verify", "--json", folder], text=True, capture_output=True, timeout=60, check=False)
    other, = json.loads(done.stdout)["trace"]
    assert other["wrong"] == said["wrong"] and other["holds"] == said["holds"] and done.returncode == int(not said["holds"]), (other, said, done)
    return said


def test_a_complete_trace(check, tmp_path):
    said = judged(run(tmp_path / "r", *made.right()), False)
    check(said["holds"] and said["complete"] and not said["wrong"], "nothing is wrong", said)
    check((said["stored"], said["ended"], said["ranges_stored"], said["sums"], said["ran"], said["ran_summed"]) == (3, 3, 2, 9, 9, 9), "the account", said)
    check("the trace is complete" in tool(DMI_TRACE, "check", tmp_path / "r"), "in a sentence")


def sums(*wrong):
    """Those of three steps, with the sums of the second one replaced."""
    return [*sums_of(0), *wrong, *sums_of(2)]


AT, STEP = 2000, 1 + FIRST  # when step 1 begins, and how column 3 names it
NO_SHAPE, SHAPE = (0, 0, 0, (0, 0, 0), (0, 0, 0)), (0, 1, 2, (4, 1, 1), (32, 1, 1))
WRONGS = {
    "another step's": (dict(sums=sums((BUSY, "", STEP, AT, 3, 30, 0, 30), (KERNEL, "gemm", STEP + 1, AT, 3, 30, 10, 0))), "sums stand among those of another step", "step 2"),
    "no sum of kind 5": (dict(sums=[(KERNEL, "gemm", STEP, AT, 3, 30, 10, 0)], marks=[BEGUN, (RAN, 3), (RAN_LOST, 3, "no memory"), (SUMMED, 0), (ENDED, 3)]),
                         "without the sum of kind 5", "step 1"),
    "most": (dict(sums=sums((BUSY, "", STEP, AT, 3, 30, 0, 40), (KERNEL, "gemm", STEP, AT, 3, 30, 31, 0))), "sums are less than one of their records takes", "step 1"),
    "sum": (dict(sums=sums((BUSY, "", STEP, AT, 3, 30, 0, 40), (KERNEL, "gemm", STEP, AT, 3, 31, 10, 0))), "more than all can take", "step 1"),
    "busy": (dict(sums=sums((BUSY, "", STEP, AT, 3, 30, 0, 29), (KERNEL, "gemm", STEP, AT, 3, 30, 10, 0))), "sums of kind 5 are busy or idle for longer", "step 1"),
    "idle": (dict(sums=sums((BUSY, "", STEP, AT, 3, 30, 11, 40), (KERNEL, "gemm", STEP, AT, 3, 30, 10, 0))), "sums of kind 5 are busy or idle for longer", "step 1"),
    "busy beyond its records": (dict(sums=sums((BUSY, "", STEP, AT, 3, 31, 0, 40), (KERNEL, "gemm", STEP, AT, 3, 30, 10, 0))), "longer than their records take together", "step 1"),
    "count": (dict(sums=sums((BUSY, "", STEP, AT, 3, 30, 0, 40), (KERNEL, "gemm", STEP, AT, 2, 30, 15, 0))), "another number of records", "step 1"),
    "empty": (dict(sums=sums((BUSY, "", STEP, AT, 3, 30, 0, 30), (KERNEL, "gemm", STEP, AT, 3, 30, 10, 0), (COPY, "", STEP, AT, 0, 0, 0, 0))), "sums are of no record", "step 1"),
    "fields": (dict(sums=sums((BUSY, "", STEP, AT, 3, 30, 0, 30), (KERNEL, "gemm", STEP, AT, 3, 30, 10, 0, SHAPE))), "a field that sums have not", "step 1"),
    "names": (dict(sums=sums((BUSY, "", STEP, AT, 17, 170, 0, 170), *[(KERNEL, f"k{i}", STEP, AT, 1, 10, 10, 0) for i in range(17)]),
                   marks=[BEGUN, (RAN, 23), (SUMMED, 23), (ENDED, 3)]), "more than 16 names", "step 1"),
    "no such step": (dict(sums=[*sums_of(0), *sums_of(1), *sums_of(9)]), "name a step that did not end", "step 9"),
    "two ends": (dict(marks=[BEGUN, *ACCOUNT, (ENDED, 3), (ENDED, 3)]), "once more that the trace ended", "mark 2"),
    "negative": (dict(marks=[BEGUN, *ACCOUNT, (LOST, -1), (ENDED, 3)]), "marks that count are below 0", "a mark of kind 4"),
    "negative end": (dict(marks=[BEGUN, *ACCOUNT, (ENDED, -3)]), "marks that count are below 0", "a mark of kind 5"),
    "no window": (dict(marks=[BEGUN, *ACCOUNT, (KEPT, 0, "1-2"), (ENDED, 3)]), "a text that is no A:B", "a mark of kind 12"),
    "no ring": (dict(marks=[BEGUN, *ACCOUNT, (RING, 0, "3:1"), (ENDED, 3)]), "a text that is no A:B", "a mark of kind 13"),
    "facts": (dict(ranges=[(1, 2, "a", 9, 0, '{"rows": "3"}')]), "no JSON object of integers", "thread 9"),
    "no facts": (dict(ranges=[(1, 2, "a", 9, 0, "[1]")]), "no JSON object of integers", "thread 9"),
    "a range": (dict(ranges=[(2, 1, "a", 9)]), "ranges end before they begin", "thread 9"),
    "a step": (dict(step_times=[step(0), step(1, 2000, 1999), step(2)]), "steps end before they begin", "step 1"),
    "order": (dict(step_times=[step(0), step(2), step(1)]), "out of the order of their numbers", "step 1"),
    "flags": (dict(step_times=[step(0), step(1, flags=1 | 256), step(2)]), "a device time and a reason why not", "step 1"),
    "no flag": (dict(step_times=[step(0), step(1, flags=256), step(2)]), "a time that their flags do not know", "step 1"),
    "gap": (dict(step_times=[step(0), step(1, gap=-4), step(2)]), "a time that their flags do not know", "step 1"),
    "site": (dict(ran=[(FIRST, 5, 6, "gemm")], site=(1, 0), marks=[BEGUN, (RAN, 9), (SUMMED, 8), (ENDED, 3)]), "a site that the run has not", "step 0"),
    "time": (dict(ran=[(FIRST, 6, 5, "gemm")], marks=[BEGUN, (RAN, 9), (SUMMED, 8), (ENDED, 3)]), "after the end of time", "step 0"),
}


@pytest.mark.parametrize("what", WRONGS)
def test_each_contradiction_is_named(check, tmp_path, what):
    parts, clause, first = WRONGS[what]
    said = judged(run(tmp_path / "r", *made.right(**parts)), True)
    check([(w["first"], clause in w["what"]) for w in said["wrong"]] == [(first, True)] and not said["holds"], "it alone", said["wrong"])
    text = tool(DMI_TRACE, "check", tmp_path / "r", status=1)
    check("MISMATCH" in text and clause in text and first in text, "as text", text)


ACCOUNTS = {
    "a step is missing": (dict(step_times=[step(0), step(2)], sums=[*sums_of(0), *sums_of(2)], marks=[BEGUN, (RAN, 6), (SUMMED, 6), (ENDED, 3)]), dict(missing=1, released=0)),
    "the first step is missing": (dict(step_times=[step(1), step(2)]), dict(missing=1, released=0)),
    "a step too few": (dict(marks=[BEGUN, *ACCOUNT, (ENDED, 4)]), dict(missing=0, ended=4)),
    "records": (dict(marks=[BEGUN, (RAN, 10), (SUMMED, 9), (ENDED, 3)]), dict(ran=10)),
    "sums": (dict(marks=[BEGUN, (RAN, 10), (SUMMED, 10), (ENDED, 3)]), dict(ran=10, sums=9)),
    "a window": (dict(marks=[BEGUN, *ACCOUNT, (KEPT, 0, "1:2"), (ENDED, 3)]), dict(kept=[{"first": 1, "end": 2, "records": 0, "summed": 3, "gone": 0}])),
}


@pytest.mark.parametrize("what", ACCOUNTS)
def test_each_account_must_balance(check, tmp_path, what):
    parts, want = ACCOUNTS[what]
    said = judged(run(tmp_path / "r", *made.right(**parts)), True)
    check({key: said[key] for key in want} == want and not said["wrong"], "what is said", said)
    check("MISMATCH" in tool(DMI_TRACE, "check", tmp_path / "r", status=1), "as text")


LOSSES = {
    "ranges": ([(RANGES_LOST, 289760, "900:5000", 5000)], "289760 ranges"),
    "steps that the disk refused": ([(LOST, 512)], "512 steps"),
    "records": ([(RAN, 2), (RAN_LOST, 2, "no memory")], "2 records of what ran"),
    "records that CUPTI dropped": ([(DROPPED, 1)], "1 record that CUPTI dropped"),
}


@pytest.mark.parametrize("what", LOSSES)
def test_what_is_lost_is_no_mismatch_and_no_complete_trace(check, tmp_path, what):
    more, words = LOSSES[what]
    first = 512 if what.startswith("steps") else 0  # the disk took none of these
    parts = dict(step_times=[step(first + i) for i in range(3)], sums=[s for i in range(3) for s in sums_of(first + i)],
                 marks=[BEGUN, *ACCOUNT, *more, (ENDED, first + 3)])
    said = judged(run(tmp_path / "r", *made.right(**parts)), True)
    check(said["holds"] and not said["complete"] and said["released"] == said["missing"] == 0 and said["lost"] == first, "each lost one is counted once", said)
    text = tool(DMI_TRACE, "check", tmp_path / "r", status=1)
    check(f"the trace is not complete: it lacks {words}\n" in text, "in a sentence", text)
    check("not complete" in tool(DMI_DUMP, "verify", tmp_path / "r"), "dmi-dump verify says it; its exit status is about what is there")


def verified(folder):
    """(damage, texts of findings) of Python's verify()."""
    with dmi.open(folder) as opened:
        n = opened.verify()
        return n, [f.text for f in opened.findings if "the trace" in f.text]


@pytest.mark.parametrize("what", WRONGS)
def test_python_asks_the_same_judge(check, tmp_path, monkeypatch, what):
    monkeypatch.setenv("DMI_READ_LIBRARY", str(READ))
    before, none = verified(run(tmp_path / "right", *made.right()))
    n, texts = verified(run(tmp_path / "wrong", *made.right(**WRONGS[what][0])))
    check(not none and n == before + sum("not complete" not in text for text in texts) and any(WRONGS[what][1] in text and WRONGS[what][2] in text for text in texts), "it is damage, by name", (before, n, texts))


def test_python_says_what_lacks_and_what_does_not_balance(check, tmp_path, monkeypatch):
    monkeypatch.setenv("DMI_READ_LIBRARY", str(READ))
    before, _ = verified(run(tmp_path / "right", *made.right()))
    n, texts = verified(run(tmp_path / "lost", *made.right(marks=[BEGUN, *ACCOUNT, (RANGES_LOST, 7, "900:5000", 5000), (ENDED, 3)])))
    check(n == before and [text.partition(": ")[2] for text in texts] == ["the trace is not complete: it lacks 0 steps, 7 ranges and 0 records"], "what is lost is no damage", texts)
    n, texts = verified(run(tmp_path / "few", *made.right(marks=[BEGUN, *ACCOUNT, (ENDED, 4)])))
    check(n == before + 1 and "do not balance" in texts[0], "numbers that do not balance are", texts)


@pytest.mark.parametrize("kind", [KERNEL, FURTHER, COPY])
def test_kernels_of_no_known_step_are_said(check, tmp_path, monkeypatch, kind):
    """All records are there, and the trace does not say what was asked for: which step they are of. Of copies in streams of their own nothing says it."""
    monkeypatch.setenv("DMI_READ_LIBRARY", str(READ))
    unknown = [(BUSY, "", 0, 2000, 3, 30, 0, 30), (kind, "gemm" if kind == KERNEL else "", 0, 2000, 3, 30, 10, 0)]
    folder, kernels = run(tmp_path / "r", *made.right(sums=[*sums_of(0), *unknown, *sums_of(2)])), 0 if kind == COPY else 3
    said = judged(folder, kernels > 0)
    check(said["holds"] and said["complete"] == (not kernels) and (said["ran_unknown"], said["kernels_unknown"], said["steps_overlap"]) == (3, kernels, 0), "the account", said)
    text = tool(DMI_TRACE, "check", folder, status=int(kernels > 0))
    want = ("all records are there, but 3 kernels have no known step", "the log of the process says why") if kernels else ("the trace is complete", "3 of no known step", "copies and fills")
    check(all(words in text for words in want), "in a sentence", text)
    check(want[0] in tool(DMI_DUMP, "verify", folder) and any("3 kernels have no known step" in t for t in verified(folder)[1]) == bool(kernels), "in others")


def test_damaged_ranges_are_damage(check, tmp_path):
    folder = run(tmp_path / "r", *made.right())
    data = bytearray((folder / "seg-000000.dmi").read_bytes())
    data[data.index(b"Forward")] ^= 1
    (folder / "seg-000000.dmi").write_bytes(data)
    done = subprocess.run([DMI_TRACE, "check", folder], text=True, capture_output=True, check=False)
    check(done.returncode == 1 and ": DAMAGED" in done.stdout and "(ranges)" in done.stderr, "by name", (done.stdout, done.stderr))


def test_runs_without_a_trace_and_of_a_kill(check, tmp_path):
    tool(DMI_TRACE, "check", run(tmp_path / "none"), status=2)
    text = tool(DMI_TRACE, "check", run(tmp_path / "r", *made.right(marks=[BEGUN])))
    check("the process ended without ending its trace: what came last is not known" in text, "no mark says how many there were", text)
    for words in (["steps"], ["kernels", "--steps", "7:9"], ["export", "--perfetto", tmp_path / "x"], ["show", "--step", "9"]):
        tool(DMI_TRACE, *words, tmp_path / "none", status=2)
    tool(DMI_TRACE, "kernels", "--steps", "7:9", tmp_path / "r", status=2)


# ---------------------------------------------------------------- show, steps


def test_show_says_what_lies_before_a_step(check, tmp_path):
    """Time of the host is lost between steps: ranges there are shown; and what was lost then."""
    ms = 1_000_000
    folder = run(tmp_path / "r", *made.right(
        step_times=[step(0, ms, 2 * ms), step(1, 614 * ms, 615 * ms), step(2, 616 * ms, 617 * ms)],
        ranges=[(ms // 2, ms - 1, "earlier"), (3 * ms, 613 * ms, "between"), (614 * ms, 615 * ms, "within"), (616 * ms, 617 * ms, "later")],
        marks=[BEGUN, *ACCOUNT, (RANGES_LOST, 40, f"{3 * ms}:{4 * ms}", 4 * ms), (RANGES_LOST, 2, f"{616 * ms}:{617 * ms}", 617 * ms), (ENDED, 3)]))
    text = tool(DMI_TRACE, "show", folder, "--step", "1")
    check("before  612.000 ms on the host since step 0 ended" in text, "the gap on the host", text)
    shown = [line.split() for line in text.splitlines() if line.endswith(("earlier", "between", "within", "later"))]
    check(shown == [["-611.000", "ms", "610.000", "ms", "between"], ["+0.000", "ms", "1.000", "ms", "within"]], "ranges that meet it, or the gap", text)
    check("lost    40 ranges, from -611.000 ms to -610.000 ms of its begin" in text and "2 ranges" not in text, "those that were lost then", text)
    said = json.loads(tool(DMI_TRACE, "show", folder, "--step", "1", "--json"))
    check(said["since_before_ns"] == 612 * ms and said["ranges_lost"] == [{"n": 40, "from_offset_ns": -611 * ms, "to_offset_ns": -610 * ms}], "JSON", said)
    check("before  " not in tool(DMI_TRACE, "show", folder, "--step", "0"), "the first step has none before it")


def test_the_slowest_steps(check, tmp_path):
    """By the host or the device, whichever took longer; sums beside them."""
    n = 300
    host = [(37 * i) % 101 + 1 for i in range(n)]
    device = [(53 * i) % 97 for i in range(n)]
    folder = run(tmp_path / "r", *made.right(step_times=[step(i, 1000 * (i + 1), 1000 * (i + 1) + host[i], device=device[i]) for i in range(n)],
                                             sums=[s for i in range(n) for s in sums_of(i, 2, 5 + i)], marks=[BEGUN, (RAN, 2 * n), (SUMMED, 2 * n), (ENDED, n)]))
    order = sorted(range(n), key=lambda i: (-max(host[i], device[i]), i))
    for most in (1, 7, n, n + 5):
        said = json.loads(tool(DMI_TRACE, "steps", folder, "--slowest", str(most), "--json"))["steps"]
        check([s["number"] for s in said] == order[:most], f"{most} of them, in order", [s["number"] for s in said][:9])
        check([s["busy_ns"] for s in said] == [2 * (5 + i) for i in order[:most]], "with what ran", said[:3])
    each = json.loads(tool(DMI_TRACE, "steps", folder, "--each", "--json"))["steps"]
    check([(s["number"], s["busy_ns"], s["host_ns"]) for s in each] == [(i, 2 * (5 + i), host[i]) for i in range(n)], "--each", each[:3])
    for words in (["--slowest", "0"], ["--slowest", "x"], ["--slowest", "-1"], ["--slowest", "3", "--each"]):
        tool(DMI_TRACE, "steps", folder, *words, status=2)
    tool(DMI_TRACE, "kernels", folder, "--slowest", "3", status=2)


def test_quantiles_of_many_steps(check, tmp_path, long):
    """Beyond 32,768 steps of one size they are within 1/512; each window of --each, of 65,536 steps, has its own sums."""
    n = 140000 if long else 34000
    host = [(7919 * i) % 99991 + 1 for i in range(n)]
    gaps = [(4957 * i) % 2003 - 1000 for i in range(n)]
    entries = [step(i, 10**6 * (i + 1), 10**6 * (i + 1) + host[i], gap=gaps[i], flags=3) for i in range(n)]
    chunks = [(made.STEP_TIMES, made.table(entries[i:i + 10000])) for i in range(0, n, 10000)]
    some = [s for i in range(0, n, 100) for s in sums_of(i, 1, 1000 * (1 + i))]
    chunks += [(made.SUMS, made.sums(*some[i:i + 500])) for i in range(0, len(some), 500)]
    folder = run(tmp_path / "r", *chunks, (made.MARKS, made.marks(BEGUN)))
    group, = json.loads(tool(DMI_TRACE, "steps", folder, "--json"))["groups"]
    for key, values in (("host_ns", host), ("gap_ns", gaps)):
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            want, got = sorted(values)[int(share * (n - 1))], group[f"{key}_{name}"]
            check(abs(got - want) <= abs(want) / 512 + 1, f"{key} {name}", (got, want))
    lines = tool(DMI_TRACE, "steps", folder, "--each").splitlines()
    busy = {i: line.split()[4] for i, line in enumerate(lines[-n:]) if i % 100 == 0}
    check(len(lines) > n and all(float(ms) == round((1 + i) / 1e3, 3) for i, ms in busy.items()), "each has its sums", list(busy.items())[:5])


# ---------------------------------------------------------------- diff, export


def test_diff_says_that_graphs_are_off(check, tmp_path):
    on = run(tmp_path / "on", *made.right(step_times=[step(i, launches=2, graphs=3) for i in range(3)]))
    off = run(tmp_path / "off", *made.right(step_times=[step(i, launches=5) for i in range(3)]))
    text = tool(DMI_TRACE, "diff", on, off)
    check("a step has 2.0 launches of kernels and 3.0 of graphs" in text and "a step has 5.0 launches of kernels and 0.0 of graphs" in text, "launches of a step", text)
    check("A launches graphs, and B none" in text and "launches graphs" not in tool(DMI_TRACE, "diff", on, on), "in a sentence", text)
