# SPDX-License-Identifier: Apache-2.0
"""Each function of CUPTI's that the library calls fails, at one call or at each, or is not there: the program says and computes the same, and what the trace lacks is named.

The stand-in's CUPTI fails by name. One that lacks a function is a copy of it in which the function has another name.
"""
import subprocess

import pytest

from full_trace import COPY, FIRST, KERNEL
from harness import DMI_RUN
from kit import START
from test_trace import complete, step, traced
from test_trace_full import ALONE, CUPTI, DMI_TRACE, RAN, RAN_DROPPED, engine, marks, wrong

pytestmark = pytest.mark.built(DMI_TRACE, DMI_RUN, CUPTI)
ERROR = 999
STEPS = 6
SCRIPT = [*START, *(line for _ in range(2) for line in [*engine(STEPS // 2), "sleep 90"]), "digest p 256"]  # several rounds of the collector in between
RECORDS = 2 * (4 * 3 + 3)  # kernels, those between steps too
NEEDED = ["cuptiGetVersion", "cuptiActivityRegisterCallbacks", "cuptiActivityEnable", "cuptiActivityDisable", "cuptiActivityFlushAll", "cuptiActivityGetNextRecord",
          "cuptiGetStreamIdEx", "cuptiGetContextId", "cuptiActivityGetNumDroppedRecords"]
NOT_NEEDED = ["cuptiActivitySetAttribute", "cuptiGetGraphExecId", "cuptiGetTimestamp"]
ALWAYS, FIRST_CALL = 0, 1


def told(result):
    """All that the program says but whether a step was taken."""
    return result.code, [line for line in result.stdout.splitlines() if line.split()[0] not in ("step", "stepend")]


@pytest.fixture
def runs(bench):
    without = told(bench.run(SCRIPT, preload=False))

    def traced_run(what, tier, **env):
        result = bench.run(SCRIPT, None, **{"DMI_TRACE": tier, "DMI_CUPTI": CUPTI, **env})
        bench.check(told(result) == without, f"{what}: the program notices nothing", (told(result), result.stderr[-600:]))
        run = traced(result)
        bench.check(len(run.step_times) == STEPS and not wrong(run), f"{what}: each step has its times, and no kernel of another's", (len(run.step_times), wrong(run)[:2]))
        complete(bench, what, result)
        return result, run

    return traced_run


def alone(bench, what, result, run, words):
    """Log, mark, manifest and dmi-trace say why steps are alone."""
    problems = [p["sentence"] for p in run.manifest.get("problems", []) if p["reason"] == "steps_alone"]
    bench.check(words in marks(run).get(ALONE, (0, ""))[1] and words in result.stderr and words in " ".join(problems), f"{what}: the reason, in log, mark and manifest",
                (run.marks, problems, result.stderr[-600:]))
    said = subprocess.run([DMI_TRACE, "kernels", result.folders[0]], text=True, capture_output=True, check=True).stdout
    bench.check("steps alone were traced" in said, f"{what}: dmi-trace kernels says it", said)


def whole(bench, what, run):
    """Nothing is missing."""
    kernels = [r for r in run.ran if r.kind == KERNEL]
    bench.check(len(kernels) == RECORDS and sum(r.step >= FIRST for r in kernels) == 4 * STEPS and ALONE not in marks(run), f"{what}: all is there", (len(kernels), run.marks))


def fails(name, n):
    return {"DMI_STANDIN_CUPTI": f"13000,fail:{name}:{n}:{ERROR}"}


@pytest.mark.parametrize("tier", ["full", "kernels"])
@pytest.mark.parametrize("name,words", [("cuptiGetVersion", "does not say its version"), ("cuptiActivityRegisterCallbacks", "records no kernels here"),
                                        ("cuptiActivityEnable", "records no kernels here")])
def test_what_a_start_needs(bench, runs, name, words, tier):
    what = f"{name}, {tier}"
    result, run = runs(what, tier, **fails(name, FIRST_CALL))
    alone(bench, what, result, run, f"{words} (error {ERROR})")
    bench.check(not run.ran and not run.sums, f"{what}: nothing is stored", (run.ran, run.sums))


def test_what_a_start_does_not_need(bench, runs):
    for name, n in (("cuptiActivitySetAttribute", ALWAYS), ("cuptiActivityDisable", ALWAYS)):
        whole(bench, name, runs(name, "full", **fails(name, n))[1])
    for n, kind in enumerate(("copies", "fills", "copies between devices"), 2):
        result, run = runs(kind, "full", **fails("cuptiActivityEnable", n))
        whole(bench, kind, run)
        words = f"CUPTI records no {kind} (error {ERROR})"
        problems = [p["sentence"] for p in run.manifest["problems"] if p["reason"] == "kinds_missing"]
        bench.check(f"{words}\n" in result.stderr and problems == [words], f"{kind}: what it does not record is named", (problems, result.stderr))
        bench.check(any(r.kind == COPY for r in run.ran) == (kind != "copies"), f"{kind}: all else is recorded", run.ran)
    bench.check("records no" not in runs("nothing fails", "full")[0].stderr, "nothing is named where nothing fails")


def test_records_that_do_not_come_back(bench, runs):
    for n in (1, 2):
        whole(bench, f"flush {n}", runs(f"flush {n}", "full", **fails("cuptiActivityFlushAll", n))[1])
    for tier in ("full", "kernels"):
        what = f"no flush, {tier}"
        result, run = runs(what, tier, **fails("cuptiActivityFlushAll", ALWAYS))
        alone(bench, what, result, run, f"CUPTI does not give its last records back (error {ERROR})")
        bench.check(marks(run)[RAN] == (0, ""), f"{what}: none came", run.marks)


def test_records_that_cannot_be_walked(bench, runs):
    for n in (ALWAYS, 1, 3, RECORDS + 1):
        for tier in ("full", "kernels"):
            what = f"record {n}, {tier}"
            result, run = runs(what, tier, **fails("cuptiActivityGetNextRecord", n))
            alone(bench, what, result, run, f"CUPTI does not read its own records (error {ERROR})")
            bench.check(0 < marks(run)[RAN][0] < n if n > 1 else not marks(run)[RAN][0], f"{what}: those before it count", run.marks)


@pytest.mark.parametrize("name", ["cuptiGetStreamIdEx", "cuptiGetContextId"])
def test_streams_that_cupti_does_not_know(bench, runs, name):
    for n in (ALWAYS, 1, 2, 5):
        what = f"{name} {n}"
        result, run = runs(what, "full", **fails(name, n))
        kernels = [r for r in run.ran if r.kind == KERNEL]
        bench.check(len(kernels) == RECORDS, f"{what}: all records are stored", len(kernels))
        bench.check("CUPTI did not know their stream" in result.stderr, f"{what}: the log says that some are of no known step", result.stderr)
        known = sum(r.step >= FIRST for r in kernels)
        bench.check(known >= 4 if n else not known, f"{what}: steps after it have theirs", known)


def test_drops_that_are_not_told(bench, runs):
    name = "cuptiActivityGetNumDroppedRecords"
    for n in (ALWAYS, 1, 2):
        for cupti in ("13000", "13000,drop:5"):
            what = f"{cupti}, drops {n}"
            result, run = runs(what, "full", DMI_STANDIN_CUPTI=f"{cupti},fail:{name}:{n}:{ERROR}")
            dropped = (RECORDS + 1) // 5 if "drop" in cupti else 0
            bench.check(sum(r.kind in (KERNEL, COPY) for r in run.ran) == RECORDS + 1 - dropped, f"{what}: what came is stored", len(run.ran))
            bench.check(marks(run).get(RAN_DROPPED, (0,))[0] == (dropped if n else 0), f"{what}: the count comes with a later answer", run.marks)
            bench.check(("does not say how many records it dropped" in result.stderr) == (not n), f"{what}: the log says where none came", result.stderr)


@pytest.mark.parametrize("cupti", [f"drop:50,fail:cuptiActivityGetNumDroppedRecords:{ALWAYS}", "fail:cuptiActivityGetNextRecord:40", "fail:cuptiGetStreamIdEx:100"])
def test_what_is_lost_makes_no_step_wrong(bench, cupti):
    """Steps that are alike but for their grids, one after the other, of which no wait says where one begins."""
    n = 300
    script = [*START, *(line for i in range(n) for line in step(i, *[f"launch block 0 {i + 1} 64 p 64 1"] * 4))]
    result = bench.run(script, None, DMI_TRACE="full", DMI_CUPTI=CUPTI, DMI_STANDIN_CUPTI=f"13000,{cupti}:{ERROR}")
    run = traced(result)
    bench.check(len(run.step_times) == n and not wrong(run) and run.ran, "no kernel is under another step", (len(wrong(run)), len(run.ran), result.stderr[-900:]))
    complete(bench, cupti, result)


@pytest.mark.parametrize("name", [*NEEDED, *NOT_NEEDED])
def test_a_function_that_is_not_there(bench, runs, tmp_path, name):
    library = tmp_path / "libcupti.so"
    other = b"\0" + name[:-1].encode() + b"_\0"
    library.write_bytes(CUPTI.read_bytes().replace(b"\0" + name.encode() + b"\0", other))
    bench.check(other in library.read_bytes(), f"{name}: the copy lacks it")
    result, run = runs(name, "full", DMI_CUPTI=library)
    if name in NEEDED:
        alone(bench, name, result, run, f"{library} lacks {name}")
    else:
        whole(bench, name, run)
