# SPDX-License-Identifier: Apache-2.0
"""A disk that fails while a process captures: what it did not take is counted, what it takes later is captured.

fail_disk.c stands in front of the library, and fails its calls as a file says; the script (`disk`) writes that file. After
each launch the script waits until its record is written or dropped, so it is known which records must be there.
"""
import os

import pytest

import harness
from harness import BUILD
from kit import START, filled, site, spec

FAIL_DISK = BUILD / "tests" / "preload" / "libfail_disk.so"
pytestmark = [pytest.mark.built(FAIL_DISK, harness.DMI_DUMP),
              pytest.mark.skipif("DMI_TEST_RUNTIME" in os.environ, reason="the sanitizer's calls stand in front of those that fail")]
TEXT = spec(site())
FAILED = "records are dropped, the segment cannot be written"
WORDS = {"ENOSPC": "No space left on device", "EDQUOT": "Disk quota exceeded", "EROFS": "Read-only file system", "EIO": "Input/output error"}
CALLS = ("open", "pwritev", "fdatasync", "ftruncate", "rename", "unlink")


def rounds(*parts):
    """A script of launches, each waited for: a number is a launch with that seed, a text a rule of the disk's."""
    lines = []
    for part in parts:
        lines += [f"disk {part}"] if isinstance(part, str) else [f"launch block 0 1 64 p 64 {part}", "flush 9000"]
    return [*START, *lines, "sync", "digest p 256"]


def said(result):
    """What the program said, without what only the library answers."""
    return result.code, [line for line in result.stdout.splitlines() if not line.startswith("flush ")]


def run(bench, what, script, rules="", **env):
    """The program says the same without the library, and `dmi-dump verify` finds nothing wrong. Return: the result"""
    (bench.folder / "rules").write_text(rules)
    env = dict(env, FAIL_DISK=bench.folder / "rules")
    without = bench.run(script, preload=False, **env)
    (bench.folder / "rules").write_text(rules)
    result = bench.run(script, TEXT, before=[FAIL_DISK], **env)
    bench.check(said(result) == said(without), f"{what}: the program says the same without the library",
                f"with {said(result)}, without {said(without)}; {result.stderr[-600:]}")
    for folder in harness.runs_of(result.out) if result.out.is_dir() else []:
        verify = harness.run([harness.DMI_DUMP, "verify", folder], check=False)
        bench.check(verify.returncode == 0, f"{what}: dmi-dump verify", verify.stdout[-600:] + verify.stderr[-600:])
    return result


def captured(bench, what, result, seeds, lost):
    """The records are those of @seeds, @lost more are counted as not written. Return: the run"""
    run_ = bench.captured(what, result, [filled(seed, 64) for seed in seeds])
    if run_:
        dropped = {reason: tally.records for reason, tally in run_.counters.dropped[0].items()}
        bench.check(dropped == ({"write_failed": lost} if lost else {}), f"{what}: what was not written is counted", dropped)
    return run_


@pytest.mark.parametrize("name", WORDS)
def test_a_disk_that_recovers(bench, name):
    bad = f"change {name}"
    result = run(bench, name, rounds(0, 1, bad, 2, 3, 4, "", 5, 6, bad, 7, "", 8))
    run_ = captured(bench, name, result, (0, 1, 5, 6, 8), 4)
    bench.check(result.stderr.count(f"{FAILED}: {WORDS[name]}") == 1 and result.complaints.count("dmi:") == 1, f"{name}: reported once",
                result.stderr)
    if run_:
        problems = [(p["reason"], p["sentence"]) for p in run_.manifest["problems"]]
        bench.check(problems == [("write_failed", WORDS[name])], f"{name}: stands in the manifest", problems)


def test_each_error_is_reported_once(bench):
    parts = [part for i in range(6) for part in (f"pwritev {('ENOSPC', 'EIO')[i % 2]}", i)]
    result = run(bench, "two errors in turns", rounds(*parts, "", 6))
    captured(bench, "two errors in turns", result, (6,), 6)
    bench.check([result.stderr.count(f"{FAILED}: {WORDS[e]}") for e in ("ENOSPC", "EIO")] == [1, 1], "each is reported once", result.stderr)


