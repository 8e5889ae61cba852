#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that nobody here wrote: cuda.bindings, the CUDA runtime, and what never touches CUDA."""
import os
import pathlib
import shutil
import subprocess
import sys

from kit import BUILD, ROOT, Bench, filled, site, spec

import standin_log

bench = Bench()
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


def ptx_of_client():
    """The PTX that driver_calls holds, written down."""
    path = bench.folder / "kernels.ptx"
    data = (BUILD / "tests/preload/driver_calls").read_bytes()
    at = data.rindex(b".version", 0, data.index(b".visible .entry block"))
    path.write_bytes(data[at:data.index(b"\0", at)])
    return path


def bindings():
    python = python_with_bindings()
    if not python:
        print("skipped: cuda.bindings is in no interpreter here")
        return
    command = [python, "-c", BINDINGS, ptx_of_client()]
    without = bench.run([], preload=False, command=command)
    r = bench.run([], TEXT, command=command)
    bench.check(without.code == 0 and r.said() == without.said(), "cuda.bindings: the program says the same without the library",
                f"{r.said()} {r.stderr[-800:]} {without.said()} {without.stderr[-500:]}")
    bench.captured("cuda.bindings", r, [filled(s, 64) for s in range(3)])


def runtime():
    library = next((p for p in [*ROOT.glob("build/toolchain/nvidia/cu13/lib/libcudart.so.13"), pathlib.Path("/usr/local/cuda/lib64/libcudart.so.13")]
                    if p.exists()), None)
    if not library:
        print("skipped: no libcudart.so.13 here")
        return
    command = [sys.executable, "-c", RUNTIME, library]

    def ask(preload):
        log = bench.folder / f"runtime-{preload}"
        r = bench.run([], TEXT if preload else None, preload=preload, command=command, DMI_STANDIN_LOG=log)
        return r, [(c["name"], c.get("symbol"), c.get("version"), c.get("flags"), c.get("found"), c["result"]) for c in standin_log.Log(log).calls]
    (without, plain), (r, ours) = ask(False), ask(True)
    bench.check(r.said() == without.said() and not r.stderr and not r.folders, "the CUDA runtime is refused or served as without the library",
                f"{r.said()} {without.said()} {r.stderr}")
    asked = [c for c in plain if c[0].startswith("cuGetProcAddress")]
    bench.check(len(asked) > 300, "the CUDA runtime resolves its entry points", len(asked))
    bench.check(ours == plain, "the driver sees the same calls", [(a, b) for a, b in zip(ours, plain) if a != b][:3])


def others():
    (bench.folder / "x.c").write_text("int main(void) { return 0; }\n")
    for what, command in {"python": [sys.executable, "-c", "print(1)"], "a shell": ["sh", "-c", "echo $(echo a | cat); (exit 3)"],
                          "a compiler": ["cc", "-O1", "-o", bench.folder / "x", bench.folder / "x.c"],
                          "find": ["find", "/etc/hostname"], "awk": ["awk", "BEGIN { print 1; exit 4 }"], "env": ["sh", "-c", "env -i true; echo $?"],
                          "git": ["git", "--version"], "perl": ["perl", "-e", "print 7; fork; exit 2"]}.items():
        if not shutil.which(str(command[0])):
            continue
        without = bench.run([], preload=False, command=command)
        r = bench.run([], TEXT, command=command)
        bench.check(r.said() == without.said() and r.stderr == without.stderr, f"{what} is what it is without the library", f"{r.said()} {r.stderr}")
        bench.check(not r.folders and sorted(p.name for p in r.folder.iterdir()) == ["script", "spec.yaml"], f"{what}: no file", list(r.folder.iterdir()))
    code = "import os; print(len(os.listdir('/proc/self/task')), [l.split()[-1] for l in open('/proc/self/maps') if 'libcuda' in l])"
    r = bench.run([], TEXT, command=[sys.executable, "-c", code])
    bench.check(r.stdout == "1 []\n", "no thread, no driver is brought in", r.stdout)
    code = "import ctypes, ctypes.util\ntry:\n  ctypes.CDLL(None).cuInit\n  print('found')\nexcept AttributeError: print('nothing')"
    r = bench.run([], TEXT, command=[sys.executable, "-c", code])
    bench.check(r.stdout == "nothing\n", "a program that looks for cuInit finds nothing where there is no driver", r.stdout)


for test in (bindings, runtime, others):
    bench.part(test)
bench.checks.exit()
