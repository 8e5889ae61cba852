# SPDX-License-Identifier: Apache-2.0
"""PyCUDA's own tests on the stand-in: a client linked against libcuda by name, without DMI, with it, and captured.

The sdist comes from PyPI into the build folder and is built there, once, without curand, its modules loaded as PTX
instead of machine code. None of it enters the project. columns.py says what is checked; it is skipped where the suite
cannot be had (no network, no nvcc, no C++ compiler). --long runs all of it, otherwise a part that takes half a minute.
"""
import fcntl
import os
import pathlib
import re
import shutil
import sys

import pytest

import columns
import harness

WORK = harness.BUILD / "tests" / "engine" / "pycuda"
pytestmark = pytest.mark.built(harness.PRELOAD, harness.DMI_DUMP, harness.STANDIN / "libcuda.so.1")
VERSION = "2026.1"
# numpy and pytest are in build/venv; pytools and what it wants are PyCUDA's.
PACKAGES = ("pytools==2026.1.1", "mako==1.4.3", "platformdirs==4.14.7", "siphash24==1.9",
            "setuptools==82.0.1", "wheel==0.48.0")

# What cannot pass here, and why. Anything else that fails is a failure.
CANNOT = {
    "test_jit_link_module": "needs the driver's linker and NVIDIA's device runtime (dynamic parallelism)",
    "test_recursive_launch": "needs the driver's linker and NVIDIA's device runtime (dynamic parallelism)",
}

# A part that takes half a minute: streams, structs, vectors, constants, large shared memory, contexts, elementwise and
# reduction kernels, scans, complex numbers.
QUICK = [*(f"test_driver.py::TestDriver::{name}" for name in (
    "test_memory", "test_simple_kernel", "test_simple_kernel_2", "test_streamed_kernel", "test_gpuarray", "test_gpuarray_cai",
    "test_large_smem", "test_multi_context", "test_additional_primary_context", "test_prepared_invocation",
    "test_constant_memory")), "test_driver.py::test_pass_cai_array",
    *(f"test_gpuarray.py::TestGPUArray::{name}" for name in (
        "test_pow_array", "test_sum", "test_dot[129]", "test_if_positive", "test_stride_preservation", "test_view_and_strides",
        "test_struct_reduce", "test_zeros_like_etc")),
    "test_cumath.py::test_sqrt"]

# A pytest plugin of ours: modules are loaded from PTX, as compile_plain() can make it, and curandom.py, whose own
# generator needs no curand, gets from _driver the answer that there is none.
PLUGIN = """
import pycuda._driver as driver
import pycuda.compiler as compiler

plain = compiler.compile_plain


def compile_plain(source, options, keep, nvcc, cache_dir, target="cubin"):
    return plain(source, options, keep, nvcc, cache_dir, "ptx" if target == "cubin" else target)


compiler.compile_plain = compile_plain
driver.get_curand_version = lambda: (0, 0, 0)
import pycuda.curandom as curandom  # noqa: E402

curandom.get_curand_version = lambda: None
"""


def unite(source):
    """
    Its 37 files of C++ mostly read the same headers: as one unit they compile in a third of the time. setup.py
    names them, so the others stay, empty.
    """
    first = source / "src" / "wrapper" / "wrap_cudadrv.cpp"  # it has numpy's API imported
    more = [source / "src" / "wrapper" / "mempool.cpp", *sorted((source / "src" / "cpp").glob("*.cpp")),
            *sorted((source / "bpl-subset" / "bpl_subset" / "libs" / "python").rglob("*.cpp"))]
    includes = []
    for path in (first, *more):
        moved = path.with_suffix(".cpp.inc")
        path.rename(moved)
        path.write_text("")
        includes.append(f'#include "{moved}"\n')
    first.write_text("".join(includes))


