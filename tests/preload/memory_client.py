#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kinds of device memory that a site's tensor may lie in: memory_client.py KIND.

Launches `block` on words of that memory and says what they hold then.
"""
import os
import struct
import subprocess
import sys

from cuda.bindings import driver as cu

from fill_kernels import PTX
from graph_client import TYPES, Client, by_hand, new_context, ok

N = 1024  # words a launch writes


class Memory(Client):
    def launch_at(self, address, seed, n=N):
        args = ((address, n, seed), TYPES)
        ok(cu.cuLaunchKernel(self.f["block"], n // 64, 1, 1, 64, 1, 1, 0, self.streams[0], args, 0))

    def show(self, address, n=N):
        self.sync()
        host = bytearray(4 * n)
        ok(cu.cuMemcpyDtoH(host, address, len(host)))
        self.say(struct.unpack(f"<{n}I", host)[::97])


POSIX = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def props(shared=False, device=0):
    """Of physical memory. Return: these, bytes of a piece"""
    prop = cu.CUmemAllocationProp()
    prop.location.id = device
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    if shared:
        prop.requestedHandleTypes = POSIX
    return prop, ok(cu.cuMemGetAllocationGranularity(prop, cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))


def permit(at, n_bytes, allowed=True, device=0):
    access = cu.CUmemAccessDesc()
    access.location = props(device=device)[0].location
    flags = cu.CUmemAccess_flags
    access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if allowed else flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    ok(cu.cuMemSetAccess(at, n_bytes, [access], 1))


def export(handle):
    os.close(int(ok(cu.cuMemExportToShareableHandle(handle, POSIX, 0))))


def pieces(c, n_pieces, shared=False, n_handles=None):
    """Adjacent pieces of memory; those after @n_handles show the last one's again. Return: address, bytes of one"""
    prop, size = props(shared)
    at = int(ok(cu.cuMemAddressReserve(n_pieces * size, 0, 0, 0)))
    for i in range(n_pieces):
        if n_handles is None or i < n_handles:
            handle = ok(cu.cuMemCreate(size, prop, 0))
        ok(cu.cuMemMap(at + i * size, size, 0, handle, 0))
        if shared:
            export(handle)
    permit(at, n_pieces * size)
    return at, size


def mapped(c):
    """Across two and across three pieces; and, at the last, past the end of what is mapped."""
    at, size = pieces(c, 3)
    for seed, first in ((1, at + size - 2048), (2, at), (3, at + 2 * size - 64)):
        c.launch_at(first, seed)
        c.show(first)
    ok(cu.cuMemUnmap(at + 2 * size, size))
    c.launch_at(at + 2 * size - 4096, 4)
    c.show(at + 2 * size - 4096)


def mapped_in_a_graph(c):
    """The same, from a graph."""
    at, size = pieces(c, 3)

    def body(stream):
        for seed, first in ((1, at + size - 2048), (2, at), (3, at + 2 * size - 64)):
            c.launch_at(first, seed)
    exe = ok(cu.cuGraphInstantiate(c.capture(body), 0))
    for _ in range(2):
        ok(cu.cuGraphLaunch(exe, c.streams[0]))
        c.show(at + size - 2048)


def other_device(c):
    """Pieces of the second device, of which the first may read one. DMI_STANDIN_DEVICES: 2."""
    prop, size = props(device=1)
    at = int(ok(cu.cuMemAddressReserve(2 * size, 0, 0, 0)))
    for i in range(2):
        ok(cu.cuMemMap(at + i * size, size, 0, ok(cu.cuMemCreate(size, prop, 0)), 0))
    permit(at, 2 * size, device=1)
    permit(at, size)
    contexts = c.context, ok(cu.cuDevicePrimaryCtxRetain(1))
    for seed, context in enumerate(contexts, 1):
        ok(cu.cuCtxSetCurrent(context))
        c.f["block"] = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(PTX.encode())), b"block"))
        c.streams[0] = ok(cu.cuStreamCreate(1))
        ok(cu.cuMemAlloc(64))  # the context gets its ring here
        for i, first in enumerate((at, at + size - 4 * N)):
            c.launch_at(first, 10 * seed + i)
            c.show(first)


