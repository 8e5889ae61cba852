#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tools link no CUDA, and nothing links the CUDA runtime: links.py BUILD-FOLDER"""
import pathlib
import sys

from tap import Tap, needed, run

# In every program that holds the static runtime.
RUNTIME_MARKS = ("cudaLaunchKernel", "cudaGetDeviceCount", "__cudaRegisterFatBinary", "cudart")


def elves(folder):
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix not in (".o", ".a"):
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def main():
    build = pathlib.Path(sys.argv[1])
    tap = Tap()
    for path in elves(build / "tools"):
        tap.ok(f"{path.name} links no CUDA",
               [name for name in needed(path) if name.startswith(("libcuda", "libcudart", "libcupti", "libnv"))])
    runtime = []
    for path in elves(build):
        runtime += [f"{path} needs {name}" for name in needed(path) if name.startswith("libcudart")]
        symbols = {line.split()[0] for line in run("nm", "-P", "--defined-only", str(path)).splitlines() if line}
        runtime += [f"{path} defines {mark}" for mark in RUNTIME_MARKS if mark in symbols]
    tap.ok("nothing links the CUDA runtime", runtime)
    tap.done()


if __name__ == "__main__":
    main()
