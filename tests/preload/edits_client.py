#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program whose tensors edits write into: edits_client.py PLAN, JSON of memory, kernels and rounds (test_edits.py writes it).

All tensors lie in one allocation. A kernel copies one region of it to another, word by word; each round fills the memory from a file, says
a step, launches kernels in a row, says which requests end and writes what the memory holds then to a file. A round may say how it launches: by itself ("eager"), in a
graph that is built by hand ("graph") or by a capture ("capture"), in one whose parameters are set later ("params"), that is updated
("update"), or that the library cannot clone ("left_alone"). An exec is instantiated once for each list of kernels. It may name stretches of the
memory that no kernel may touch meanwhile.
"""
import ctypes
import json
import pathlib
import sys
import time

from cuda.bindings import driver as cu

import dmi
from graph_client import Client, ok

TYPES = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint32)


def copy(name):
    return f"""
.visible .entry {name}(.param .u64 to, .param .u64 from, .param .u32 words, .param .u32 rows, .param .u64 slots, .param .u32 first)
{{
.reg .b32 %r<6>; .reg .b64 %d<6>; .reg .pred %q;
ld.param.u64 %d1, [to]; ld.param.u64 %d2, [from]; ld.param.u32 %r1, [words];
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mul.lo.u32 %r2, %r2, %r3; mov.u32 %r4, %tid.x; add.u32 %r2, %r2, %r4;
setp.ge.u32 %q, %r2, %r1; @%q ret;
ld.param.u32 %r4, [first]; add.u32 %r2, %r2, %r4;
mul.wide.u32 %d3, %r2, 4; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3; ld.global.u32 %r5, [%d2]; st.global.u32 [%d1], %r5;
ret;
}}
"""


class Editing(Client):
    def __init__(self, plan):
        super().__init__()
        self.kernels = plan["kernels"]
        self.n_bytes = plan["bytes"]
        self.memory = int(ok(cu.cuMemAlloc(self.n_bytes)))
        names = sorted({k["name"] for k in self.kernels})
        module = ok(cu.cuModuleLoadData((".version 6.4\n.target sm_75\n.address_size 64\n" + "".join(map(copy, names))).encode()))
        self.copies = {name: ok(cu.cuModuleGetFunction(module, name.encode())) for name in names}
        self.execs = {}

    def args(self, k, scratch=False):
        to = k["from"] if scratch else k["to"]  # onto itself
        return (self.memory + to, self.memory + k["from"], k["words"], 1 if scratch else k["rows"],
                self.memory + k["slots"] if k["slots"] is not None else 0, k["first"]), TYPES

    def eager(self, numbers, stream=None):
        for i in numbers:
            k = self.kernels[i]
            threads = 2048 if k.get("refused") else 64
            answer = cu.cuLaunchKernel(self.copies[k["name"]], max(1, (k["words"] + 63) // 64), 1, 1, threads, 1, 1, 0, stream or self.streams[0], self.args(k), 0)
            if k.get("refused"):
                self.say(answer[0])
            else:
                ok(answer)

    def node(self, k, scratch):
        p = cu.CUDA_KERNEL_NODE_PARAMS()
        p.func = self.copies[k["name"]]
        p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY, p.blockDimZ = max(1, (k["words"] + 63) // 64), 1, 1, 64, 1, 1
        p.kernelParams = self.args(k, scratch)
        return p

    def chain(self, numbers, scratch=False):
        graph, nodes = ok(cu.cuGraphCreate(0)), []
        for i in numbers:
            nodes.append(ok(cu.cuGraphAddKernelNode(graph, nodes[-1:] or None, len(nodes[-1:]), self.node(self.kernels[i], scratch))))
        return graph, nodes

    def with_memory(self, numbers, stream):
        """A graph with a memory node cannot be cloned."""
        memory = ok(cu.cuMemAllocAsync(256, stream))
        self.eager(numbers, stream)
        ok(cu.cuMemFreeAsync(memory, stream))

    def instantiate(self, numbers, how):
        if how == "capture":
            return ok(cu.cuGraphInstantiate(self.capture(lambda s: self.eager(numbers, s)), 0))
        if how == "left_alone":
            return ok(cu.cuGraphInstantiate(self.capture(lambda s: self.with_memory(numbers, s)), 0))
        graph, nodes = self.chain(numbers, how != "graph")
        exe = ok(cu.cuGraphInstantiate(graph, 0))
        if how == "params":
            for i, node in zip(numbers, nodes):
                ok(cu.cuGraphExecKernelNodeSetParams(exe, node, self.node(self.kernels[i], False)))
        if how == "update":
            ok(cu.cuGraphExecUpdate(exe, self.chain(numbers)[0]))
        return exe

    def launch_all(self, numbers, how, refused):
        if how == "eager":
            self.eager(numbers)
            return
        key = how, tuple(numbers)
        if key not in self.execs:
            self.execs[key] = self.instantiate(numbers, how)
        answer = cu.cuGraphLaunch(self.execs[key], self.streams[0])
        if refused:
            self.say(answer[0])
        else:
            ok(answer)

    def forbid(self, stretches, forbidden):
        for at, n_bytes in stretches:
            ctypes.CDLL("libcuda.so.1").standin_forbid(ctypes.c_uint64(self.memory + at), ctypes.c_size_t(n_bytes), forbidden)

    def round(self, number, r):
        if r["data"]:
            data = pathlib.Path(r["data"]).read_bytes()
            ok(cu.cuMemcpyHtoD(self.memory, data, len(data)))
        if r["said"]:
            spans = [dmi.Span(**span) for span in r["said"]["spans"]]
            dmi.step_begin(number, spans, r["said"]["n_rows"], ranks=r["said"].get("ranks", ((0, 1),) * 4), caches=False)
        self.forbid(r.get("forbid", []), True)
        for _ in range(r.get("times", 1)):
            self.launch_all(r["launches"], r["how"], r.get("refused"))
        if r["said"]:
            dmi.step_end()
        if r.get("forbid"):
            self.sync()
            self.forbid(r["forbid"], False)
        for request in r.get("ends", []):
            dmi.request_end(request)
        if r.get("pause"):
            self.sync()
            time.sleep(r["pause"])
        if r["out"]:
            self.sync()
            host = bytearray(self.n_bytes)
            ok(cu.cuMemcpyDtoH(host, self.memory, len(host)))
            pathlib.Path(r["out"]).write_bytes(host)


def main():
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
    c = Editing(plan)
    for number, r in enumerate(plan["rounds"]):
        c.round(number, r)
    c.sync()
    c.say("done")


if __name__ == "__main__":
    main()
