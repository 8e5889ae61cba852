# SPDX-License-Identifier: Apache-2.0
"""dmi-dump's memory does not follow a run's size: each command on a run and on one four times as large (--long: of several GB)."""
import os
import pty
import re
import shutil
import subprocess

import pytest

from harness import BUILD, DMI_DUMP

MAKE_SCHEDULE = BUILD / "tests" / "unit" / "make_schedule"
SLOW_READ = BUILD / "tests" / "unit" / "libslow_read.so"
pytestmark = [pytest.mark.built(DMI_DUMP, MAKE_SCHEDULE, SLOW_READ),
              pytest.mark.skipif("DMI_TEST_RUNTIME" in os.environ, reason="a sanitizer keeps memory that was freed")]
MIB = 1 << 20
# What a command may take, and what more on a run four times as large: 250 bytes a record, and noise; where chunks are read one
# after the other, up to 64 MiB of their metadata are kept, of each run.
MOST = {"diff": 96 + 128, "verify": 64 + 64, "recover": 64 + 64}
MORE = {"diff": 128, "verify": 64, "recover": 64}
COMMANDS = {
    "list": ["list", "--records"], "stats": ["stats", "--requests"], "verify": ["verify"], "show": ["show", "h", "--rows", "0:2"],
    **{name: ["export", "-f", name] for name in ("safetensors", "npy", "npz", "csv", "tensorrt-llm")},
    "jsonl": ["export", "-f", "jsonl", "--tokens", "0:16"], "diff": ["diff"], "recover": ["recover"],
}


def make_run(folder, n_steps):
    """4 MiB a step: 16 rows of 8 requests in turn, 4 layers."""
    lines = []
    for i in range(n_steps):
        lines += [f"step {i} 16 r{i % 8}:0:16:{i // 8 * 16}:1:0:0", *(f"wide {layer} 16384" for layer in range(4))]
    subprocess.run([MAKE_SCHEDULE, folder, "job", "0", "1", "0", "1"], input="\n".join(lines) + "\n", text=True, check=True,
                   stdout=subprocess.DEVNULL, timeout=600)
    return next(folder.iterdir())


def memory(run, name, output):
    """(most bytes in memory, what went wrong)"""
    words = [DMI_DUMP, *COMMANDS[name], run]
    if COMMANDS[name][0] in ("export", "recover"):
        words += ["-o", output]
    if name == "diff":
        words += [run]
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        said = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    shutil.rmtree(output, ignore_errors=True)
    output.unlink(missing_ok=True)
    return usage.ru_maxrss * 1024, said if process.returncode else ""


def test_progress_on_a_terminal(tmp_path, check):
    """Once it takes more than a second: on a disk that takes 30 ms to read anything."""
    run = make_run(tmp_path / "run", 3)
    ours, theirs = pty.openpty()
    with subprocess.Popen([DMI_DUMP, "verify", run], stdout=subprocess.DEVNULL, stderr=theirs, env=os.environ | {"LD_PRELOAD": str(SLOW_READ)}) as process:
        os.close(theirs)
        said = b""
        while process.poll() is None or not said:
            try:
                said += os.read(ours, 65536)
            except OSError:
                break
        check(process.wait(timeout=60) == 0, "it ends well")
    os.close(ours)
    check(re.search(rb"[\d.]+ [KM]iB of [\d.]+ MiB read, [\d.]+ [KM]iB/s, 0:\d\d left", said), "how much it has read, how fast, and how long", said[-300:])
    check(said.endswith(b"\r\x1b[K"), "and the line is gone", said[-100:])
    quiet = subprocess.run([DMI_DUMP, "verify", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, env=os.environ | {"LD_PRELOAD": str(SLOW_READ)})
    check(b"read," not in quiet.stderr + quiet.stdout, "but only there")


@pytest.fixture(name="runs", scope="module")
def fixture_runs(tmp_path_factory, long):
    folder = tmp_path_factory.mktemp("large")
    n = 250 if long else 15
    yield make_run(folder / "small", n), make_run(folder / "large", 4 * n)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", COMMANDS)
def test_memory(runs, tmp_path, check, name):
    (small, wrong), (large, wrong_too) = (memory(run, name, tmp_path / "out") for run in runs)
    check(not wrong and not wrong_too, "it ends well", wrong + wrong_too)
    check(max(small, large) < MOST.get(name, 64) * MIB, "its memory is bounded", f"{small / MIB:.1f} and {large / MIB:.1f} MiB")
    check(large < small + (24 + MORE.get(name, 0)) * MIB, "whatever the run's size", f"{small / MIB:.1f} and {large / MIB:.1f} MiB")