def grown(c):
    """Tensors at one address that grow, with the segment: within the first piece, across two, across a third that is new."""
    prop, size = props()
    at = int(ok(cu.cuMemAddressReserve(3 * size, 0, 0, 0)))
    for i in range(3):
        ok(cu.cuMemMap(at + i * size, size, 0, ok(cu.cuMemCreate(size, prop, 0)), 0))
        permit(at + i * size, size)
        if i:
            c.launch_at(at + i * size - 2048, 2 * i, 256)
            c.launch_at(at + i * size - 2048, 2 * i + 1)
            c.show(at + i * size - 2048)


def barred(c):
    """The site's tensor is twice what the kernel writes. What lies after that: a piece that the device may not read, may, may not again."""
    at, size = pieces(c, 2)
    for seed, allowed in ((1, False), (2, True), (3, False)):
        permit(at + size, size, allowed)
        c.launch_at(at + size - 4 * N, seed)
        c.show(at + size - 4 * N)


def unmapped_by_halves(c):
    """A call that the driver refuses ends nothing."""
    at, size = pieces(c, 2)
    assert cu.cuMemUnmap(at, size + 4096)[0] != cu.CUresult.CUDA_SUCCESS
    c.launch_at(at + size - 2048, 1)
    c.show(at + size - 2048)


def handles_come_back(c):
    """Exported memory ends; its handle is that of private memory then. DMI_STANDIN_HANDLES: reuse."""
    prop, size = props(shared=True)
    at = int(ok(cu.cuMemAddressReserve(4 * size, 0, 0, 0)))
    seen = set()
    for i in range(4):
        handle = ok(cu.cuMemCreate(size, prop, 0))
        seen.add(int(handle))
        ok(cu.cuMemMap(at + i * size, size, 0, handle, 0))
        permit(at + i * size, size)
        if i % 2 == 0:
            export(handle)
        c.launch_at(at + i * size, i + 1)
        c.show(at + i * size)
        ok(cu.cuMemUnmap(at + i * size, size))
        ok(cu.cuMemRelease(handle))
    c.say("handles came back:", len(seen) < 4)


def retained(c):
    """The handle that is exported is another reference than the one that was mapped, which has gone."""
    prop, size = props(shared=True)
    at = int(ok(cu.cuMemAddressReserve(size, 0, 0, 0)))
    handle = ok(cu.cuMemCreate(size, prop, 0))
    ok(cu.cuMemMap(at, size, 0, handle, 0))
    permit(at, size)
    again = ok(cu.cuMemRetainAllocationHandle(at))
    ok(cu.cuMemRelease(handle))
    for seed in (1, 2):
        c.launch_at(at, seed)
        c.show(at)
        if seed == 1:
            export(again)
            ok(cu.cuMemRelease(again))


def pool_exported(c):
    """One of two allocations of a pool is given to another process; then it is freed, and the memory allocated again."""
    prop = cu.CUmemPoolProps()
    prop.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.handleTypes = POSIX
    pool = ok(cu.cuMemPoolCreate(prop))
    a, b = (int(ok(cu.cuMemAllocFromPoolAsync(1 << 16, pool, c.streams[0]))) for _ in range(2))
    c.sync()
    c.launch_at(a, 1)
    ok(cu.cuMemPoolExportPointer(a))
    for seed, at in ((2, a), (3, b)):
        c.launch_at(at, seed)
        c.show(at)
    ok(cu.cuMemFreeAsync(a, c.streams[0]))
    again = int(ok(cu.cuMemAllocFromPoolAsync(1 << 16, pool, c.streams[0])))
    c.launch_at(again, 4)
    c.show(again)


def given_back(c):
    """Memory is unmapped while a copy of it waits: the kernel is done with it, as a flag of its own would say. The site's tensor
    begins one piece after what the kernel writes."""
    at, size = pieces(c, 2)
    gate = int(ok(cu.cuMemAlloc(4)))
    c.launch_at(at, 1)  # what is loaded at the first launch is loaded
    c.sync()
    ok(cu.cuMemsetD32(gate, 0, 1))
    ok(cu.cuStreamWaitValue32(c.streams[0], gate, 1, 0))
    c.launch_at(at, 2)
    ok(cu.cuMemUnmap(at + size, size))
    ok(cu.cuStreamWriteValue32(c.streams[1], gate, 1, 0))
    cu.cuCtxSynchronize()


