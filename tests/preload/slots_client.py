#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A paged cache: slots_client.py PLAN, JSON of what paged() wants and a list of launches.

A launch is [slots, seed, graph]: `scatter` writes row i of WIDTH words, seed * 65536 + i * WIDTH + column, into slot slots[i] of the
cache, and nothing where that is below 0 or beyond the cache. Of a graph, which is built once for each number of rows, the list of slots
is written anew before each launch, as engines do it.
"""
import ctypes
import json
import pathlib
import struct
import sys

from cuda.bindings import driver as cu

import dmi
from graph_client import Client, ok
from memory_client import permit, pieces, props

WIDTH, MAX_ROWS = 4, 512


def scatter(dtype):
    size, load = {"i32": (4, "ld.global.s32 %r3, [%d2]; cvt.s64.s32 %d3, %r3;"), "i64": (8, "ld.global.s64 %d3, [%d2];")}[dtype]
    return f"""
.visible .entry scatter_{dtype}(.param .u64 cache, .param .u64 slots, .param .u32 n, .param .u32 seed, .param .u32 n_slots, .param .u32 block,
  .param .u64 gap)
{{
.reg .b32 %r<12>; .reg .b64 %d<12>; .reg .pred %p<3>;
ld.param.u64 %d1, [cache]; ld.param.u64 %d2, [slots]; ld.param.u32 %r1, [seed]; ld.param.u32 %r2, [n_slots]; ld.param.u32 %r9, [block];
ld.param.u64 %d9, [gap];
mov.u32 %r4, %ctaid.x; mov.u32 %r5, %tid.x;
mul.wide.u32 %d4, %r4, {size}; add.u64 %d2, %d2, %d4;
{load}
cvt.s64.s32 %d5, %r2; setp.lt.s64 %p1, %d3, 0; @%p1 ret; setp.ge.s64 %p2, %d3, %d5; @%p2 ret;
cvt.u64.u32 %d6, %r9; div.s64 %d7, %d3, %d6; mul.lo.s64 %d7, %d7, %d9; add.s64 %d1, %d1, %d7;
mul.lo.s64 %d8, %d3, {WIDTH * 4}; add.s64 %d1, %d1, %d8;
mul.wide.u32 %d10, %r5, 4; add.s64 %d1, %d1, %d10;
shl.b32 %r6, %r1, 16; mul.lo.u32 %r7, %r4, {WIDTH}; add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r5; st.global.u32 [%d1], %r6;
ret;
}}
"""


PTX = ".version 6.4\n.target sm_75\n.address_size 64\n" + scatter("i32") + scatter("i64")
TYPES = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64)


class Paged(Client):
    """@n_slots rows in the cache; after each @block of them @gap bytes that belong to no row; @dtype of the list. With @n_pieces the cache
    lies across the first two of so many mapped pieces, of one at its end; those from number @barred on may not be accessed. Each
    launch has memory freed before it, and the last of three pieces and more comes and goes."""

    def __init__(self, n_slots, block, gap, dtype, n_pieces=0, barred=None):
        super().__init__()
        self.n_slots, self.block, self.gap, self.size = n_slots, block, gap, {"i32": 4, "i64": 8}[dtype]
        self.n_written = n_slots if barred is None else n_slots // 2  # the kernel leaves out the others
        self.format = {"i32": "i", "i64": "q"}[dtype]
        self.scatter = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(PTX.encode())), f"scatter_{dtype}".encode()))
        self.n_bytes = n_slots * WIDTH * 4 + n_slots // block * gap
        self.list = int(ok(cu.cuMemAlloc(MAX_ROWS * self.size)))
        self.n_launches, self.last = 0, None
        self.cache = self.mapped(n_pieces) if n_pieces else int(ok(cu.cuMemAlloc(self.n_bytes)))
        ok(cu.cuMemsetD8(self.cache, 0xee, self.n_bytes))
        self.shown = self.n_bytes if barred is None else self.n_bytes // 2
        self.sync()
        if barred is not None:
            permit(self.at + barred * self.piece, (n_pieces - barred) * self.piece, False)
        self.graphs = {}

    def mapped(self, n_pieces):
        at, size = self.at, self.piece = pieces(self, n_pieces, n_handles=3)
        if n_pieces > 2:
            self.last = at + (n_pieces - 1) * size
        return at + size - (self.n_bytes // 2 if n_pieces > 1 else self.n_bytes)

    def churn(self):
        """What a caching allocator does between two steps."""
        ok(cu.cuMemFree(ok(cu.cuMemAlloc(4096))))
        self.n_launches += 1
        if self.last and self.n_launches % 2:
            ok(cu.cuMemUnmap(self.last, self.piece))
        elif self.last:
            handle = ok(cu.cuMemCreate(self.piece, props()[0], 0))
            ok(cu.cuMemMap(self.last, self.piece, 0, handle, 0))
            ok(cu.cuMemRelease(handle))
            permit(self.last, self.piece)

    def fill(self, slots):
        packed = struct.pack(f"<{len(slots)}{self.format}", *slots)
        ok(cu.cuMemcpyHtoD(self.list, packed, len(packed)))

    def args(self, n, seed, at=None):
        return (self.cache, at or self.list, n, seed, self.n_written, self.block, self.gap), TYPES

    def node(self, n, seed):
        p = cu.CUDA_KERNEL_NODE_PARAMS()
        p.func = self.scatter
        p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY, p.blockDimZ = n, 1, 1, WIDTH, 1, 1
        p.kernelParams = self.args(n, seed)
        return p

    def replay(self, n, seed):
        if n not in self.graphs:
            graph = ok(cu.cuGraphCreate(0))
            node = ok(cu.cuGraphAddKernelNode(graph, None, 0, self.node(n, 0)))
            self.graphs[n] = [ok(cu.cuGraphInstantiate(graph, 0)), node, 0]
        exe, node, before = self.graphs[n]
        if seed != before:
            ok(cu.cuGraphExecKernelNodeSetParams(exe, node, self.node(n, seed)))
        self.graphs[n][2] = seed
        ok(cu.cuGraphLaunch(exe, self.streams[0]))

    def write(self, slots, seed, graph):
        self.sync()
        if self.last:
            self.churn()
        self.fill(slots)
        if graph:
            self.replay(len(slots), seed)
        else:
            ok(cu.cuLaunchKernel(self.scatter, len(slots), 1, 1, WIDTH, 1, 1, 0, self.streams[0], self.args(len(slots), seed), 0))

    def show(self):
        self.sync()
        host = bytearray(self.shown)
        ok(cu.cuMemcpyDtoH(host, self.cache, len(host)))
        self.say(host.hex())


def begin(step, slots):
    """Rows in slots below 0, which stand last, are padding."""
    real = sum(slot >= 0 for slot in slots)
    spans = [dmi.Span("r", 0, real)] * bool(real) + [dmi.Span(None, 0, len(slots) - real, real, flags=dmi.PADDING)] * (real < len(slots))
    dmi.step_begin(step, spans, len(slots))


def main():
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
    c = Paged(**plan["cache"])
    if plan.get("short_list"):  # the list's end lies 8 bytes on
        c.list += MAX_ROWS * c.size - 8
    for step, (slots, seed, graph) in enumerate(plan["launches"]):
        if plan.get("steps"):
            begin(step, slots)
        c.write(slots, seed, graph)
    c.show()


if __name__ == "__main__":
    main()
