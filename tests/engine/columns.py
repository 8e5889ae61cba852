# SPDX-License-Identifier: Apache-2.0
"""A suite that nobody here wrote, run without the library, with it, with a spec that captures, and with a trace of the tier full.

Every test must have one outcome in all columns. Three account for every launch of the third column, who do not know of each
other: the driver's call log says how many there were, the run's counters what became of them, and the driver's own dumps what
the captured ones held. The trace of the fourth column has each launch of the call log once, and none under a step that did not
launch it.
"""
import bisect
import collections
import concurrent.futures
import fcntl
import os
import shutil
import subprocess
import sys
import time
from xml.etree import ElementTree

import pytest

import harness
from harness import DMI_DUMP, DMI_RUN, PRELOAD, Counters
from segments import read_run
from standin_log import Log, read_dumps, read_log

sys.path[:0] = [str(harness.ROOT / "tests" / folder) for folder in ("unit", "preload")]
import format_reader  # noqa: E402
import full_trace  # noqa: E402

# What is captured at every launch: site, pointer as the spec says it, where the driver's dumps find it, bytes. A
# parameter that is no pointer, or one to fewer bytes, is a counted drop. A suite may put its own in their place.
SITES = (("first", "arg[0]", 0, 16), ("byte", "arg[0]", 0, 1), ("second", "param[8]", 8, 16))
NAMES = ("without", "idle", "captured", "traced")
# What a fifth column has, for suites that ask for it: a place at every launch, and an edit there that takes no request.
PLACE = """hookspec: 1
name: places
sites:
  - {name: place, kernel: '.*', pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 1}, {count: 4}], write: {}}
"""
OFF = """editspec: 1
edits:
  - {name: 'off', site: place, requests: never, do: [zero]}
"""
# Tests that end processes of theirs by a signal: what these had launched by then may be lost, and dmi-dump says so.
ENDING = ()
# A pytest plugin of ours: when each test began, in the clock of the driver's call log.
MARKS = """
import os
import time


def pytest_runtest_logstart(nodeid, location):
    with open(os.environ["COLUMN_MARKS"], "a") as marks:
        marks.write(f"{time.monotonic_ns()} {nodeid}\\n")
"""


def spec():
    """The HookSpec of SITES."""
    return "\n".join(["hookspec: 1", "name: pointers", "overload: {mode: complete, wait_ms: 10000}", "sites:", *(
        f"  - {{name: {name}, kernel: '.*', pointer: '{pointer}', dtype: u8, dims: [{{row: true, count: {n}}}], row: none}}"
        for name, pointer, _, n in SITES)]) + "\n"