def neighbours(c):
    """Two allocations side by side: a tensor does not go on from one to the other. The kernel writes into the first alone."""
    block = int(ok(cu.cuMemAlloc(4096)))
    c.launch_at(block, 1)
    c.show(block)


def exported(c):
    """Memory that another process may open; and other memory."""
    a, b = int(ok(cu.cuMemAlloc(1 << 16))), int(ok(cu.cuMemAlloc(1 << 16)))
    c.launch_at(a, 1)
    c.sync()
    ok(cu.cuIpcGetMemHandle(a))
    for seed, at in ((2, a), (3, b), (4, a + 8192)):
        c.launch_at(at, seed)
        c.show(at)
    c.sync()
    ok(cu.cuMemFree(a))
    again = int(ok(cu.cuMemAlloc(1 << 16)))  # at the same address, and nobody else's
    c.launch_at(again, 5)
    c.show(again)


def exported_often(c):
    """Allocations that are exported again and again, pieces whose handles come and go, and memory that is nobody else's."""
    buffers = [int(ok(cu.cuMemAlloc(1 << 16))) for _ in range(10)]
    prop, size = props(shared=True)
    for i in range(int(sys.argv[2])):
        ok(cu.cuIpcGetMemHandle(buffers[i % 9]))
        if i % 500 == 0:
            handle = ok(cu.cuMemCreate(size, prop, 0))
            export(handle)
            ok(cu.cuMemRelease(handle))
    for seed, at in enumerate(buffers[7:], 1):
        c.launch_at(at, seed)
        c.show(at)


def contexts_end(c):
    """Exported memory ends with its context; what the next one gets at its address is private. DMI_STANDIN_HANDLES: reuse."""
    seen = set()
    for seed in (1, 2):
        context = new_context()
        c.f["block"] = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(PTX.encode())), b"block"))
        c.streams[0] = ok(cu.cuStreamCreate(1))
        at = int(ok(cu.cuMemAlloc(1 << 16)))
        seen.add(at)
        if seed == 1:
            ok(cu.cuIpcGetMemHandle(at))
        c.launch_at(at, seed)
        c.show(at)
        ok(cu.cuCtxDestroy(context))
    c.say("the address came back:", len(seen) == 1)


def exported_pieces(c):
    at, _ = pieces(c, 1, shared=True)
    c.launch_at(at, 1)
    c.show(at)


def imported(c):
    """A child's memory, opened here: twice, and closed once after the first launch."""
    ready, done = os.pipe(), os.pipe()
    child = subprocess.Popen([sys.executable, __file__, "owner", str(ready[1]), str(done[0])], pass_fds=(ready[1], done[0]))
    os.close(ready[1])
    raw = os.read(ready[0], 64)
    handle = cu.CUipcMemHandle()
    handle.reserved = raw
    at = int(ok(cu.cuIpcOpenMemHandle(handle, 1)))
    assert int(ok(cu.cuIpcOpenMemHandle(handle, 1))) == at
    for seed in (1, 2):
        c.launch_at(at, seed)
        c.show(at)
        ok(cu.cuIpcCloseMemHandle(at))
    os.write(done[1], b"!")
    child.wait()


def owner(c):
    """The child of `imported`."""
    at = ok(cu.cuMemAlloc(1 << 16))
    os.write(int(sys.argv[2]), bytes(ok(cu.cuIpcGetMemHandle(at)).reserved))
    os.read(int(sys.argv[3]), 1)


def graph(c):
    """The driver may not answer while a graph is instantiated, and answer later."""
    exe = ok(cu.cuGraphInstantiate(by_hand(c, [("block", 0, 64, 1), ("block", 2, 64, 2)])[0], 0))
    for _ in range(4):
        ok(cu.cuGraphLaunch(exe, c.streams[0]))
    c.show(c.buffers[0], 64)


KINDS = {f.__name__: f for f in (mapped, mapped_in_a_graph, other_device, grown, barred, unmapped_by_halves, neighbours, exported, exported_often, contexts_end, exported_pieces, handles_come_back, retained,
                                 pool_exported, given_back, imported, owner, graph)}

if __name__ == "__main__":
    client = Memory()
    for stream in client.streams:
        ok(cu.cuStreamSynchronize(stream))
    KINDS[sys.argv[1]](client)
