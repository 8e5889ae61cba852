# SPDX-License-Identifier: Apache-2.0
"""numba-cuda's own tests on the stand-in: a client that resolves the driver through cuGetProcAddress, in three columns.

The wheel holds the tests; pip puts it and what it needs into an environment of its own (tools/setup/numba.txt), beside
the build folders. numba_ptx.py keeps what numba-cuda links as PTX, in the processes that tests start too. columns.py says
what is checked: outcomes test by test without the library, with it, and with every launch captured, every launch of the
driver's log accounted for. The long run has a part of the files; DMI_TEST_NUMBA=all has all of them, which takes a night's
hour. Skipped, by name, where the environment is not there nor to be had. The stand-in is strict about handles: no test of these gives a wrong one on purpose.
"""
import os
import shutil

import pytest

import columns
import harness

pytestmark = pytest.mark.built(harness.PRELOAD, harness.DMI_DUMP, harness.STANDIN / "libcuda.so.1")
LISTED = harness.ROOT / "tools" / "setup" / "numba.txt"
PLUGIN = harness.ROOT / "tests" / "engine" / "numba_ptx.py"
WORK = harness.BUILD / "tests" / "engine" / "numba"
FOLDERS = ("cudapy", "cudadrv", "nrt", "core", "nocuda")

# An array is seven parameters (of one dimension): owner, parent, items, bytes of one, data, shape, strides.
SITES = (("array", "param[32]", 32, 16), ("byte", "param[32]", 32, 1), ("next_array", "param[88]", 88, 16))

# It closes a pool of processes and waits for none: they end by SIGTERM.
ENDING = ("test_multiprocessing",)

# What cannot pass here, and why. Anything else that fails is a failure.
CODE = "needs machine code: of several parts, or of PTX that is no LTO IR, nvJitLink makes a cubin alone, and the stand-in loads none"
NUMBERS = "asks for numbers that only machine code has"
HEAP = "a kernel calls malloc() or free(): the stand-in has no device heap"
RECURSION = "a device function calls itself: the stand-in's compiler of PTX cannot"
BINDINGS = "numba-cuda 0.30 reads CUipcMemHandle.reserved, which cuda-bindings 13.5 does not have"
STAMPS = "numba 0.68 and numba-cuda 0.30 stamp the index of a cache that they share in different ways: each takes the other's for stale"
CANNOT = {
    **dict.fromkeys(("test_linking_eager_compile", "test_linking_lazy_compile", "test_cannot_cache_linking_libraries", "test_cache_cg",
                     "test_from_buffer", "test_external_cooperative_func", "test_max_cooperative_grid_blocks", "test_sync_at_matrix_row",
                     "test_sync_group", "test_sync_group_is_cooperative", "test_this_grid", "test_this_grid_is_cooperative",
                     "test_nrt_detect_linked_ptx_file", "test_chained_device_function", "test_chained_device_function_two_calls",
                     "test_chained_device_three_functions", "test_debug_function_calls_device_function",
                     "test_debug_function_calls_internal_impl", "test_grid_group_type", "test_shared_memory_address_class_float16"), CODE),
    **dict.fromkeys(("test_get_const_mem_size", "test_get_const_mem_specialized", "test_get_const_mem_unspecialized",
                     "test_set_registers_38", "test_set_registers_57", "test_set_registers_eager"), NUMBERS),
    **dict.fromkeys(("test_global_explicit_sig", "test_global_implicit_sig", "test_inner_explicit_sig"), RECURSION),
    **dict.fromkeys(("test_ipc_array", "test_ipc_handle", "test_ipc_handle_serialization", "test_staged"), BINDINGS),
    **dict.fromkeys(("test_cpu_and_cuda_reuse", "test_cpu_and_cuda_targets"), STAMPS),
    **dict.fromkeys([f"test_{name}_basic" for name in (
        "all", "any", "count_nonzero", "max", "mean", "min", "nanmax", "nanmean", "nanmin", "nanprod", "nansum", "std", "sum", "var")]
        + ["test_count_nonzero_2d", "test_count_nonzero_bool", "test_array_copy", "test_reinterpret_array_type", "test_nrt_launches",
           "test_nrt_ptx_contains_refcount", "test_nrt_returns_correct", "test_nrt_toggle_enabled", "test_read_one_stat",
           "test_stats_status_toggle", "test_stats_env_var_explicit_on", "test_del_at_beginning_of_loop",
           "test_escaping_var_init_in_loop", "test_invalid_computation_of_lifetime", "test_no_return"], HEAP)}

# A part that takes two minutes: arrays, streams, events, memory, atomics, warps, shared and constant memory, a solver.
QUICK = ("cudadrv_array_attr", "cudadrv_streams", "cudadrv_events", "cudadrv_cuda_memory", "cudapy_atomics.py::TestCudaAtomics::test_atomic_add",
         "cudapy_warp_ops", "cudapy_sm", "cudapy_constmem", "cudapy_laplace")


def write_suite(python, folder):
    """A file for each file of tests in the wheel: pytest would import those by a name that is not theirs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tests = next(python.parents[1].glob("lib/python3*/site-packages/numba_cuda/numba/cuda/tests"))
    for path in sorted(path for name in FOLDERS for path in (tests / name).glob("test_*.py")):
        kind = path.parent.name
        (folder / f"test_{kind}_{path.stem.removeprefix('test_')}.py").write_text(
            f"from numba.cuda.tests.{kind}.{path.stem} import *  # noqa: F403\n")


def write_site(folder):
    """Processes that a test starts load the plugin too: Python imports this module before anything else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text("import numba_ptx  # noqa: F401\n")
    return folder


def chosen(whole, suite):
    if whole:
        return sorted(path.name for path in suite.glob("test_*.py"))
    files = [word.partition("::") for word in QUICK]
    return [f"test_{name.removesuffix('.py')}.py{sep}{rest}" for name, sep, rest in files]


def test_numba(check, subtests, monkeypatch):
    monkeypatch.setattr(columns, "SITES", SITES)
    monkeypatch.setattr(columns, "ENDING", ENDING)
    python = columns.environment("numba-cuda", LISTED)
    whole = os.environ.get("DMI_TEST_NUMBA") == "all"
    suite = WORK / "suite"
    write_suite(python, suite)
    env = dict(PYTHONPATH=f"{write_site(WORK / 'site')}:{PLUGIN.parent}", PYTHONDONTWRITEBYTECODE="1", XDG_CACHE_HOME=WORK / "cache", DMI_STANDIN_MEMORY="4G",
               DMI_STANDIN_CACHE=os.environ.get("DMI_STANDIN_CACHE", WORK / "standin-cache"))
    command = [python, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "-p", "numba_ptx", *chosen(whole, suite)]
    done = columns.run_columns(WORK / "columns", command, suite, env)
    columns.judge(done, CANNOT, check, subtests)
