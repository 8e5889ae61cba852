# SPDX-License-Identifier: Apache-2.0
"""Taps of host memory: in processes without a driver, and beside those of a device's."""
import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import harness
from harness import BUILD, DMI_DUMP, PRELOAD, Counters
from kit import filled, site, spec

FAIL_DISK = BUILD / "tests" / "preload" / "libfail_disk.so"
CLIENT = pathlib.Path(__file__).with_name("host_client.py")
DMI_VIEW = BUILD / "tools" / "dmi-view"
HOST = 0xffffffff  # DMI_NO_DEVICE
pytestmark = pytest.mark.built(DMI_DUMP, DMI_VIEW, PRELOAD, FAIL_DISK)


def taps(*names, head=""):
    return "hookspec: 1\nring: {bytes: 64K, slots: 64}\n" + head + "sites:\n" + "".join(f"  - {{tap: {name}}}\n" for name in names)


@pytest.fixture
def play(bench):
    """A scenario of the client's, in a process whose library path has no driver."""
    def run(name, text=taps("resid_pre"), *words, **env):
        command = [sys.executable, CLIENT, name, *words]
        return bench.alike(name, [], text, command=command, LD_LIBRARY_PATH="", timeout=120, **env)
    return run


def numbers(run):
    """The taps that its records are of, each of which must be whole."""
    found = [record.words[0] >> 16 for record in run.of(0)]
    assert [record.words for record in run.of(0)] == [filled(n, 64) for n in found]
    return found


def test_a_tap_is_what_was_there(bench, play):
    """The library needs no driver, and brings none."""
    result = play("eager")
    run = bench.captured("eager", result, [filled(n, 64) for n in range(12)])
    bench.check([r.layer for r in run.of(0)] == [0, 1, 2, 3] * 3, "layers are those that were said", [r.layer for r in run.of(0)])
    bench.check([r.forward for r in run.of(0)] == [f for f in range(3) for _ in range(4)], "a forward begins where a tap comes again", "")
    bench.check({r.device for r in run.of(0)} == {HOST}, "records say where it was", {r.device for r in run.of(0)})
    bench.check(not result.complaints, "nothing is said", result.complaints)
    needed = subprocess.run(["readelf", "-d", PRELOAD], stdout=subprocess.PIPE, text=True, check=True).stdout.count("(NEEDED)")
    bench.check(needed <= 2, "the library needs libc and its loader alone", needed)


def test_rows_of_requests(bench, play):
    """The step that comes before the first tap counts."""
    run = play("steps", taps("resid_pre, requests: 'b'")).run()
    bench.check([(r.step, r.dims, r.kept, r.words) for r in run.of(0)] ==
                [(n, (1, 8), [5], tuple(n << 16 | 40 + i for i in range(8))) for n in range(3)], "the rows of one request", [(r.step, r.kept) for r in run.of(0)])
    bench.check(len(run.steps) == 3 and not run.balance() and "config" in run.manifest.get("about", run.manifest.get("described", {})), "steps and facts are there",
                (len(run.steps), run.balance(), list(run.manifest)))


