#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo's run on a GPU: captured whole, near the reference, and the same text with and without.

Usage: test_tinygrad_gpu.py DMI-RUN DMI-DUMP
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout)
        sys.exit(f"{command[0]}: exit status {done.returncode}")
    return done.stdout


def main():
    dmi_run, dmi_dump = sys.argv[1:3]
    os.environ.update(DEV="CUDA:PTX", JIT="2")
    client = [sys.executable, ROOT / "demo/generate.py"]
    plain = run(*client)
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "RUN"
        captured = run(dmi_run, "--strict", "--spec", ROOT / "specs/tinygrad-smollm2.yaml", "--out", out, "--", *client)
        if captured != plain:
            sys.exit(f"the text differs: {plain!r} without, {captured!r} with")
        stats = json.loads(run(dmi_dump, "stats", "--json", out))
        if not stats:
            sys.exit("no statistics")
        print(run(dmi_dump, "verify", out, "--against", ROOT / "tests/reference/full.safetensors", "--request", "france"))


if __name__ == "__main__":
    main()
