# SPDX-License-Identifier: Apache-2.0
"""dmi-dump's memory does not follow a run's size: each command on a run and on one four times as large (--long: of several GB)."""
import os
import shutil
import subprocess

import pytest

from harness import BUILD, DMI_DUMP

MAKE_SCHEDULE = BUILD / "tests" / "unit" / "make_schedule"
pytestmark = [pytest.mark.built(DMI_DUMP, MAKE_SCHEDULE),
              pytest.mark.skipif("DMI_TEST_RUNTIME" in os.environ, reason="a sanitizer keeps memory that was freed")]
MIB = 1 << 20
# What a command may take on any run of few records, and what more on one four times as large: 250 bytes a record, and noise.
MOST, MORE = {"diff": 128 * MIB}, 24 * MIB
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
    check(small < MOST.get(name, 64 * MIB), "its memory is bounded", f"{small / MIB:.1f} MiB")
    check(large < small + MORE, "whatever the run's size", f"{small / MIB:.1f} and {large / MIB:.1f} MiB")