def test_arrays(bench, play):
    """dmi.tap(): numpy's arrays, buffers and what has DLPack, also transposed ones."""
    result = play("arrays")
    run = bench.captured("arrays", result, [*(filled(n, 64) for n in (1, 1, 3, 4, 5)), tuple(6 << 16 | 8 * i + 2 * k for i in range(4) for k in range(4))])
    bench.check(result.stdout == "True\ndone\n" and [r.dims for r in run.of(0)] == [(8, 8), (8, 8), (64,), (8, 8), (8, 8), (4, 4)], "what cannot be is refused", (result.stdout, [r.dims for r in run.of(0)]))
    said = json.loads(subprocess.run([DMI_VIEW, result.folders[0], "--json"], stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    bench.check([site["dtype"] for site in said["sites"]] == ["u32"], "a report says the type of what was tapped", said["sites"])


def test_forks(bench, play):
    """A child is off until it taps, and has a run of its own then."""
    result = play("forks")
    runs = [result.run(i) for i in range(len(result.folders))]
    bench.check(sorted(map(numbers, runs)) == [[1, 6], [2], [3], [4], [5]], "each process has its own taps", list(map(numbers, runs)))
    killed = [run for run in runs if run.counters.state != Counters.CLOSED]
    bench.check([numbers(run) for run in killed] == [[4]] and not any(run.balance() for run in runs if run not in killed), "all but the killed one are closed", killed)
    result = play("children_alone")
    bench.check(sorted(numbers(result.run(i)) for i in range(len(result.folders))) == [[1], [2]], "a process that taps nothing has no run", result.folders)


@pytest.mark.parametrize("mode", ["complete, wait_ms: 20000", "best-effort"])
def test_pressure(bench, play, mode):
    """Three threads tap faster than one encoder writes: they wait, or what finds no room is counted."""
    result = play("many", taps("resid_pre", head=f"overload: {{mode: {mode}}}\n"), 700, DMI_RING_BYTES="8K", DMI_ENCODERS=1)
    run = result.run()
    n = run.counters.expected[0].records
    bench.check(n == 3 * 700 and not run.balance(), "each tap is accounted for", (n, run.balance()))
    dropped = {reason: tally.records for reason, tally in run.counters.dropped[0].items()}
    bench.check(not dropped if "complete" in mode else set(dropped) == {"ring_full"}, "by reason", dropped)
    for layer in range(3):
        of = [record for record in run.of(0) if record.layer == layer]
        found = [record.words[0] >> 16 for record in of]
        bench.check([record.words for record in of] == [filled(n, 64) for n in found] and found == sorted(set(found)), "whole, and in order", found[:20])


def killed(delay, out, command, env):
    """(run of a program that prints a line once it is at work and is killed @delay seconds later, what dmi-dump verify says)"""
    program = subprocess.Popen([sys.executable, *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    program.stdout.readline()
    time.sleep(delay)
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    folder = harness.only_run(out)
    return folder, harness.run([DMI_DUMP, "verify", folder], check=False)


@pytest.mark.parametrize("delay", [0.05, 0.3, 1.1])
def test_kill(bench, delay):
    """What was committed reads back, and the rest is accounted for."""
    spec_path, out = bench.folder / "spec.yaml", bench.folder / "out"
    spec_path.write_text(taps("resid_pre"))
    env = harness.environment(LD_LIBRARY_PATH="", LD_PRELOAD=PRELOAD, DMI_SPEC=spec_path, DMI_OUT=out)
    folder, verify = killed(delay, out, [CLIENT, "forever"], env)
    bench.check(verify.returncode == 0 and "accounting balances" in verify.stdout, "dmi-dump verify", verify.stdout + verify.stderr)
    counters = Counters(folder)
    bench.check(counters.state != Counters.CLOSED and counters.expected[0].records > 10, "it was killed at work", counters.expected)


def test_a_full_disk(bench):
    rules = bench.folder / "rules"
    rules.write_text("")
    result = bench.run([], taps("resid_pre"), command=[sys.executable, CLIENT, "disk"], before=[FAIL_DISK], LD_LIBRARY_PATH="", FAIL_DISK=rules)
    run = result.run()
    dropped = {reason: tally.records for reason, tally in run.counters.dropped[0].items()}
    bench.check(result.said() == (0, "done\n") and not run.balance(), "the program goes on", (result.said(), run.balance()))
    bench.check(dropped == {"write_failed": 3} and numbers(run) == [0, 1, 5, 6, 7], "what was not written is counted, the rest is there", (dropped, numbers(run)))


def test_a_spec_without_taps(bench):
    """Nothing of host memory can be captured, so that no run begins."""
    result = bench.run([], spec(site()), command=[sys.executable, CLIENT, "nothing"], LD_LIBRARY_PATH="")
    bench.check(result.said() == (0, "done\n") and not result.folders, "no run", (result.said(), result.folders))


@pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")
def test_beside_a_device(bench):
    """Both in one run. What the driver knows goes by its stream, unless the program says that the CPU computed it."""
    pytest.importorskip("cuda.bindings")
    command = [sys.executable, pathlib.Path(__file__).with_name("tap_client.py"), "host"]
    result = bench.alike("host", [], taps("q", "k", "v"), command=command, timeout=120, DMI_RING_BYTES="1M")
    run = result.run()
    for at, (name, wanted) in enumerate({"q": [(0, 1), (HOST, 2), (0, 3)], "k": [(0, 4), (HOST, 4)], "v": [(HOST, 7)]}.items()):
        records = sorted(run.of(at), key=lambda record: record.layer)
        found = [(r.device, r.words[0] >> 16) for r in records]
        bench.check(found == wanted and all(r.words == filled(n, 64) for r, (_, n) in zip(records, wanted)), f"{name}: where it was, and what", found)
    dropped = {reason: tally.records for reason, tally in run.counters.dropped[2].items()}
    bench.check(dropped == {"bad_pointer": 2}, "a pointer to nothing, and one of a device that is said to be in host memory", dropped)
    bench.check(not run.balance() and len(result.folders) == 1, "all is accounted for, in one run", run.balance())


@pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph")
def test_before_a_device(bench):
    """A run that a tap of host memory began takes taps of device memory, too, from cuInit on."""
    pytest.importorskip("cuda.bindings")
    command = [sys.executable, pathlib.Path(__file__).with_name("tap_client.py"), "host", "early"]
    result = bench.alike("early", [], taps("q", "k", "v", "early"), command=command, timeout=120, DMI_RING_BYTES="1M")
    run = result.run()
    bench.check([(r.device, r.words) for r in run.of(3)] == [(HOST, filled(9, 64))] and len(run.of(0)) == 3 and len(result.folders) == 1,
                "what came before CUDA, and after it", [len(run.of(i)) for i in range(4)])
    bench.check(not run.balance(), "all is accounted for", run.balance())
