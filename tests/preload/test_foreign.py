# SPDX-License-Identifier: Apache-2.0
"""Programs that nobody here wrote: cuda.bindings, the CUDA runtime, and what never touches CUDA."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import standin_log
from harness import BUILD, ROOT
from kit import filled, site, spec

TEXT = spec(site())

BINDINGS = r"""
import ctypes, sys
from cuda.bindings import driver as cuda
def ok(r):
    assert r[0] == cuda.CUresult.CUDA_SUCCESS, r
    return r[1] if len(r) == 2 else r[1:]
ok(cuda.cuInit(0))
dev = ok(cuda.cuDeviceGet(0))
ctx = ok(cuda.cuDevicePrimaryCtxRetain(dev))
ok(cuda.cuCtxSetCurrent(ctx))
ptx = open(sys.argv[1], 'rb').read() + b"\0"
mod = ok(cuda.cuModuleLoadData(ptx))
fn = ok(cuda.cuModuleGetFunction(mod, b'block'))
lib = ok(cuda.cuLibraryLoadData(ptx, [], [], 0, [], [], 0))
kernel = ok(cuda.cuLibraryGetKernel(lib, b'block'))
p = ok(cuda.cuMemAlloc(4096))
stream = ok(cuda.cuStreamCreate(1))
types = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64)
for seed, f in enumerate((fn, kernel, fn)):
    args = ((int(p), 64, seed, 0), types)
    if seed < 2:
        ok(cuda.cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, stream, args, 0))
    else:
        config = cuda.CUlaunchConfig()
        config.gridDimX = config.gridDimY = config.gridDimZ = 1
        config.blockDimX, config.blockDimY, config.blockDimZ, config.hStream = 64, 1, 1, stream
        ok(cuda.cuLaunchKernelEx(config, f, args, 0))
out = bytearray(256)
ok(cuda.cuStreamSynchronize(stream))
ok(cuda.cuMemcpyDtoH(out, p, 256))
print(out.hex())
print(cuda.cuModuleGetFunction(mod, b'nothing')[0], cuda.cuLaunchKernel(fn, 0, 1, 1, 1, 1, 1, 0, stream, 0, 0)[0])
ok(cuda.cuModuleUnload(mod)); ok(cuda.cuMemFree(p)); ok(cuda.cuDevicePrimaryCtxRelease(dev))
"""

RUNTIME = r"""
import ctypes, sys
rt = ctypes.CDLL(sys.argv[1])
n = ctypes.c_int(-7)
print(rt.cudaGetDeviceCount(ctypes.byref(n)), rt.cudaFree(None), rt.cudaGetLastError())
"""


def python_with_bindings():
    """An interpreter that has cuda.bindings: ours, the project's, or the one the tests run in."""
    for exe in (ROOT / "build/venv/bin/python", os.environ.get("VIRTUAL_ENV", "/nonexistent") + "/bin/python", sys.executable):
        if os.path.exists(exe) and subprocess.run([exe, "-c", "import cuda.bindings.driver"], capture_output=True).returncode == 0:
            return exe
    return None


def ptx_of_client(bench):
    """The PTX that driver_calls holds, written down."""
    path = bench.folder / "kernels.ptx"
    data = (BUILD / "tests/preload/driver_calls").read_bytes()
    at = data.rindex(b".version", 0, data.index(b".visible .entry block"))
    path.write_bytes(data[at:data.index(b"\0", at)])
    return path


@pytest.mark.since(12000, "libraries (cuLibraryLoadData)")
def test_bindings(bench):
    python = python_with_bindings()
    if not python:
        pytest.skip("cuda.bindings is in no interpreter here")
    command = [python, "-c", BINDINGS, ptx_of_client(bench)]
    without = bench.run([], preload=False, command=command)
    r = bench.run([], TEXT, command=command)
    bench.check(without.code == 0 and r.said() == without.said(), "cuda.bindings: the program says the same without the library",
                f"{r.said()} {r.stderr[-800:]} {without.said()} {without.stderr[-500:]}")
    bench.captured("cuda.bindings", r, [filled(s, 64) for s in range(3)])


@pytest.mark.since(12000, "cuGetProcAddress_v2, by which the CUDA runtime 13 looks up all others")
def test_runtime(bench):
    library = next((p for p in [*ROOT.glob("build/toolchain/nvidia/cu13/lib/libcudart.so.13"), pathlib.Path("/usr/local/cuda/lib64/libcudart.so.13")]
                    if p.exists()), None)
    if not library:
        pytest.skip("no libcudart.so.13 here")
    command = [sys.executable, "-c", RUNTIME, library]

    def ask(preload):
        log = bench.folder / f"runtime-{preload}"
        r = bench.run([], TEXT if preload else None, preload=preload, command=command, DMI_STANDIN_LOG=log)
        return r, [(c["name"], c.get("symbol"), c.get("version"), c.get("flags"), c.get("found"), c["result"]) for c in standin_log.Log(log).calls]
    (without, plain), (r, ours) = ask(False), ask(True)
    bench.check(r.said() == without.said() and all("armed: " in line or "no launch matched" in line for line in r.stderr.splitlines()),
                "the CUDA runtime is refused or served as without the library", f"{r.said()} {without.said()} {r.stderr}")
    asked = [c for c in plain if c[0].startswith("cuGetProcAddress")]
    bench.check(len(asked) > 300, "the CUDA runtime resolves its entry points", len(asked))
    bench.check(ours == plain, "the driver sees the same calls", [(a, b) for a, b in zip(ours, plain) if a != b][:3])


@pytest.mark.parametrize("command", [
    pytest.param([sys.executable, "-c", "print(1)"], id="python"),
    pytest.param(["sh", "-c", "echo $(echo a | cat); (exit 3)"], id="a shell"),
    pytest.param(["cc", "-O1", "-o", "../x", "../x.c"], id="a compiler"),
    pytest.param(["find", "/etc/hostname"], id="find"),
    pytest.param(["awk", "BEGIN { print 1; exit 4 }"], id="awk"),
    pytest.param(["sh", "-c", "env -i true; echo $?"], id="env"),
    pytest.param(["git", "--version"], id="git"),
    pytest.param(["perl", "-e", "print 7; fork; exit 2"], id="perl"),
])
def test_another_program(bench, command):
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    (bench.folder / "x.c").write_text("int main(void) { return 0; }\n")
    without = bench.run([], preload=False, command=command)
    r = bench.run([], TEXT, command=command)
    bench.check(r.said() == without.said() and r.stderr == without.stderr, "is what it is without the library", f"{r.said()} {r.stderr}")
    bench.check(not r.folders and sorted(p.name for p in r.folder.iterdir()) == ["script", "spec.yaml"], "no file", list(r.folder.iterdir()))


def test_nothing_is_brought_in(bench):
    code = "import os; print(len(os.listdir('/proc/self/task')), [l.split()[-1] for l in open('/proc/self/maps') if 'libcuda' in l])"
    r = bench.run([], TEXT, command=[sys.executable, "-c", code])
    bench.check(r.stdout == "1 []\n", "no thread, no driver is brought in", r.stdout)
    code = "import ctypes, ctypes.util\ntry:\n  ctypes.CDLL(None).cuInit\n  print('found')\nexcept AttributeError: print('nothing')"
    r = bench.run([], TEXT, command=[sys.executable, "-c", code])
    bench.check(r.stdout == "nothing\n", "a program that looks for cuInit finds nothing where there is no driver", r.stdout)
