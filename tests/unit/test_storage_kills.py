# SPDX-License-Identifier: Apache-2.0
"""A small program that captures is killed at a random moment: what it had committed is there, or was released.

write_run says the number of each forward once its append has returned. After the kill its run has these forwards without a
gap from the first that was not released, with the right values and steps, no damage, and sums that hold; dmi-dump says what
the kill cut. --long: 1,000 kills.
"""
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

from harness import BUILD, DMI_DUMP

WRITE_RUN = BUILD / "tests" / "unit" / "write_run"
pytestmark = pytest.mark.built(DMI_DUMP, WRITE_RUN)
FIRST = 1001
# durability, bytes and milliseconds of a segment, bytes and milliseconds that are kept
SETTINGS = {
    "one segment": (0, 0, 0, 0, 0),
    "many segments": (0, 6000, 0, 0, 0),
    "interval": (1, 20000, 0, 0, 0),
    "each": (2, 6000, 0, 0, 0),
    "segments by time": (1, 0, 5, 0, 0),
    "retention by size": (0, 6000, 0, 40000, 0),
    "retention by age": (1, 6000, 10, 0, 15),
    "all at once": (2, 8000, 10, 60000, 40),
}


def kill(out, settings, delay):
    """Return: the last forward that was said to be committed, None if there is no run."""
    with subprocess.Popen([WRITE_RUN, out, *map(str, settings)], stdout=subprocess.PIPE) as client:
        said = client.stdout.readline()  # it has begun
        time.sleep(delay)
        client.send_signal(signal.SIGKILL)
        said += client.stdout.read()
        client.wait(timeout=60)
    lines = [line for line in said.split(b"\n")[:-1] if line]
    return int(lines[-1]) if lines else None


def complaints(folder, last):
    """(what does not hold, bytes of the torn tail, forwards released)"""
    done = subprocess.run([WRITE_RUN, "--check", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    if done.returncode:
        return [f"it cannot be read: {done.stderr[-300:]}"], 0, 0
    first, end, released, n_damage, torn, sums, right = map(int, done.stdout.split())
    wrong = []
    if n_damage:
        wrong.append(f"{n_damage} pieces of damage: {done.stderr}")
    if not sums:
        wrong.append("sums do not hold")
    if not right:
        wrong.append("a value or a step is wrong")
    if end and first != FIRST + released:
        wrong.append(f"it begins at {first}, {released} were released")
    if max(end, FIRST + released) <= last:
        wrong.append(f"{last} was committed, the run ends before {max(end, FIRST + released)}")
    verify = subprocess.run([DMI_DUMP, "verify", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    if verify.returncode:
        wrong.append(f"dmi-dump verify: {verify.stdout}")
    said = re.search(r"torn tail of (\d+) bytes", verify.stdout)
    if torn != (int(said[1]) if said else 0):
        wrong.append(f"{torn} bytes are torn, dmi-dump says {said}")
    return wrong, torn, released


def test_kills(check, seeds, tmp_path):
    rng = random.Random(1)
    n, torn, released = seeds(24, 200), 0, 0
    for i in range(n):
        name = list(SETTINGS)[i % len(SETTINGS)]
        out = tmp_path / str(i)
        last = kill(out, SETTINGS[name], rng.uniform(0, 0.08))
        folders = [path for path in out.iterdir() if not path.name.startswith(".")]
        if not check(last is not None and len(folders) == 1, f"kill {i} ({name}): there is a run", f"{last} {folders}"):
            continue
        wrong, n_torn, n_released = complaints(folders[0], last)
        check(not wrong, f"kill {i} ({name}) after forward {last}", wrong)
        torn, released = torn + (n_torn > 0), released + (n_released > 0)
        shutil.rmtree(out)
    check(released > n / 8, "segments were released in many of them", released)
    print(f"# {n} kills: a torn tail in {torn}, segments released in {released}")