@pytest.mark.parametrize("durability", ("interval", "each"))
@pytest.mark.parametrize("rule", ("pwritev short 1", "pwritev short 77", "change EINTR again", "pwritev short 50 + change EINTR again"))
def test_nothing_is_lost(bench, rule, durability):
    """Short and interrupted writes are finished, segments begun meanwhile included."""
    result = run(bench, rule, rounds(rule, *range(8)), DMI_SEGMENT_BYTES=2000, DMI_DURABILITY=durability)
    captured(bench, rule, result, range(8), 0)
    bench.check(not result.complaints, f"{rule}: nothing is reported", result.complaints)


@pytest.mark.parametrize("rule, durability", [("pwritev short 300 + pwritev ENOSPC 5 + ftruncate EIO", "interval"), ("fdatasync EIO + ftruncate EIO", "each")],
                         ids=["a torn chunk", "a whole chunk"])
def test_what_cannot_be_cut_back(bench, rule, durability):
    """A large chunk stays in the file, whole or in part; small ones are written in its place, and it is gone."""
    lines = rounds(0, rule, 1, "", 2)
    at = next(i for i, line in enumerate(lines) if line.startswith("launch block 0 1 64 p 64 1"))
    lines[at:at + 1] = ["write p 65536 3", "launch block 0 1 1 p 16384 1"]
    result = run(bench, rule, lines, DMI_DURABILITY=durability)
    captured(bench, rule, result, (0, 2), 1)
    # and where it ends at once after the failure
    result = run(bench, f"{rule}, then the end", lines[:at + 3] + ["disk", *lines[-2:]], DMI_DURABILITY=durability)
    captured(bench, f"{rule}, then the end", result, (0,), 1)


def test_a_segment_that_was_begun(bench):
    """The disk becomes read-only between a segment's creation and its header: its name is used again."""
    result = run(bench, "begun", rounds(0, "pwritev EROFS 4 + unlink EROFS", *range(1, 6), "", *range(6, 12)), DMI_SEGMENT_BYTES=700)
    lost = result.run().counters.dropped[0].get("write_failed") if result.folders else None
    if bench.check(bool(lost) and lost.records < 6, "some records are lost", result.stderr):
        captured(bench, "begun", result, [s for s in range(12) if filled(s, 64) in [r.words for r in result.run().of(0)]], lost.records)


def test_the_folder_vanishes(bench):
    """What is written to a deleted file nobody finds: it is refused, and reported."""
    out = bench.folder / "gone"
    lines = rounds(0, 1, 2)
    at = next(i for i, line in enumerate(lines) if line.endswith(" 64 1"))
    result = run(bench, "vanished", [f"spawn mkdir -p {out}", *lines[:at], f"spawn rm -r {out}", *lines[at:]], DMI_OUT=out)
    bench.check(f"{FAILED}: No such file or directory" in result.stderr and result.stderr.count(FAILED) == 1, "reported once", result.stderr)
    bench.check(not out.exists(), "nothing comes in its place")


def occurrences(name, long):
    return range(1, 30) if long else {"pwritev": range(1, 22, 2), "open": range(1, 12, 3)}.get(name, (1, 3))


@pytest.mark.parametrize("name", CALLS)
def test_every_call(bench, name, long):
    """From the first one on, which makes the run, to the last, which closes it: each failing once."""
    for error in WORDS if long else ["ENOSPC"]:
        for n in occurrences(name, long):
            what = f"{name} {n} {error}"
            result = run(bench, what, rounds(*range(5)), rules=f"{name} {error} {n}\n", DMI_SEGMENT_BYTES=1200, DMI_DURABILITY="each")
            lines = result.complaints.splitlines()
            bench.check(len(lines) == len(set(lines)) <= 2, f"{what}: each reason is reported once", lines)
            if not result.folders:
                bench.check("without capture" in result.stderr and not result.out.exists(), f"{what}: no run, and it is said", result.stderr)
                continue
            run_ = result.run()
            c = run_.counters
            closed = c.state == c.CLOSED or "closing the run" in result.stderr
            bench.check(closed and c.expected[0].records == 5 == c.captured[0].records + c.dropped_sum(0).records
                        and len(run_.of(0)) == c.captured[0].records, f"{what}: all is counted",
                        f"{c.expected} {c.captured} {c.dropped} {len(run_.of(0))} {result.stderr}")
