# SPDX-License-Identifier: Apache-2.0
"""kill -9 and _exit at random moments: what was committed reads back, and the rest is accounted for.

loop_client launches four kernels a forward, forever; every element that it writes says which launch
wrote it.  After each kill: captured (what the segments hold) + dropped + lost_at_kill = expected, and
expected is what the driver's call log says was launched, give or take the launch in flight.  With --graphs the
kernels are nodes of replayed graphs, and of six processes one leaves by _exit from another thread, and one
by _exit in the middle of its replays: the last flush then loses nothing.
"""
import random
import signal
import subprocess
import time

import pytest

import harness
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN
from standin_log import Log

np = pytest.importorskip("numpy")

CLIENT = BUILD / "tests" / "engine" / "loop_client"
pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", CLIENT)
SPEC = ROOT / "tests" / "engine" / "loop.yaml"
SITES = ("input", "output")  # in the spec's order
KERNELS = ("first", "block")
COLUMNS, LAYERS = 64, 3
LEFT = 3  # what loop_client gives to _exit
# By which way the processes end, in turn; and how many launches of each kernel one driver call makes at most.
WAYS = {"eager": ("kill",), "graphs": ("kill", "kill", "thread", "kill", "kill", "here")}
AT_ONCE = {"eager": (1, 1), "graphs": (1, 2)}


class Run:
    """One process: the engine's @mode, by which @way it ends, and after how many seconds (or forwards: `here`)."""

    def __init__(self, folder, mode, way, rows, delay):
        self.folder, self.mode, self.way, self.rows, self.delay = folder, mode, way, rows, delay
        folder.mkdir()
        self.launches, self.log = [], ""

    def __str__(self):
        after = f"after {int(self.delay)} forwards" if self.way == "here" else f"after {self.delay:.3f} s"
        return f"{self.mode}, {self.way}, {self.rows} rows, {after}, {len(self.launches)} launches"

    def go(self):
        env = harness.environment(DMI_STANDIN_LOG=self.folder / "calls", DMI_LOG=self.folder / "log")
        leave = {"kill": [], "thread": [f"thread:{int(self.delay * 1e6)}"], "here": [f"here:{int(self.delay)}"]}[self.way]
        command = [DMI_RUN, "--spec", SPEC, "--out", self.folder / "out", "--", CLIENT, "0", str(self.rows), self.mode, *leave]
        with open(self.folder / "stderr", "wb") as stderr:
            program = subprocess.Popen([str(word) for word in command], env=env, stdout=subprocess.PIPE, stderr=stderr)
            try:
                if program.stdout.readline() != b"ready\n":
                    raise AssertionError(f"the client did not start: {(self.folder / 'stderr').read_text()}")
                if self.way == "kill":
                    time.sleep(self.delay)
                else:
                    program.wait(timeout=60)
            finally:
                program.send_signal(signal.SIGKILL)
                program.wait()
                program.stdout.close()
        self.launches = [launch for launch in Log(self.folder / "calls").launches if launch["kernel"] in KERNELS]
        if (self.folder / "log").exists():
            self.log = (self.folder / "log").read_text()
        wanted = -signal.SIGKILL if self.way == "kill" else LEFT
        return [] if program.returncode == wanted else [f"exit code {program.returncode}: {(self.folder / 'stderr').read_text()}"]

    def flushed(self):
        """Did the last flush end within its time?"""
        return self.way != "kill" and "did not end within" not in self.log


def check_rows(site, layer, x, rows):
    """What is wrong with the rows of one tensor, and how many records they are."""
    if len(x) % rows:
        return f"{len(x)} rows, no multiple of {rows}", 0
    x = x.reshape(-1, rows, COLUMNS)
    seeds = x[:, 0, 0] >> 16
    place = np.arange(rows * COLUMNS, dtype=np.uint32).reshape(rows, COLUMNS)
    if not (x == (seeds[:, None, None].astype(np.uint32) << 16) + place).all():
        return "a row that no launch wrote so", len(x)
    # Seeds count launches modulo 2^16: `first` is every fourth, `block` number n comes n + 1 after it.
    offset = 0 if site == "input" else layer + 1
    if len(seeds) and (seeds % (LAYERS + 1) != offset).any():
        return "another layer's launch", len(x)
    if (np.diff(seeds.astype(np.int64)) % (1 << 16) != LAYERS + 1).any():
        return "launches out of order, missing or twice", len(x)
    return "", len(x)


