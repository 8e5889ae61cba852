# SPDX-License-Identifier: Apache-2.0
"""Real PyTorch on the stand-in driver, through the double of the CUDA runtime (tests/standin/runtime), in five columns.

torch_cuda_programs.py holds the programs: copies, streams, threads, graphs, allocators, two devices, processes that are forked and
spawned. Each compares its values bit by bit. columns.py says what is checked: outcomes program by program without the library, with
it, with every launch captured, every launch of the driver's log accounted for, with a trace in full, and with an edit that is off. The programs run once for
each of PyTorch's allocators. Skipped, by name, where the wheels are not to be had, or want a function of the runtime that the double lacks.
"""
import re
import shutil

import pytest

import columns
import harness
import torch_cuda_env

pytestmark = pytest.mark.built(harness.PRELOAD, harness.DMI_DUMP, harness.STANDIN / "libcuda.so.1", torch_cuda_env.RUNTIME / "libcudart.so.13")
PROGRAMS = harness.ROOT / "tests" / "engine" / "torch_cuda_programs.py"
WORK = harness.BUILD / "tests" / "engine" / "torch_cuda"
ALLOCATORS = {
    "caching": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "driver_pools": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "not_caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "blocking": {"CUDA_LAUNCH_BLOCKING": "1"},
}


# What PyTorch itself cannot do there, with any driver: {allocator: {program: why}}
IN_A_CAPTURE = "without a cache PyTorch calls cudaMalloc() in a capture, which ends it"
CANNOT = {"not_caching": {"program_a_graph_with_memory_of_its_own": IN_A_CAPTURE, "program_graphs_share_a_pool_and_one_goes": IN_A_CAPTURE,
                          "program_memory_is_shared_with_a_process": "without a cache PyTorch knows no block of its own to share",
                          "program_more_than_there_is": "without a cache PyTorch raises no OutOfMemoryError"}}


@pytest.fixture(name="environment", scope="module")
def fixture_environment():
    return torch_cuda_env.python_with_cuda()


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_programs_of_pytorch(environment, allocator, check, subtests, monkeypatch):
    python, env = environment
    spec = columns.spec().replace("row: none", "row: none, shared_memory: allow")  # a program shares memory with its child
    monkeypatch.setattr(columns, "spec", lambda: spec)
    monkeypatch.setattr(columns, "NAMES", (*columns.NAMES, "edited"))
    folder = WORK / allocator
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(PROGRAMS, folder)
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-o", "python_functions=program_*", "--rootdir", folder, folder / PROGRAMS.name]
    ran = columns.run_columns(folder, command, folder, env | ALLOCATORS[allocator] | {"DMI_STANDIN_DEVICES": "2", "DMI_STANDIN_MEMORY": "1G"})
    columns.judge(ran, CANNOT.get(allocator, {}), check, subtests)
    edits = [harness.run([harness.DMI_DUMP, "stats", "--edits", run], check=False).stdout for run in harness.runs_of(ran[4].out)]
    check(edits and all(re.search(r"^off +\d+ +\d+ +0 ", text, re.MULTILINE) for text in edits), "the edit was in force in each process, and wrote no row", edits)


def test_a_pytorch_that_wants_more_is_skipped_by_name(environment, monkeypatch):
    functions = torch_cuda_env.functions
    monkeypatch.setattr(torch_cuda_env, "functions", lambda library: functions(library) | {("cudaOfTomorrow", "libcudart.so.13"), ("cudaFree", "libcudart.so.14")})
    with pytest.raises(pytest.skip.Exception, match="cudaFree of libcudart.so.14, cudaOfTomorrow of libcudart.so.13"):
        torch_cuda_env.python_with_cuda()
