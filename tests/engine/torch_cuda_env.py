# SPDX-License-Identifier: Apache-2.0
"""PyTorch as it comes from PyPI, on the stand-in driver: CUDA's runtime is the double of tests/standin/runtime.

tools/setup/torch-cuda.txt lists what is in the environment. In the place of NVIDIA's other libraries stand the doubles that the build
has, and stubs for the rest: each function that torch's libraries want of them says once by name that it is not there, and fails.
So torch is imported as ever.
"""
import re
import subprocess

import pytest

import harness
import torch_env

LISTED = harness.ROOT / "tools" / "setup" / "torch-cuda.txt"
RUNTIME = harness.STANDIN / "runtime"
TABLE = harness.ROOT / "tests" / "standin" / "runtime" / "runtime.def"
# The doubles that the build may have: the runtime, products of matrices, CUPTI, and the driver itself.
DOUBLES = [RUNTIME, harness.STANDIN / "blas", harness.STANDIN / "cupti", harness.STANDIN]
CACHE = harness.ROOT / "build" / "cache"
# Whose functions are whose, by their names, and what a function answers that is not there: "not supported" by that library's number,
# or another failure where it has no such number.
STUBS = {
    "libcublas.so": ("cublas(?!Lt)", 15), "libcublasLt.so": ("cublasLt", 15), "libcudnn.so": ("cudnn", 3000), "libcufft.so": ("cufft", 16), "libcurand.so": ("curand", 999),
    "libcusolver.so": ("cusolver", 9), "libcusparse.so": ("cusparse(?!Lt)", 10), "libcusparseLt.so": ("cusparseLt", 10), "libcufile.so": ("cuFile", 5011),
    "libnccl.so": ("nccl", 3), "libnvrtc.so": ("nvrtc", 11), "libnvshmem_host.so": ("nvshmem", 7),
}
TEXT = re.compile(r"Get(Error|Status|Result)String|GetLastError|GetErrorName")
# cuDNN and cuBLASLt answer their version itself: none.
VERSION = re.compile(r"cudnnGetVersion|cublasLtGetVersion")
STUB = """#include <stdio.h>
static void tell(const char *name)
{
    fprintf(stderr, "DMI's tests have no %s: %s\\n", name, LIBRARY);
}
"""
# Triton asks for it: the stand-in driver runs PTX, and PTX it stays.
PTXAS = """#!/bin/sh
case "$1" in --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit ;; esac
while [ $# -gt 0 ]; do
    case "$1" in -o) shift; out=$1 ;; *.ptx) in=$1 ;; esac
    shift
done
exec cp "$in" "$out"
"""


def functions(library):
    """{(function that a library wants of another, version or "")}, as `readelf` tells."""
    told = subprocess.run(["readelf", "-W", "--dyn-syms", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    return {tuple((f"{name}@").split("@")[:2]) for name in re.findall(r" UND (\S+)", told)}


def stub(name, answer):
    if TEXT.search(name):
        return f'const char *{name}(void) {{ return "a stub of DMI\'s tests"; }}\n'
    if VERSION.fullmatch(name):
        return f"unsigned long {name}(void) {{ return 0; }}\n"
    return f'long {name}(void) {{ static int told; if (!told++) tell("{name}"); return {answer}; }}\n'


def make_stubs(torch, folder):
    """The stubs for all that torch's libraries are linked to."""
    asked = set().union(*(functions(library) for library in torch.glob("lib*.so*")))
    for library, versions in sorted(torch_env.wanted(torch).items()):
        prefix, answer = STUBS[re.match(r"\w+\.so", library)[0]]
        mine = {name: version for name, version in asked if re.match(prefix, name)}
        script = "".join(f"{version} {{ global: {' '.join(f'{name};' for name in sorted(mine) if mine[name] == version)} }};\n"
                         for version in sorted(versions | {v for v in mine.values() if v}))
        code = STUB.replace("LIBRARY", f'"{library} is a stub"') + "".join(stub(name, answer) for name in sorted(mine))
        torch_env.make_library(folder / library, script, code)
    ptxas = folder / "ptxas"
    ptxas.write_text(PTXAS)
    ptxas.chmod(0o755)


def missing(torch):
    """The functions of the CUDA runtime that torch's libraries want and the double does not have: those without a row of its table are an error."""
    told = subprocess.run(["readelf", "-W", "--dyn-syms", RUNTIME / "libcudart.so.13"], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = re.findall(r"^RUNTIME\((\w+)", TABLE.read_text(), re.M)
    has = {*rows, *re.findall(r" (__cuda\w+|cudaGetError\w+)@@libcudart\.so\.13", told)}
    asked = set().union(*(functions(library) for library in torch.glob("lib*.so*")))
    return sorted(f"{name} of {version}" for name, version in asked if version.startswith("libcudart") and (version != "libcudart.so.13" or name not in has))


def python_with_cuda():
    """(interpreter, environment); made once, beside the build folders, or the test is skipped by name: so, too, where torch wants what the double lacks."""
    if not (RUNTIME / "libcudart.so.13").exists():
        pytest.skip(f"no double of the CUDA runtime in {RUNTIME}")
    venv = torch_env.installed("PyTorch with CUDA", LISTED, "stubs", make_stubs)
    lacks = missing(next((venv / "env").glob("lib/python3*/site-packages/torch/lib")))
    if lacks:
        pytest.skip(f"the double of the CUDA runtime does not fit this PyTorch: it has no {', '.join(lacks)}")
    env = harness.environment(PYTHONDONTWRITEBYTECODE=1, TRITON_PTXAS_PATH=venv / "stubs/ptxas", TRITON_LIBCUDA_PATH=harness.STANDIN,
                              TRITON_CACHE_DIR=CACHE / "triton", TORCHINDUCTOR_CACHE_DIR=CACHE / "inductor", CC="gcc", CXX="g++")
    env["LD_LIBRARY_PATH"] = ":".join(str(folder) for folder in [*DOUBLES, venv / "stubs"])
    return venv / "env/bin/python", env
