#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kernels in green contexts: green_client.py WAY. Those are of a library, as the CUDA runtime's are."""
import sys

from cuda.bindings import driver as cu

from graph_client import PTX, TYPES, ok


class Green:
    def __init__(self):
        ok(cu.cuInit(0))
        self.primary = ok(cu.cuDevicePrimaryCtxRetain(0))
        ok(cu.cuCtxSetCurrent(self.primary))
        self.library = ok(cu.cuLibraryLoadData(PTX.encode(), [], [], 0, [], [], 0))
        self.kernel = cu.CUfunction(int(ok(cu.cuLibraryGetKernel(self.library, b"block"))))
        self.buffer = int(ok(cu.cuMemAlloc(1 << 16)))
        resource = ok(cu.cuDeviceGetDevResource(0, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        groups, n, _ = ok(cu.cuDevSmResourceSplitByCount(1, resource, 0, 4))
        self.green = ok(cu.cuGreenCtxCreate(ok(cu.cuDevResourceGenerateDesc(groups, n)), 0, 1))
        self.stream = ok(cu.cuStreamCreate(1))
        self.green_stream = ok(cu.cuGreenCtxStreamCreate(self.green, 1, 0))

    def launch(self, stream, seed):
        at = self.buffer + 4096 * seed
        ok(cu.cuLaunchKernel(self.kernel, 1, 1, 1, 64, 1, 1, 0, stream, ((at, 64, seed), TYPES), 0))
        ok(cu.cuStreamSynchronize(stream))

    def say(self):
        host = bytearray(1 << 16)
        ok(cu.cuMemcpyDtoH(host, self.buffer, len(host)))
        print([int.from_bytes(host[4096 * i:4096 * i + 4], "little") for i in range(16)])


def stream(g):
    """Its streams beside others, the primary context current all the time."""
    for i in range(4):
        g.launch(g.green_stream, 2 * i)
        g.launch(g.stream, 2 * i + 1)


def current(g):
    """It becomes the current one, as in PyTorch."""
    g.launch(g.stream, 0)
    ok(cu.cuCtxSetCurrent(ok(cu.cuCtxFromGreenCtx(g.green))))
    own = ok(cu.cuStreamCreate(1))
    for i in range(1, 5):
        g.launch(own if i % 2 else g.green_stream, i)
    ok(cu.cuCtxSetCurrent(g.primary))
    g.launch(g.stream, 5)


def destroyed(g):
    """It ends with records in flight, and another one comes."""
    for i in range(3):
        g.launch(g.green_stream, i)
    ok(cu.cuStreamDestroy(g.green_stream))
    ok(cu.cuGreenCtxDestroy(g.green))
    resource = ok(cu.cuDeviceGetDevResource(0, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    groups, n, _ = ok(cu.cuDevSmResourceSplitByCount(1, resource, 0, 4))
    green = ok(cu.cuGreenCtxCreate(ok(cu.cuDevResourceGenerateDesc(groups, n)), 0, 1))
    g.launch(ok(cu.cuGreenCtxStreamCreate(green, 1, 0)), 3)


WAYS = {f.__name__: f for f in (stream, current, destroyed)}

if __name__ == "__main__":
    green = Green()
    WAYS[sys.argv[1]](green)
    green.say()
