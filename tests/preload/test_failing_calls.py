# SPDX-License-Identifier: Apache-2.0
"""Every driver call of a program's failing, and every one of the library's, at each occurrence.

failing_calls.c says to the stand-in which calls are its own, so that the same call can be refused with and without the
library: then the program must see the same results and the same outputs. Calls of the library's may fail without the
program seeing anything. In both cases every launch of the site is expected and accounted for, or the site is off by name.
An edit writes once more what each kernel has written: a row that it wrote half would be seen.
"""
import collections
import itertools
import re
import struct

import pytest

import harness
from harness import BUILD
from kit import site, spec
from standin_log import Log

CLIENT = BUILD / "tests" / "preload" / "failing_calls"
pytestmark = [pytest.mark.built(CLIENT, harness.DMI_DUMP), pytest.mark.since(12000, "libraries and graph execs as the program makes them")]
TEXT = spec(site("block", layer="occ"), site("before", when="before"), site("place", dims="[{row: true, count: 'arg[1].u32 / 16'}, {count: 16}]", dtype="f32", write="{}"), head="ring: {bytes: 1M, slots: 512}\nedits: {bytes: 64K}\n")
EDITS = b"editspec: 1\nedits: [{name: same, site: place, do: [{scale: 1}]}]\n"
OUT_OF_MEMORY, UNKNOWN = 2, 999
# Of each of the program's calls, of each of the library's, and of those that both make: how many occurrences in the quick form.
QUICK_OWN, QUICK_OTHERS, QUICK_SHARED = 1, 2, 12


def codes(long):
    return (UNKNOWN, OUT_OF_MEMORY) if long else (UNKNOWN,)


class Outcome:
    """What one run said, and the driver's log of it."""

    def __init__(self, bench, preload, fail=None):
        path = bench.folder / "calls"
        path.unlink(missing_ok=True)
        # Without an event the library does not learn when a launch has ended, and the last flush waits until its bound.
        more = {"DMI_STANDIN_FAIL": fail, "DMI_EXIT_MS": "500"} if fail else {}
        (bench.folder / "edits").write_bytes(b"DMIEDIT1" + struct.pack("<IIQ", 0, len(EDITS), 0) + EDITS)  # as edits_pack() makes them
        self.result = bench.run([], TEXT, command=[CLIENT], preload=preload, DMI_STANDIN_LOG=path, DMI_EDITS=bench.folder / "edits", **more)
        log = Log(path)
        self.own = {call["own"]: call["name"] for call in log.calls if "own" in call}
        self.counts = collections.Counter(call["name"] for call in log.calls)
        self.others = collections.Counter(call["name"] for call in log.calls if "own" not in call)
        self.launches = sum(launch["kernel"] == "block" for launch in log.launches)

    @property
    def said(self):
        return self.result.said()


def difference(one, other):
    """The first line in which two programs differ, for a person."""
    lines = zip(one.result.stdout.splitlines() + ["the end"], other.result.stdout.splitlines() + ["the end"])
    found = next((f"line {i}: {a} / {b}" for i, (a, b) in enumerate(lines) if a != b), "")
    return f"{one.result.code} / {other.result.code} {found}; {one.result.stderr[-500:]}"


def unaccounted(outcome, may_be_off, refused=0):
    """
    A sentence where a launch is neither captured nor counted, or something is reported twice; else ''.

    @refused: launches that the driver may have refused after the tensor before them was recorded.
    """
    result = outcome.result
    lines = result.complaints.splitlines()
    if len(lines) != len(set(lines)):
        return f"reported twice: {lines}"
    if not result.folders:
        return "" if not outcome.launches or "without capture" in result.stderr else "no run"
    verify = harness.run([harness.DMI_DUMP, "verify", result.folders[0]], check=False)
    if verify.returncode:
        return f"dmi-dump verify: {verify.stdout[-300:]} {verify.stderr[-300:]}"
    run = result.run()
    if run.balance():
        return run.balance()
    problems = "; ".join(f"{p['reason']}: {p['sentence']}" for p in run.manifest.get("problems", []))
    off = "switched off" in problems + result.stderr
    if off and not may_be_off:
        return f"switched off: {problems}"
    for tally, more in zip(run.counters.expected, (0, refused)):
        if not outcome.launches <= tally.records <= outcome.launches + more and not (off and tally.records < outcome.launches):
            return f"{tally.records} records expected, {outcome.launches} launches; {problems}"
    return ""