def check_expected(run, counters):
    """Complaints: what is expected is what was launched."""
    complaints, in_flight = [], 0
    for i, kernel in enumerate(KERNELS):
        launched = sum(launch["kernel"] == kernel for launch in run.launches)
        ahead = counters.expected[i].records - launched
        in_flight += abs(ahead)
        # Killed: the call in flight may be expected and not logged. _exit: nothing is in flight; while the last flush
        # runs, another thread goes on launching what is no longer expected.
        if {"kill": not 0 <= ahead <= AT_ONCE[run.mode][i], "thread": ahead > 0, "here": ahead != 0}[run.way]:
            complaints.append(f"{kernel}: {counters.expected[i].records} expected, {launched} launched")
    if run.way == "kill" and in_flight > (1 if run.mode == "eager" else sum(AT_ONCE[run.mode])):
        complaints.append(f"{in_flight} launches in flight on one thread")
    if any((launch["exec"] != 0) != (run.mode == "graphs") for launch in run.launches):
        complaints.append("a launch of the other mode in the call log")
    return complaints


def check_run(run):
    """(complaints, (expected, captured, dropped, lost) in records)"""
    total = np.zeros(4, dtype=int)
    out = run.folder / "out"
    runs = harness.runs_of(out)
    if not runs:
        return ([] if len(run.launches) <= 1 else [f"{len(run.launches)} launches and no run"]), total
    counters = harness.Counters(runs[0])
    complaints = check_expected(run, counters)
    tensors = harness.export(out, run.folder / "export.safetensors")
    captured = dict.fromkeys(SITES, 0)
    for key, x in tensors.items():
        site, _, layer = key.partition(".")
        wrong, n = check_rows(site, int(layer or 0), x, run.rows)
        captured[site] += n
        if wrong:
            complaints.append(f"{key}: {wrong}")
    stats = harness.dump_json("stats", out)
    for i, site in enumerate(SITES):
        dropped, expected = counters.dropped_sum(i).records, counters.expected[i].records
        lost = expected - captured[site] - dropped
        said = lost_of(stats, site)
        if lost < 0 or said != lost or (lost and run.flushed()):
            complaints.append(f"{site}: {captured[site]} read back + {dropped} dropped + {said} lost_at_kill is not {expected}")
        if counters.captured[i].records > captured[site]:
            complaints.append(f"{site}: {counters.captured[i].records} counted as captured, {captured[site]} read back")
        total += (expected, captured[site], dropped, lost)
    if run.flushed() and counters.state != harness.Counters.CLOSED:
        complaints.append("the last flush has not closed the run")
    if harness.run([DMI_DUMP, "verify", out], check=False).returncode != 0:
        complaints.append("dmi-dump verify finds the run damaged")
    return complaints, total


def lost_of(stats, site):
    return sum(entry["lost_at_kill"]["records"] for entry in stats["sites"] if entry["site"] == site)


@pytest.mark.parametrize("mode, kills", [
    pytest.param("eager", 8, id="eager"), pytest.param("graphs", 6, id="graphs", marks=pytest.mark.since(12000, "cuGraphAddKernelNode_v2"))])
def test_kill(check, seeds, long, tmp_path, mode, kills):
    kills = seeds(kills, 40)
    chance, total, n_read = random.Random(2 if long else 1), np.zeros(4, dtype=int), 0
    # Once to its end: all kernels are then in the driver's cache. While one is compiled nothing is launched.
    harness.run([DMI_RUN, "--spec", SPEC, "--out", tmp_path / "out", "--", CLIENT, "1", "4", mode],
                env=harness.environment(DMI_STANDIN_LOG=tmp_path / "calls"))
    for i in range(kills):
        way = WAYS[mode][i % len(WAYS[mode])]
        # Half of them early: while the library makes its ring, the graphs and the first segment.
        delay = chance.uniform(0, 0.02) if i // 2 % 2 else chance.uniform(0, 0.5)
        run = Run(tmp_path / str(i), mode, way, chance.choice((1, 4, 32)), chance.randrange(1000) if way == "here" else delay)
        complaints = run.go()
        wrong, sums = check_run(run)
        check(not complaints + wrong, f"{i}: {run}", complaints + wrong)
        total += sums
        n_read += sums[1] > 0
    print("{} expected = {} read back + {} dropped + {} lost at the kill".format(*total))
    check(n_read >= kills // 4, f"{n_read} of {kills} ended late enough for records to be read back")
