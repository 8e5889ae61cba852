# SPDX-License-Identifier: Apache-2.0
"""The demo's run on a GPU: captured completely, near the reference, and the same text with and without."""
import json
import os
import subprocess
import sys

import pytest

from harness import DMI_DUMP, DMI_RUN, PRELOAD, ROOT

pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD)


def run(*command):
    done = subprocess.run([str(word) for word in command], env={**os.environ, "DEV": "CUDA:PTX", "JIT": "2"}, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, f"{command[0]}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def test_tinygrad_on_a_gpu(tmp_path):
    found = subprocess.run([sys.executable, ROOT / "tools/setup/driver.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if found.returncode or "standin" in os.environ.get("LD_LIBRARY_PATH", ""):
        pytest.skip("no CUDA device")
    client = [sys.executable, ROOT / "demo/generate.py"]
    out = tmp_path / "RUN"
    plain = run(*client)
    captured = run(DMI_RUN, "--strict", "--spec", ROOT / "specs/tinygrad-smollm2.yaml", "--out", out, "--", *client)
    assert captured == plain
    assert json.loads(run(DMI_DUMP, "stats", "--json", out)), "no statistics"
    print(run(DMI_DUMP, "verify", out, "--against", ROOT / "tests/reference/full.safetensors", "--request", "france"))
