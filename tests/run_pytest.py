#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run pytest for meson: run_pytest.py FILE [PYTEST'S OPTION...]

Prints TAP: one line a test, and one a check inside of it (the fixture `check`, or pytest's subtests). What failed is
explained at the end, since meson shows the end of a long log. Exit status 77, the reason last, if every test that was
asked for is skipped. The tests' working folders are removed at the end, unless DMI_TEST_KEEP is set.
"""
import os
import pathlib
import shutil
import signal
import sys
import tempfile

SKIPPED = 77
try:
    import pytest
except ImportError:
    print(f"skipped: pytest is not installed for {sys.executable}")
    sys.exit(SKIPPED)


class Tap:
    """pytest's reports, as TAP (https://testanything.org)."""

    def __init__(self):
        self.n = self.n_passed = 0
        self.failures, self.reasons = [], []
        self.with_checks = set()  # tests that are counted by their checks
        self.latest = "the beginning"

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config):
        config.pluginmanager.unregister(name="terminalreporter")

    def line(self, good, name, remark=""):
        self.n += 1
        print(f"{'ok' if good else 'not ok'} {self.n} - {one_line(name)}{remark}", flush=True)

    def passed(self, name):
        self.n_passed += 1
        self.line(True, name)

    def failed(self, name, report):
        self.line(False, name)
        self.failures.append((name, report))

    def skipped(self, name, reason):
        self.reasons.append(one_line(reason))
        self.line(True, name, f" # SKIP {one_line(reason)}")

    def report(self, name, report):
        if report.skipped:
            self.skipped(name, reason_of(report))
        elif report.failed:
            self.failed(name, report)
        else:
            self.passed(name)

    def pytest_runtest_logstart(self, nodeid):
        self.latest = nodeid.partition("::")[2]

    def pytest_collectreport(self, report):
        if not report.passed:
            self.report(report.nodeid, report)

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.partition("::")[2]
        check = getattr(report, "context", None)
        if check:
            self.with_checks.add(report.nodeid)
            self.report(f"{name}: {check.msg}", report)
        elif report.when == "call":
            if report.nodeid not in self.with_checks or not report.passed:
                self.report(name, report)
            comment(report.capstdout)
        elif not report.passed:
            self.report(f"{name} ({report.when})" if report.failed else name, report)

    def end(self, status):
        """Return: the exit status that meson wants."""
        print(f"1..{self.n}")
        for name, report in self.failures:
            print(f"# FAILED {one_line(name)}")
            comment(report.longreprtext)
            for title, text in report.sections:
                comment(f"{title}:\n{text}")
        if status == pytest.ExitCode.INTERRUPTED:
            comment(f"ended in {self.latest}; no later test was run")
        if status == 0 and self.n_passed or self.failures or not self.reasons:
            return int(status)
        print(f"skipped: {self.reasons[-1]}")
        return SKIPPED


def one_line(text):
    """A TAP line's own marks are the end of the line and #."""
    return " ".join(str(text).replace("#", "").split())


def reason_of(report):
    """Why a test was skipped, or what is known to fail: pytest's own words before it are left out."""
    if hasattr(report, "wasxfail"):
        return f"not yet: {report.wasxfail}"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")


def comment(text):
    for line in text.splitlines():
        print(f"# {line}", flush=True)


def main():
    folder = tempfile.mkdtemp(prefix=f"dmi-{pathlib.Path(sys.argv[1]).stem}-")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # meson's, when the time is over: what failed is explained then, too
    tap = Tap()
    status = pytest.main([*sys.argv[1:], f"--basetemp={folder}/folders"], plugins=[tap])
    if os.environ.get("DMI_TEST_KEEP"):
        comment(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return tap.end(status)


if __name__ == "__main__":
    sys.exit(main())
