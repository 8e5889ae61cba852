#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a test on the machine's own CUDA driver, or skip it by name: on_gpu.py CMD [ARGUMENT...]"""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    # Whoever runs the tests may have put the stand-in in front.
    paths = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path and "standin" not in path]
    os.environ["LD_LIBRARY_PATH"] = ":".join(paths)
    found = subprocess.run([sys.executable, ROOT / "tools/setup/driver.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if found.returncode:
        print(f"skipped: no CUDA device: {found.stderr.strip()}")
        sys.exit(77)
    print(f"device: {found.stdout.strip()}", flush=True)
    os.environ["CACHEDB"] = str(pathlib.Path(os.environ.get("CACHEDB", ROOT / "build/cache/x")).with_name("tinygrad-gpu.db"))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
