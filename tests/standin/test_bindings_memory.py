# SPDX-License-Identifier: Apache-2.0
"""The stand-in's memory, graphs and green contexts through cuda.bindings, and with code that nvcc compiled."""
import ctypes
import os
import shutil
import subprocess

import numpy as np
import pytest

from cuda.bindings import driver as cu

SOURCE = """
extern "C" __global__ void choose(cudaGraphConditionalHandle handle, unsigned value) { cudaGraphSetConditional(handle, value); }
extern "C" __global__ void count_down(cudaGraphConditionalHandle handle, int *rest)
{
    cudaGraphSetConditional(handle, --*rest > 0);
}
extern "C" __global__ void add(int *p, int v) { p[blockIdx.x * blockDim.x + threadIdx.x] += v; }
"""
MIB = 1 << 20


def check(result):
    """Unpack cuda.bindings' (error, values...) tuples."""
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def refused(result, error):
    assert result[0] == getattr(cu.CUresult, error), result[0]


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        pytest.skip("no nvcc")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.cu").write_text(SOURCE)
    subprocess.run([nvcc, "-ptx", "-rdc=true", "-arch=compute_80", "-o", folder / "kernels.ptx", folder / "kernels.cu"],
                   check=True, env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    check(cu.cuInit(0))
    check(cu.cuCtxSetCurrent(check(cu.cuDevicePrimaryCtxRetain(0))))
    return check(cu.cuModuleLoadData((folder / "kernels.ptx").read_bytes() + b"\0"))


def kernel(module, name):
    return check(cu.cuModuleGetFunction(module, name.encode()))


def add(module, pointer, n, value, stream=0):
    values = ((int(pointer), value), (ctypes.c_void_p, ctypes.c_int))
    check(cu.cuLaunchKernel(kernel(module, "add"), n // 32, 1, 1, 32, 1, 1, 0, stream, values, 0))


def read(pointer, n):
    out = np.empty(n, np.int32)
    check(cu.cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
    return out


def on_device():
    location = cu.CUmemLocation()
    location.type, location.id = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    return location


def test_a_segment_expands_piece_by_piece(module):
    """As allocators do that map more memory after what they have."""
    prop, access = cu.CUmemAllocationProp(), cu.CUmemAccessDesc()
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location = access.location = on_device()
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    base = check(cu.cuMemAddressReserve(64 * MIB, 0, 0, 0))
    for i in range(3):
        handle = check(cu.cuMemCreate(2 * MIB, prop, 0))
        at = int(base) + i * 2 * MIB
        check(cu.cuMemMap(at, 2 * MIB, 0, handle, 0))
        check(cu.cuMemSetAccess(at, 2 * MIB, [access], 1))
        check(cu.cuMemRelease(handle))
    check(cu.cuMemsetD32(base, 1, 6 * MIB // 4))
    add(module, int(base) + 2 * MIB - 256, 128, 4)
    assert (read(int(base) + 2 * MIB - 256, 128) == 5).all()
    assert [int(v) for v in check(cu.cuMemGetAddressRange(int(base) + 5 * MIB))] == [int(base) + 4 * MIB, 2 * MIB]
    refused(cu.cuMemGetAddressRange(int(base) + 7 * MIB), "CUDA_ERROR_NOT_FOUND")
    check(cu.cuMemUnmap(base, 6 * MIB))
    check(cu.cuMemAddressFree(base, 64 * MIB))


def test_a_stream_allocates_and_frees(module):
    stream = check(cu.cuStreamCreate(1))
    first = check(cu.cuMemAllocAsync(4096, stream))
    check(cu.cuMemsetD32Async(first, 3, 1024, stream))
    add(module, first, 1024, 4, stream)
    check(cu.cuStreamSynchronize(stream))  # the copy below is on another stream
    assert (read(first, 1024) == 7).all()
    check(cu.cuMemFreeAsync(first, stream))
    assert int(check(cu.cuMemAllocAsync(4096, stream))) == int(first)
    assert int(check(cu.cuMemAllocAsync(0, stream))) == 0


def test_memory_of_a_captured_graph(module):
    stream, out = check(cu.cuStreamCreate(1)), check(cu.cuMemAlloc(256))
    check(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    inside = check(cu.cuMemAllocAsync(256, stream))
    check(cu.cuMemsetD32Async(inside, 2, 64, stream))
    add(module, inside, 64, 3, stream)
    check(cu.cuMemcpyDtoDAsync(out, inside, 256, stream))
    check(cu.cuMemFreeAsync(inside, stream))
    graph = check(cu.cuStreamEndCapture(stream))
    refused(cu.cuGraphClone(graph), "CUDA_ERROR_NOT_SUPPORTED")
    graph_exec = check(cu.cuGraphInstantiate(graph, 0))
    for _ in range(3):
        check(cu.cuGraphLaunch(graph_exec, stream))
    check(cu.cuStreamSynchronize(stream))
    assert (read(out, 64) == 5).all()
    reserved = cu.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
    assert int(check(cu.cuDeviceGetGraphMemAttribute(0, reserved))) >= 256
    check(cu.cuGraphExecDestroy(graph_exec))
    check(cu.cuDeviceGraphMemTrim(0))
    assert int(check(cu.cuDeviceGetGraphMemAttribute(0, reserved))) == 0


def test_a_loop_that_a_kernel_ends(module):
    stream, rest, out = check(cu.cuStreamCreate(1)), check(cu.cuMemAlloc(4)), check(cu.cuMemAlloc(128))
    check(cu.cuMemsetD32(rest, 7, 1))
    check(cu.cuMemsetD32(out, 0, 32))
    graph = check(cu.cuGraphCreate(0))
    context = check(cu.cuCtxGetCurrent())
    handle = check(cu.cuGraphConditionalHandleCreate(graph, context, 1, 1))
    params = cu.CUgraphNodeParams()
    params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = cu.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    params.conditional.size = 1
    params.conditional.ctx = context
    check(cu.cuGraphAddNode(graph, None, None, 0, params))
    body = params.conditional.phGraph_out[0]
    check(cu.cuStreamBeginCaptureToGraph(stream, body, None, None, 0,
                                         cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    add(module, out, 32, 2, stream)
    values = ((int(handle), int(rest)), (ctypes.c_uint64, ctypes.c_void_p))
    check(cu.cuLaunchKernel(kernel(module, "count_down"), 1, 1, 1, 1, 1, 1, 0, stream, values, 0))
    check(cu.cuStreamEndCapture(stream))
    check(cu.cuGraphLaunch(check(cu.cuGraphInstantiate(graph, 0)), stream))
    check(cu.cuStreamSynchronize(stream))
    assert (read(out, 32) == 14).all()


def test_a_green_context_is_made_current(module):
    resource = check(cu.cuDeviceGetDevResource(0, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    groups, n, _ = check(cu.cuDevSmResourceSplitByCount(1, resource, 0, 4))
    green = check(cu.cuGreenCtxCreate(check(cu.cuDevResourceGenerateDesc(groups, n)), 0, 1))
    primary, context = check(cu.cuCtxGetCurrent()), check(cu.cuCtxFromGreenCtx(green))
    assert int(context) != int(primary) and int(check(cu.cuCtxGetId(context))) != int(check(cu.cuCtxGetId(primary)))
    stream = check(cu.cuGreenCtxStreamCreate(green, 1, 0))
    check(cu.cuCtxSetCurrent(context))
    out = check(cu.cuMemAlloc(128))
    check(cu.cuMemsetD32Async(out, 6, 32, stream))
    check(cu.cuStreamSynchronize(stream))
    check(cu.cuStreamDestroy(stream))
    check(cu.cuCtxSetCurrent(primary))
    check(cu.cuGreenCtxDestroy(green))
    assert (read(out, 32) == 6).all()