class Column:
    """One run of the suite: {test: (outcome, message)}, and where it left what."""

    def __init__(self, folder, name):
        self.name, self.folder = name, folder / name
        self.out, self.report = self.folder / "out", self.folder / "tests.xml"
        self.seconds, self.outcomes = 0.0, {}

    def settings(self):
        """The environment that makes the column what it is."""
        if self.name in ("without", "edited"):
            return {}
        more = {"LD_PRELOAD": PRELOAD, "DMI_LOG": self.folder / "dmi.log", "DMI_OUT": self.out, "DMI_DURABILITY": "none"}
        if self.name == "captured":
            path = self.folder / "spec.yaml"
            path.write_text(spec())
            more |= {"DMI_SPEC": path, "DMI_STANDIN_LOG": self.folder / "calls-%p",
                     "DMI_STANDIN_DUMP": ";".join(f"after {at} {n} .*" for _, _, at, n in SITES),
                     "DMI_STANDIN_DUMP_FILE": self.folder / "dumps-%p"}
        if self.name == "traced":
            more |= {"DMI_TRACE": "full", "DMI_TRACE_STEP": "kernel:.", "DMI_CUPTI": harness.STANDIN / "cupti" / "libcupti.so.13", "DMI_STANDIN_LOG": self.folder / "calls-%p"}
        return more

    def under(self):
        """The words before the suite's command."""
        if self.name != "edited":
            return []
        path, edits = self.folder / "spec.yaml", self.folder / "edits.yaml"
        path.write_text(PLACE)
        edits.write_text(OFF)
        return [DMI_RUN, "--spec", path, "--edits", edits, "--lenient", "--out", self.out, "--log", self.folder / "dmi.log", "--"]

    def run(self, command, cwd, env):
        """pytest's @command, with a report of its own; a suite that dies leaves no outcomes."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.folder / "column_marks.py").write_text(MARKS)
        env = harness.environment(**env, **self.settings(), COLUMN_MARKS=self.folder / "marks")
        env.pop("PYTEST_ADDOPTS", None)  # they are those of our own tests
        env["PYTHONPATH"] = f"{self.folder}:{env.get('PYTHONPATH', '')}"
        started = time.monotonic()
        with open(self.folder / "tests.log", "wb") as log:
            subprocess.run([*map(str, [*self.under(), *command]), "-p", "column_marks", f"--junitxml={self.report}"], cwd=cwd, env=env,
                           stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
        self.seconds = time.monotonic() - started
        if self.report.exists():
            self.outcomes = read_report(self.report)


def read_report(path):
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = ("passed", "")
        for kind in ("failure", "error", "skipped"):
            if case.find(kind) is not None:
                found[name] = (kind, case.find(kind).get("message") or "")
    return found


def marks_of(column):
    """When its tests began, and their names."""
    marks = column.folder / "marks"
    lines = [line.split(maxsplit=1) for line in marks.read_text().splitlines()] if marks.exists() else []
    return [int(start) for start, _ in lines], [name for _, name in lines]


def tests_that_launch(column):
    """How many of its tests launched a kernel."""
    starts, _ = marks_of(column)
    found = set()
    for path in column.folder.glob("calls-*"):
        found |= {bisect.bisect(starts, r["t"]) for r in read_log(path)
                  if r["ev"] == "call" and r["name"].startswith("cuLaunch") and r["result"] == 0}
    return len(found)


def run_columns(folder, command, cwd, env):
    """The first column alone, since what it compiles stays in caches; the others two at a time."""
    columns = [Column(folder, name) for name in NAMES]
    columns[0].run(command, cwd, env)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda column: column.run(command, cwd, env), columns[1:]))
    return columns


def ended_in(marks, calls):
    """Whether the process was begun in a test that may end it by a signal."""
    starts, names = marks
    first = next(read_log(calls), None) if calls.exists() else None
    begun = bisect.bisect(starts, first["t"]) if first else 0
    return begun > 0 and names[begun - 1].split("::")[-1] in ENDING


class Account:
    """What became of the launches of all processes of a column."""

    def __init__(self, column):
        self.expected = self.launches = 0
        self.by_site = [0] * len(SITES)
        self.dropped = collections.Counter()
        self.wrong = []
        self.marks = marks_of(column)
        self.runs = harness.runs_of(column.out)
        for run in self.runs:
            self.add(run, column)
        self.wrong += without_run(column, {Counters(run).pid for run in self.runs})

    def add(self, run, column):
        counters = Counters(run)
        calls = column.folder / f"calls-{counters.pid}"
        launches = launches_of(calls)
        self.launches += len(launches)
        verify = harness.run([DMI_DUMP, "verify", run], check=False)
        if verify.returncode:
            self.wrong.append(f"dmi-dump verify {run}: {verify.stdout[-300:]}{verify.stderr[-300:]}")
        if counters.state != Counters.CLOSED:
            if not ended_in(self.marks, calls):
                self.wrong.append(f"{run.name} was not closed")
            return
        for i, (site, *_) in enumerate(SITES):
            expected, captured = counters.expected[i].records, counters.captured[i].records
            dropped = {reason: tally.records for reason, tally in counters.dropped[i].items()}
            self.expected += expected
            self.by_site[i] += captured
            self.dropped.update(dropped)
            if expected != len(launches):
                self.wrong.append(f"{run.name} {site}: {expected} records expected, {len(launches)} launches in the "
                                  "driver's log")
            if captured + sum(dropped.values()) != expected:
                self.wrong.append(f"{run.name} {site}: {captured} captured + {dropped} dropped is not {expected}")
        left_alone = [dropped.get("unsupported", 0) for dropped in ({reason: tally.records for reason, tally in site.items()} for site in counters.dropped)]
        self.compare(run, launches, column.folder / f"dumps-{counters.pid}", left_alone)

    def compare(self, run, launches, dumps, left_alone):
        """The records are what the driver dumped, at exactly those launches that have enough at the pointer. @left_alone: how many of a site's launches were in
        graphs that DMI leaves alone, and dropped for that."""
        held = {(dump.rule, dump.seq): dump.data for dump in read_dumps(dumps)} if dumps.exists() else {}
        records, _ = read_run(run)
        for i, (site, _, _, n) in enumerate(SITES):
            wanted = [(launch, held[i, launch["seq"]]) for launch in launches if len(held.get((i, launch["seq"]), b"")) == n]
            found = [record.data for record in records if record.site == i]
            if not len(wanted) - left_alone[i] <= len(found) <= len(wanted):
                self.wrong.append(f"{run.name} {site}: {len(found)} records, {len(wanted)} launches with {n} bytes there")
            differ = [f"{launch['seq']} of {launch['kernel']}: captured {got.hex()}, the driver dumped {data.hex()}"
                      for got, (launch, data) in zip(found, wanted) if got != data]
            if len(found) != len(wanted):  # which launches have no record, the log does not say
                strangers = collections.Counter(found) - collections.Counter(data for _, data in wanted)
                differ = [f"{data.hex()}: captured, and dumped by no launch" for data in strangers]
            if differ:
                self.wrong.append(f"{run.name} {site}: {len(differ)} differ, the first at launch {differ[0]}")

    def __str__(self):
        drops = ", ".join(f"{reason} {n}" for reason, n in sorted(self.dropped.items())) or "none"
        return (f"{self.launches} launches in {len(self.runs)} processes, {len(SITES)} sites: {sum(self.by_site)} records captured "
                f"+ dropped ({drops}) = {self.expected}")


class Traced:
    """What the trace of each process of a column has, beside the driver's call log."""

    def __init__(self, column):
        self.launches = self.unknown = 0
        self.wrong = []
        self.marks = marks_of(column)
        runs = [format_reader.Run(folder) for folder in harness.runs_of(column.out)]
        for run in runs:
            self.add(run, column)
        self.wrong += without_run(column, {run.manifest["pid"] for run in runs})

    def add(self, run, column):
        calls = column.folder / f"calls-{run.manifest['pid']}"
        log = Log(calls) if calls.exists() else None
        if not log or not log.launches or ended_in(self.marks, calls):
            return
        kernels = [r for r in run.ran if r.kind == full_trace.KERNEL]
        want, got = (sum(found(run).values(), collections.Counter()) for found in (lambda run: full_trace.launched(log, run), full_trace.ran))
        self.launches += len(log.launches)
        self.unknown += sum(r.step == full_trace.UNKNOWN for r in kernels)
        if want != got:
            self.wrong.append(f"{run.folder.name}: of {len(log.launches)} launches {sum((want - got).values())} are not in the trace, {sum((got - want).values())} others are")
        under = [f"{n} of {key}" for step, _, more in full_trace.differences(log, run) if step != full_trace.UNKNOWN for key, n in more.items()]
        if under:
            self.wrong.append(f"{run.folder.name}: under a step that did not launch it: {under[:3]}")


