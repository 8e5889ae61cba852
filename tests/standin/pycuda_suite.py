#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run PyCUDA's own tests on the stand-in: a client linked against libcuda by name. Prints TAP.

Usage: pycuda_suite.py [--work DIR] [--quick] [--preload LIB [--spec FILE]]

The sdist comes from PyPI into DIR (kept: building takes minutes), is built there without curand against
the toolkit's stub, and made to load PTX instead of a cubin. With --preload the tests run a second time
under LD_PRELOAD, and every test must have the same outcome as without. Exits 0 with a plan of 0
tests, all skipped, where the build cannot be had (no network, no nvcc, no C++ compiler).
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

VERSION = "2026.1"

# What cannot pass here, and why. Anything else that fails is a failure.
CANNOT = {
    "test_jit_link_module": "needs the driver's linker and NVIDIA's device runtime (dynamic parallelism)",
    "test_recursive_launch": "needs the driver's linker and NVIDIA's device runtime (dynamic parallelism)",
    "test_subset_sum": "its reduction takes a warp's threads to run in lockstep, without __syncwarp(); here they run one "
                       "after another",
}

CANNOT_MESSAGE = {
    "no attribute 'get_curand_version'": "built without curand",
    "No module named 'pycuda._curand'": "built without curand",
}

# A pytest plugin of ours: modules are loaded from PTX, as compile_plain() can make it.
PLUGIN = """
import pycuda.compiler as compiler

plain = compiler.compile_plain


def compile_plain(source, options, keep, nvcc, cache_dir, target="cubin"):
    return plain(source, options, keep, nvcc, cache_dir, "ptx" if target == "cubin" else target)


compiler.compile_plain = compile_plain
"""


def skip(reason):
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)


def toolkit():
    """The folder that holds bin/nvcc."""
    for nvcc in (os.environ.get("NVCC"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if nvcc and os.path.exists(nvcc):
            return pathlib.Path(os.path.realpath(nvcc)).parents[1]
    skip("no nvcc")


def run(command, log, **kwargs):
    """Run a step of the build; a failing one skips the suite and names its log."""
    with open(log, "ab") as out:
        if subprocess.run(command, stdout=out, stderr=out, **kwargs).returncode:
            skip(f"{' '.join(map(str, command[:6]))} failed, see {log}")


def build(work, cuda):
    """Return the folder of the built sdist."""
    source, log = work / f"pycuda-{VERSION}", work / "build.log"
    if (work / "built").exists():
        return source
    work.mkdir(parents=True, exist_ok=True)
    venv = work / "venv"
    run([sys.executable, "-m", "venv", venv], log)
    pip = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "numpy", "setuptools", "wheel", "pytest", "pytools", "mako", "platformdirs", "siphash24"], log)
    run([*pip, "download", "--no-deps", "--no-binary", "pycuda", f"pycuda=={VERSION}"], log, cwd=work)
    shutil.rmtree(source, ignore_errors=True)  # of a build that failed: configure.py would take it up again
    run(["tar", "xf", f"pycuda-{VERSION}.tar.gz"], log, cwd=work)
    stubs = next(cuda.glob("**/stubs/libcuda.so"), None)
    if not stubs:  # the stand-in has the same names
        stubs = pathlib.Path(os.environ["LD_LIBRARY_PATH"].split(":")[0]) / "libcuda.so"
    python = venv / "bin" / "python"
    run([python, "configure.py", f"--cuda-root={cuda}", "--no-cuda-enable-curand",
         f"--cudadrv-lib-dir={stubs.parent}"], log, cwd=source)
    run([python, "setup.py", "build_ext", "--inplace"], log, cwd=source)
    (source / "test" / "conftest.py").write_text(PLUGIN)
    (work / "built").touch()
    return source


def outcomes(work, source, cuda, extra, select):
    """Run the tests once; return {test: (outcome, message)}."""
    env = dict(os.environ, PATH=f"{cuda / 'bin'}:{os.environ['PATH']}", PYTHONPATH=str(source),
               XDG_CACHE_HOME=str(work / "cache"), DMI_STANDIN_MEMORY="4G", **extra)  # 2**32 elements take hours
    report = work / ("tests-preloaded.xml" if extra else "tests.xml")
    report.unlink(missing_ok=True)
    out = subprocess.run([work / "venv" / "bin" / "python", "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider",
                          f"--junitxml={report}", *select], cwd=source / "test", env=env, capture_output=True, text=True)
    (work / ("tests-preloaded.log" if extra else "tests.log")).write_text(out.stdout + out.stderr)
    if not report.exists():
        return {}
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = ("passed", "")
        for kind in ("failure", "error", "skipped"):
            if case.find(kind) is not None:
                found[name] = (kind, case.find(kind).get("message") or "")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=pathlib.Path, default=None)
    parser.add_argument("--quick", action="store_true", help="a part that takes under a minute")
    parser.add_argument("--preload")
    parser.add_argument("--spec")
    opt = parser.parse_args()
    work = (opt.work or pathlib.Path(tempfile.mkdtemp(prefix="pycuda-"))).resolve()
    cuda = toolkit()
    if opt.quick and not (work / "built").exists():
        skip(f"PyCUDA is not built yet in {work}: the long tests do that")
    source = build(work, cuda)
    select = ["test_driver.py", "-k", "memory or simple or streamed or event or gpuarray or struct"] if opt.quick else \
        ["test_driver.py", "test_gpuarray.py", "test_cumath.py"]
    plain = outcomes(work, source, cuda, {}, select)
    if not plain:
        print(f"1..1\nnot ok 1 the suite ran # see {work}/tests.log")
        return 1
    other = None
    if opt.preload:
        extra = {"LD_PRELOAD": opt.preload, "DMI_LOG": "none", "DMI_OUT": tempfile.mkdtemp(dir=work)}
        if opt.spec:
            extra["DMI_SPEC"] = opt.spec
        other = outcomes(work, source, cuda, extra, select)
    failed = 0
    print(f"1..{len(plain)}")
    for number, (name, (outcome, message)) in enumerate(sorted(plain.items()), 1):
        reason = CANNOT.get(name.split("::")[-1].split("[")[0])
        for part, why in CANNOT_MESSAGE.items():
            reason = why if part in message else reason
        good = outcome not in ("failure", "error")
        if other is not None and (other.get(name) or ("absent",))[0] != outcome:
            print(f"not ok {number} {name} # {outcome} without the library, not with it: see {work}")
            failed += 1
        elif good:
            print(f"ok {number} {name}" + (f" # SKIP {message}" if outcome == "skipped" else ""))
        elif reason:
            print(f"ok {number} {name} # SKIP {reason}")
        else:
            print(f"not ok {number} {name} # {message.splitlines()[0] if message else outcome}: see {work}")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
