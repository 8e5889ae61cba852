# SPDX-License-Identifier: Apache-2.0
"""Tools link no CUDA, and nothing links the CUDA runtime but the programs that test its double."""
from harness import BUILD
from tree import needed, run

# In every program that holds the static runtime.
RUNTIME_MARKS = ("cudaLaunchKernel", "cudaGetDeviceCount", "__cudaRegisterFatBinary", "cudart")


# The double, and what tests it.
DOUBLE = BUILD / "tests" / "standin" / "runtime"


def elves(folder):
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix not in (".o", ".a"):
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def test_tools_link_no_cuda(check):
    for path in elves(BUILD / "tools"):
        cuda = [name for name in needed(path) if name.startswith(("libcuda", "libcudart", "libcupti", "libnv"))]
        check(not cuda, f"{path.name} links no CUDA", cuda)


def test_nothing_links_the_cuda_runtime():
    runtime = []
    for path in elves(BUILD):
        if DOUBLE in path.parents:
            continue
        runtime += [f"{path} needs {name}" for name in needed(path) if name.startswith("libcudart")]
        symbols = {line.split()[0] for line in run("nm", "-P", "--defined-only", str(path)).splitlines() if line}
        runtime += [f"{path} defines {mark}" for mark in RUNTIME_MARKS if mark in symbols]
    assert not runtime, "\n".join(runtime)