def without_run(column, pids):
    """Complaints: processes that launched kernels, by the driver's call log, and are none of @pids, which left runs."""
    return [f"process {path.name} launched kernels and left no run" for path in column.folder.glob("calls-*")
            if int(path.name.split("-")[1]) not in pids and launches_of(path)]


def launches_of(path):
    """The application's own launches in a call log: ours are left out."""
    return [r for r in read_log(path) if r["ev"] == "launch" and not r["kernel"].startswith("dmi_")] if path.exists() else []


def judge(columns, cannot, check, subtests):
    """A check for each test of a finished run, and what holds of all. @cannot: {a test's name: why it cannot pass here}."""
    plain = columns[0]
    for name, (outcome, message) in sorted(plain.outcomes.items()):
        others = {column.name: column.outcomes.get(name, ("absent", "")) for column in columns[1:]}
        differs = [f"{other} {result[0]}: {result[1][:200]}" for other, result in others.items() if result[0] != outcome]
        reason = cannot.get(name.split("::")[-1].split("[")[0])
        if differs:
            check(False, name, f"{outcome} without the library; {'; '.join(differs)}: see {plain.folder.parent}")
        elif outcome == "passed":
            check(not reason, name, f"passes, and is listed as what cannot: {reason}")
        elif outcome == "skipped" or reason:
            with subtests.test(name):
                pytest.skip(reason or message)
        else:
            check(False, name, f"{message}: see {plain.folder}/tests.log")
    for column in columns:
        check(bool(column.outcomes) and set(column.outcomes) == set(plain.outcomes), f"the column {column.name} ran to its end",
              f"{len(column.outcomes)} tests, {column.seconds:.0f} s")
    check(not harness.runs_of(columns[1].out), "nothing is written without a spec")
    account = Account(columns[2])
    check(not account.wrong, "every launch is accounted for", account.wrong[:5])
    for (site, *_), n in zip(SITES, account.by_site):
        check(n > 0, f"the site {site} was captured: {n} records")
    traced = Traced(columns[3])
    check(traced.launches > 0 and not traced.wrong, "the trace has each launch once, under its step or no known one", traced.wrong[:5])
    counts = collections.Counter(outcome for outcome, _ in plain.outcomes.values())
    print(f"{len(plain.outcomes)} tests, {tests_that_launch(columns[2])} of them launch kernels: {dict(counts)}; seconds: "
          f"{', '.join(f'{c.name} {c.seconds:.0f}' for c in columns)}")
    print(account)
    print(f"traced: {traced.launches} launches, {traced.unknown} of them of no known step")


def step(what, command, log, **options):
    """A step of getting or building a suite: if it fails the suite is skipped, by name."""
    with open(log, "ab") as out:
        if subprocess.run([str(w) for w in command], stdout=out, stderr=out, stdin=subprocess.DEVNULL, **options).returncode:
            pytest.skip(f"{what} failed, see {log}")


def make_venv(what, venv, listed, log):
    """An environment that holds what the file @listed lists and nothing else, by pip."""
    step(f"making an environment for {what}", [sys.executable, "-m", "venv", "--clear", venv], log)
    step(f"fetching {what} from the Python package index",
         [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps",
          "--only-binary=:all:", "-r", listed], log)


def environment(what, listed):
    """The interpreter of an environment that holds what the file @listed lists; made once, in build/NAME for NAME.txt."""
    folder = harness.ROOT / "build" / listed.stem
    stamp = folder / "made-from"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != listed.read_text():
            make_venv(what, folder / "env", listed, folder / "install.log")
            stamp.write_text(listed.read_text())
    return folder / "env" / "bin" / "python"


def toolkit():
    """The folder that holds bin/nvcc: meson's, else the one on PATH."""
    for nvcc in (os.environ.get("NVCC"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if nvcc and os.path.exists(nvcc):
            return os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    return pytest.skip("no nvcc")
