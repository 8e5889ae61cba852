#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The totals of a test log of meson's: results.py LOG [CPU-FILE]

Prints a line a suite, what was skipped and what failed, by name, the dearest tests in CPU seconds, and last of all
`N passed, N failed, N skipped`.  Counts checks inside a test program where its output tells them (Check, TAP as
tests/run_pytest.py prints it, or a line `N passed, N failed`), the program as one test otherwise.
Exit status 1 if anything failed or nothing ran at all.
"""
import collections
import json
import os
import pathlib
import re
import statistics
import sys

CHECK = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", re.M)
TAP = re.compile(r"^(not )?ok\b[ \t]*\d*[ \t]*-?[ \t]*([^#\n]*)(#[ \t]*skip\S*[ \t]*(.*))?", re.M | re.I)
TOTALS = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
DEAREST = 10
SPEED = "speed"  # what meter.py calls a run of speed.py


def tally(text):
    """Return (passed, [failed by name], [(name, reason) skipped]) inside one program's output, or None."""
    passed, failed, skipped = 0, [], []
    found = False
    for total, failures, errors in CHECK.findall(text):
        found = True
        failed += [""] * (int(failures) + int(errors))
        passed += int(total) - int(failures) - int(errors)
    if re.search(r"^1\.\.\d+", text, re.M):
        for bad, name, skip, reason in TAP.findall(text):
            found = True
            if skip:
                skipped.append((name.strip(), reason.strip()))
            elif bad:
                failed.append(name.strip())
            else:
                passed += 1
    for good, bad, left_out in TOTALS.findall(text):
        found = True
        passed += int(good)
        failed += [""] * int(bad)
        skipped += [("(unnamed)", "")] * int(left_out or 0)
    return (passed, failed, skipped) if found else None


def json_lines(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return [json.loads(line) for line in file if line.strip()]


class Totals:
    """What a run's tests said."""

    def __init__(self):
        self.rows = collections.defaultdict(lambda: [0, 0, 0, 0.0])  # suite: passed, failed, skipped, CPU seconds
        self.failures, self.skips = [], []  # (name, reason)
        self.times_failed = collections.Counter()

    def failed(self, name, reason=""):
        self.failures.append((name, reason))
        self.rows[suite_of(name)][1] += 1

    def add(self, test):
        name, text = label_of(test), test.get("stdout", "") + "\n" + test.get("stderr", "")
        result, row = test["result"], self.rows[suite_of(label_of(test))]
        if result == "SKIP":
            reason = text.strip().splitlines()
            self.skips.append((name, re.sub(r"(?i)^(1\.\.0 # )?skip(ped)?:? *", "", reason[-1]) if reason else ""))
            row[2] += 1
            return
        passed, failed, skipped = tally(text) or (int(result in ("OK", "EXPECTEDFAIL")), [], [])
        if result not in ("OK", "EXPECTEDFAIL"):
            self.failures.append((name, f"{result.lower()}, exit status {test.get('returncode')}"))
            self.failures += [(f"{name}: {inner}", "") for inner in failed if inner]
            failed = failed or [""]
        elif failed:
            self.failures.append((name, f"{len(failed)} inside, though its exit status was 0"))
        self.times_failed[name] += bool(failed)
        self.skips += [(f"{name}: {inner}", reason) for inner, reason in skipped]
        row[0] += passed
        row[1] += len(failed)
        row[2] += len(skipped)

    def sums(self):
        return [sum(row[i] for row in self.rows.values()) for i in range(4)]

    def show(self):
        print(f"{'suite':<16}{'passed':>8}{'failed':>8}{'skipped':>9}{'CPU s':>9}")
        for suite, (passed, failed, skipped, seconds) in sorted(self.rows.items()):
            print(f"{suite:<16}{passed:>8}{failed:>8}{skipped:>9}{seconds:>9.1f}")
        for title, items in (("skipped", self.skips), ("FAILED", self.failures)):
            for name, reason in items:
                print(f"{title}: {name}" + (f": {reason}" if reason else ""))


def label_of(test):
    """meson's "queue / unit/test_ring" -> "unit/test_ring"."""
    return test["name"].rpartition(" / ")[2]


def suite_of(name):
    """The first of a label's parts: "unit", or the build of a sanitizer."""
    return name.partition("/")[0]


def charge(totals, cpu_file, limits):
    """
    Adds what each test cost, and says where it is beyond @limits, or None

    @limits: {"all": CPU seconds, "one": CPU seconds, "speed": what speed.py took where they were set}: seconds of that machine. Where speed.py took
    twice as many beside these tests, the tests did, too. The run fails in CI alone.
    """
    spent, slower = collections.Counter(), 1.0
    judge = totals.failed if os.environ.get("CI") else lambda name, reason: print(f"WARNING: {name}: {reason}")
    lines = json_lines(cpu_file) if cpu_file and pathlib.Path(cpu_file).exists() else []
    speeds = [line["cpu"] for line in lines if line["name"] == SPEED]
    if limits and speeds:
        slower = statistics.median(speeds) / limits["speed"]
        print(f"This machine takes {slower:.2f} times the CPU seconds of the one of tests/budget.toml, by {len(speeds)} runs of speed.py beside the tests")
    for line in (line for line in lines if line["name"] != SPEED):
        spent[line["name"]] += line["cpu"]
        totals.rows[suite_of(line["name"])][3] += line["cpu"]
    if spent:
        print(f"CPU seconds: {spent.total():.0f}; the dearest: " + ", ".join(f"{name} {cpu:.0f}" for name, cpu in spent.most_common(DEAREST)))
    if limits and spent.total() / slower > limits["all"]:
        judge("budget", f"the tests took {spent.total() / slower:.0f} CPU seconds, {limits['all']} are theirs (tests/budget.toml)")
    for name, cpu in spent.items() if limits else ():
        if cpu / slower > limits["one"]:
            judge("budget", f"{name} took {cpu / slower:.0f} CPU seconds, a test has {limits['one']} (tests/budget.toml)")


def report(log, cpu_file=None, limits=None, repeat=1, more_failures=()):
    """
    Print what a log of meson's tells

    @cpu_file: what meter.py wrote beside it. @limits: charge(). @repeat: how often each test ran.
    @more_failures: sentences on what failed outside of the tests.
    Return: did all pass, of at least one?
    """
    totals = Totals()
    try:
        tests = json_lines(log)
    except OSError as error:
        tests = []
        totals.failed(str(log), f"no test log: {error.strerror}")
    for test in tests:
        totals.add(test)
    for test in tests:
        if "bench" in suite_of(label_of(test)):
            print(f"-- {label_of(test)}\n{test.get('stdout', '').rstrip()}")
    charge(totals, cpu_file, limits)
    for sentence in more_failures:
        totals.failed(sentence)
    totals.show()
    if repeat > 1:
        for name, times in totals.times_failed.most_common():
            if times:
                print(f"FAILED {times} of {repeat} times: {name}")
    passed, failed, skipped, _ = totals.sums()
    if passed == 0 and failed == 0 and skipped == 0:
        print("FAILED: no test ran")
        failed = 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return not failed


if __name__ == "__main__":
    sys.exit(0 if report(sys.argv[1], *sys.argv[2:3]) else 1)
