#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps with launches of a graph of which CUPTI records nothing, little, or sometimes something: quiet_client.py KIND [alone].

A step's grid is its number and 1, those of kernels in the graph have 1,000 more. Four kernels a step, and the graph between them; with `alone` every second step
launches the graph and nothing else.
"""
import ctypes
import pathlib
import sys

from cuda.bindings import driver as cu

from graph_client import BYTES, TYPES, Client, ok
from left_alone_client import add_conditional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import dmi  # noqa: E402

STEPS = 48
NOTHING = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)


def kernel(c, graph, behind=()):
    p = c.params("other", 5, 64, 3)
    p.gridDimX = 1000
    return ok(cu.cuGraphAddKernelNode(graph, list(behind) or None, len(behind), p))


def empty(c, graph):
    ok(cu.cuGraphAddEmptyNode(graph, None, 0))


def nothing(c, graph):
    pass


def children(c, graph):
    """Empty ones, within one another."""
    inner, middle = ok(cu.cuGraphCreate(0)), ok(cu.cuGraphCreate(0))
    empty(c, inner)
    ok(cu.cuGraphAddChildGraphNode(middle, None, 0, inner))
    ok(cu.cuGraphAddChildGraphNode(graph, None, 0, middle))
    ok(cu.cuGraphAddChildGraphNode(graph, None, 0, ok(cu.cuGraphCreate(0))))


def child_kernel(c, graph):
    inner = ok(cu.cuGraphCreate(0))
    kernel(c, inner)
    ok(cu.cuGraphAddChildGraphNode(graph, None, 0, inner))


def event(c, graph):
    recorded = ok(cu.cuEventCreate(0))
    node = ok(cu.cuGraphAddEventRecordNode(graph, None, 0, recorded))
    ok(cu.cuGraphAddEventWaitNode(graph, [node], 1, recorded))


def host(c, graph):
    params = cu.CUDA_HOST_NODE_PARAMS()
    params.fn = ctypes.cast(NOTHING, ctypes.c_void_p).value
    ok(cu.cuGraphAddHostNode(graph, None, 0, params))


def memory(c, graph):
    params = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
    params.poolProps.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    params.poolProps.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    params.bytesize = 4096
    node = ok(cu.cuGraphAddMemAllocNode(graph, None, 0, params))
    ok(cu.cuGraphAddMemFreeNode(graph, [node], 1, params.dptr))


def copies(c, graph):
    copy = cu.CUDA_MEMCPY3D()
    copy.srcMemoryType = copy.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.dstDevice, copy.WidthInBytes, copy.Height, copy.Depth = c.buffers[3], c.buffers[4], BYTES, 1, 1
    ok(cu.cuGraphAddMemcpyNode(graph, None, 0, copy, c.context))


def fills(c, graph):
    fill = cu.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.elementSize, fill.width, fill.height, fill.value = c.buffers[4], 1, BYTES, 1, 7
    ok(cu.cuGraphAddMemsetNode(graph, None, 0, fill, c.context))


def off(c, graph):
    return kernel(c, graph)


def again(c, graph):
    """Off for a third of the steps, then on, then off."""
    return kernel(c, graph)


def body(c, graph):
    kernel(c, add_conditional(c, graph)[1][0])


def not_taken(c, graph):
    kernel(c, add_conditional(c, graph, value=0)[1][0])


def launch(c, name, i):
    ok(cu.cuLaunchKernel(c.f[name], i + 1, 1, 1, 64, 1, 1, 0, c.streams[0], ((int(c.buffers[0]), 64, i), TYPES), 0))


def main():
    kind, alone = sys.argv[1], sys.argv[2:] == ["alone"]
    c = Client()
    graph = ok(cu.cuGraphCreate(0))
    node = globals()[kind](c, graph)
    exe = ok(cu.cuGraphInstantiate(graph, 0))
    for i in range(STEPS):
        if kind in ("off", "again") and i % 16 == 0:
            ok(cu.cuGraphNodeSetEnabled(exe, node, int(kind == "again" and i == 16)))
        dmi.step_begin(i, [dmi.Span("r", i, 1)])
        if not alone or i % 2 == 0:
            launch(c, "first", i)
        if not alone or i % 2:
            ok(cu.cuGraphLaunch(exe, c.streams[0]))
        for name in ("block", "block", "other") if not alone or i % 2 == 0 else ():
            launch(c, name, i)
        if i % 4 == 3:
            ok(cu.cuStreamSynchronize(c.streams[0]))
        dmi.step_end()
    c.digest()


if __name__ == "__main__":
    main()