def fetch_and_build(work, cuda):
    """The folder of the built sdist; one at a time builds."""
    source, site, log = work / f"pycuda-{VERSION}", work / "site", work / "build.log"
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        key = f"{sys.version} {cuda} {PACKAGES} {pathlib.Path(__file__).read_text()}"
        stamp = work / "built"
        if stamp.exists() and stamp.read_text() == key:
            return source
        for stale in (stamp, log):
            stale.unlink(missing_ok=True)
        shutil.rmtree(source, ignore_errors=True)
        shutil.rmtree(site, ignore_errors=True)
        env = dict(os.environ, PYTHONPATH=str(site), PATH=f"{cuda}/bin:{os.environ['PATH']}", CFLAGS="-O0 -g0 -w",
                   CXXFLAGS="-O0 -g0 -w")
        env.setdefault("PIP_CACHE_DIR", str(work / "pip-cache"))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]
        try:
            import numpy  # noqa: F401
            packages = PACKAGES
        except ImportError:
            packages = (*PACKAGES, "numpy")
        columns.step("fetching what PyCUDA needs from the Python package index", [*pip, "install", "--target", site, *packages], log, env=env)
        columns.step("fetching PyCUDA from the Python package index",
                     [*pip, "download", "--no-deps", "--no-build-isolation", "--no-binary", "pycuda", "--dest", work,
                      f"pycuda=={VERSION}"], log, env=env)
        columns.step("unpacking PyCUDA", ["tar", "xf", f"pycuda-{VERSION}.tar.gz"], log, cwd=work)
        unite(source)
        # linked against the stand-in's library: the toolchain's wheels have no stub, and the names are the same
        columns.step("configuring PyCUDA", [sys.executable, "configure.py", f"--cuda-root={cuda}", "--no-cuda-enable-curand",
                                            f"--cudadrv-lib-dir={harness.standin_folder(harness.STANDIN_VERSIONS[-1])}"], log, cwd=source, env=env)
        columns.step("building PyCUDA", [sys.executable, "setup.py", "build_ext", "--inplace"], log, cwd=source, env=env)
        (source / "test" / "conftest.py").write_text(PLUGIN)
        stamp.write_text(key)
    return source


def lacking(source):
    """Entries that PyCUDA, which is built with the toolchain's headers, is linked to, and that this driver does not have."""
    module = next((source / "pycuda").glob("_driver.*.so"))
    driver = harness.STANDIN / "libcuda.so.1"
    wanted, there = ({line.split()[0].partition("@")[0] for line in harness.run(["nm", "-D", "-P", kind, path]).stdout.splitlines()}
                     for kind, path in (("--undefined-only", module), ("--defined-only", driver)))
    return sorted(name for name in wanted - there if re.match(r"cu[A-Z]", name))


def test_pycuda(check, subtests, long):
    cuda = columns.toolkit()
    source = fetch_and_build(WORK, cuda)
    if harness.STANDIN_VERSION < harness.STANDIN_VERSIONS[-1]:
        missing = ", ".join(lacking(source)) or "PTX that is newer than it reads"
        pytest.skip(f"PyCUDA is built for CUDA 13 and compiles with its nvcc; this driver lacks {missing}")
    select = ["test_driver.py", "test_gpuarray.py", "test_cumath.py"] if long else QUICK
    # 2**32 elements, which some tests allocate where there is room, take hours
    env = dict(PATH=f"{cuda}/bin:{os.environ['PATH']}", PYTHONPATH=f"{source}:{WORK / 'site'}", PYTHONDONTWRITEBYTECODE="1",
               XDG_CACHE_HOME=WORK / "cache", DMI_STANDIN_MEMORY="4G",
               DMI_STANDIN_CACHE=os.environ.get("DMI_STANDIN_CACHE", WORK / "standin-cache"))
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", *select]
    done = columns.run_columns(WORK / ("whole" if long else "quick"), command, source / "test", env)
    columns.judge(done, CANNOT, check, subtests)
