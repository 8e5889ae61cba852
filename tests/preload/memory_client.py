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

from graph_client import TYPES, Client, by_hand, ok

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


def pieces(c, n_pieces, shared=False):
    """Adjacent pieces of memory. Return: address, bytes of one"""
    prop = cu.CUmemAllocationProp()
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    posix = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    if shared:
        prop.requestedHandleTypes = posix
    size = ok(cu.cuMemGetAllocationGranularity(prop, cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
    at = int(ok(cu.cuMemAddressReserve(n_pieces * size, 0, 0, 0)))
    for i in range(n_pieces):
        handle = ok(cu.cuMemCreate(size, prop, 0))
        ok(cu.cuMemMap(at + i * size, size, 0, handle, 0))
        if shared:
            os.close(int(ok(cu.cuMemExportToShareableHandle(handle, posix, 0))))
    access = cu.CUmemAccessDesc()
    access.location = prop.location
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(cu.cuMemSetAccess(at, n_pieces * size, [access], 1))
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


def exported_pieces(c):
    at, _ = pieces(c, 1, shared=True)
    c.launch_at(at, 1)
    c.show(at)


def imported(c):
    """A child's memory, opened here."""
    ready, done = os.pipe(), os.pipe()
    child = subprocess.Popen([sys.executable, __file__, "owner", str(ready[1]), str(done[0])], pass_fds=(ready[1], done[0]))
    os.close(ready[1])
    raw = os.read(ready[0], 64)
    handle = cu.CUipcMemHandle()
    handle.reserved = raw
    at = int(ok(cu.cuIpcOpenMemHandle(handle, 1)))
    c.launch_at(at, 1)
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


KINDS = {f.__name__: f for f in (mapped, neighbours, exported, exported_pieces, imported, owner, graph)}

if __name__ == "__main__":
    client = Memory()
    for stream in client.streams:
        ok(cu.cuStreamSynchronize(stream))
    KINDS[sys.argv[1]](client)
