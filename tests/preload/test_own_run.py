# SPDX-License-Identifier: Apache-2.0
"""A run is its process's, whatever the process does with its files: it goes on for all who look, and ends with the process alone."""
import json
import os
import subprocess
import sys

import pytest

import harness
from kit import site, spec
from replay_kit import DMI_REPLAY, read_stream, records, wait_for

CLIENT = harness.ROOT / "tests" / "preload" / "own_run_client.py"
DMI_TOP, LIBRARY = harness.BUILD / "tools" / "dmi-top", harness.BUILD / "read" / "libdmi_read.so.1"
pytest.importorskip("cuda.bindings")
pytestmark = [pytest.mark.since(12000, "what cuda.bindings 13 calls to build a graph"),
              pytest.mark.built(harness.PRELOAD, harness.DMI_DUMP, DMI_REPLAY, DMI_TOP, LIBRARY)]


class Owner:
    """own_run_client.py, which does each thing that a line asks for."""

    def __init__(self, folder):
        self.out, self.copy = folder / "out", folder / "copy"
        (folder / "spec.yaml").write_text(spec(site()))
        cache = os.environ.get("DMI_STANDIN_CACHE", str(harness.BUILD / "standin-cache"))
        self.process = subprocess.Popen([sys.executable, CLIENT, self.out, self.copy], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=harness.environment(LD_PRELOAD=harness.PRELOAD, DMI_OUT=self.out, DMI_SPEC=folder / "spec.yaml",
                                                                PYTHONPATH=harness.ROOT / "python", DMI_READ_LIBRARY=LIBRARY,
                                                                DMI_STANDIN_CACHE=cache, DMI_SEGMENT_BYTES=4000))

    def does(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    @property
    def run(self):
        return next(path for path in self.out.iterdir() if not path.name.startswith(".") and not path.is_symlink())

    def states(self):
        """What dmi-dump and dmi-top say of it."""
        seen = subprocess.run([DMI_TOP, "--once", "--json", "--interval", "0.01", self.run], stdout=subprocess.PIPE, check=True, timeout=60).stdout
        return harness.dump_json("stats", self.run)["state"], json.loads(seen)["runs"][0]["state"]

    def kill(self):
        self.process.kill()
        self.process.wait()


def captured(path):
    """How many records are in what a follower has written so far."""
    return path.read_bytes().count(b'"type": "record"') if path.exists() else 0


def test_whatever_the_process_does_with_its_files(tmp_path, check):
    owner, taken = Owner(tmp_path), tmp_path / "taken"
    try:
        owner.does("launch")
        follower = subprocess.Popen([DMI_REPLAY, owner.run, "--to", f"file:{taken}", "--cursor", tmp_path / "cursor", "--follow", "--consume"])
        wait_for(lambda: captured(taken) > 10)
        said = owner.does("read")
        check(said == "running", "its own reader says that it goes on", said)
        owner.does("close")
        owner.does("fork")
        check(owner.states() == ("running", "running"), "so do all others", owner.states())
        check(harness.dump_json("stats", owner.copy)["state"] == "killed", "a copy is written by nobody")
        for n in (2, 3, 4):
            owner.does("launch")
            wait_for(lambda: captured(taken) > (n - 1) * 20 or follower.poll() is not None)
        check(follower.poll() is None, "the follower goes on with it")
        wait_for(lambda: harness.dump_json("stats", owner.run)["accounting"]["captured"] == 80)
    finally:
        owner.kill()
    check(follower.wait(timeout=60) == 0, "and ends with it, though a child lives on", follower.returncode)
    check(owner.states() == ("killed", "killed"), "which is its end for all", owner.states())
    found = [r.facts["launch"] for r in records(read_stream(taken))]
    check(len(found) == 80 and found == sorted(set(found)), "each record once", len(found))
    done = harness.run([harness.DMI_DUMP, "verify", owner.run], check=False)
    check(done.returncode == 0, "and nothing is damaged", done.stdout)
    owner.process.stdin.close()