def test_the_programs_own_calls(bench, long):
    """The same results and outputs with and without the library, whichever call the driver refuses."""
    clean = Outcome(bench, False)
    bench.check(clean.result.code == 0 and " 999" not in clean.result.stdout and len(clean.own) > 150, "the program runs", clean.said)
    seen = collections.Counter()
    for n, name in sorted(clean.own.items()):
        seen[name] += 1
        if not long and seen[name] > QUICK_OWN:
            continue
        for code in codes(long):
            without, captured = (Outcome(bench, preload, f"own:{n}:{code}") for preload in (False, True))
            what = f"{name} {seen[name]} fails with {code}"
            bench.check(without.said != clean.said, f"{what}: the program sees it", "")
            bench.check(captured.said == without.said, f"{what}: the program sees the same without the library", difference(captured, without))
            wrong = unaccounted(captured, False, name.startswith("cuLaunch"))
            bench.check(not wrong, f"{what}: every launch is accounted for", f"{wrong}; {captured.result.stderr[-600:]}")


def spread(items, most):
    """Up to @most of them, the first and the last among them."""
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)] if len(items) > most else items


def test_the_librarys_calls(bench, long):
    """Those that the program does not make at that moment: it notices nothing."""
    clean, captured = Outcome(bench, False), Outcome(bench, True)
    bench.check(captured.said == clean.said and not unaccounted(captured, False), "nothing fails: the program sees the same, all is accounted for",
                difference(captured, clean) + unaccounted(captured, False))
    bench.check(captured.result.run().counters.captured[0].records > 10, "the program is captured", captured.result.run().counters.captured)
    said = re.search(r'edit "same" at place: (\d+) rows written of (\d+) due', captured.result.stderr)
    bench.check(said and int(said[1]) > 50, "and rows are written", captured.result.stderr[-800:])
    for name, count in sorted(captured.others.items()):
        numbers = range(1, count + 1)
        for n, code in itertools.product(numbers if long else spread(numbers, QUICK_OTHERS), codes(long)):
            with_failure = Outcome(bench, True, f"other.{name}:{n}:{code}")
            what = f"{name} of the library's, call {n} of {count}, fails with {code}"
            bench.check(with_failure.said == clean.said, f"{what}: the program notices nothing", difference(with_failure, clean))
            wrong = unaccounted(with_failure, True)
            bench.check(not wrong, f"{what}: every launch is accounted for", f"{wrong}; {with_failure.result.stderr[-600:]}")


def test_calls_that_both_make(bench, long):
    """One call of an entry fails, the program's or the library's within it: that is seen as without the library, or not at all."""
    clean, captured = Outcome(bench, False), Outcome(bench, True)
    own = collections.Counter(clean.own.values())
    both = [(name, n) for name in sorted(own) if captured.counts[name] > own[name] for n in range(1, captured.counts[name] + 1)]
    bench.check(len(both) > 40, "both make the same calls", both)
    results = {}
    for name, n in both if long else spread(both, QUICK_SHARED):
        if name not in results:
            results[name] = {clean.said} | {Outcome(bench, False, f"own:{k}:{UNKNOWN}").said for k, other in clean.own.items() if other == name}
        with_failure = Outcome(bench, True, f"{name}:{n}:{UNKNOWN}")
        what = f"{name}, call {n} of {captured.counts[name]}"
        bench.check(with_failure.said in results[name], f"{what}: the program sees its own call's failure, or nothing", difference(with_failure, clean))
        wrong = unaccounted(with_failure, True, name.startswith("cuLaunch"))
        bench.check(not wrong, f"{what}: every launch is accounted for", f"{wrong}; {with_failure.result.stderr[-600:]}")
