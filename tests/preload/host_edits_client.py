#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that taps the same tensors in host memory and on the device, for edits: host_edits_client.py PLAN [host [fork | forever]].

PLAN is JSON (test_host_edits.py writes it): bytes that both memories hold, taps of tensors in them, and rounds. A round fills both anew, says a step, taps each tensor on the
device and, in a thread that rounds upward, in host memory, and leaves a file of what each memory holds then. host: no device, and no driver. fork: in a child, too. forever: the rounds again and again.
FAIL_DISK: the disk is full from the third round to the fortieth.
"""
import ctypes
import json
import os
import pathlib
import sys

import dmi
from dmi import taps

LIBM = ctypes.CDLL("libm.so.6")


class Host:
    flags, file, rounds = taps.WRITABLE | taps.HOST, "host", 0x800  # FE_UPWARD

    def __init__(self, data):
        self.data, self.bytes = data, (ctypes.c_char * len(data))()
        self.address = ctypes.addressof(self.bytes)

    def fill(self):
        self.bytes[:] = self.data

    def read(self):
        return bytes(self.bytes)


class Device:
    flags, file, rounds = taps.WRITABLE, "device", 0

    def __init__(self, data):
        from cuda.bindings import driver as cu  # pylint: disable=import-outside-toplevel
        from graph_client import Client, ok  # pylint: disable=import-outside-toplevel
        self.data, self.cu, self.ok, self.client = data, cu, ok, Client()
        self.address = int(ok(cu.cuMemAlloc(len(data))))

    def fill(self):
        self.ok(self.cu.cuMemcpyHtoD(self.address, self.data, len(self.data)))

    def read(self):
        self.ok(self.cu.cuCtxSynchronize())
        host = bytearray(len(self.data))
        self.ok(self.cu.cuMemcpyDtoH(host, self.address, len(host)))
        return host


def play(plan, number, said, memories):
    for memory in memories:
        memory.fill()
    if said:
        dmi.step_begin(number, [dmi.Span(**span) for span in said["spans"]], said["n_rows"], caches=False)
    for memory in memories:
        LIBM.fesetround(memory.rounds)
        for t in plan["taps"]:
            taps.send(t["name"], memory.address + t["at"], 0, t["dtype"], t["shape"], t["strides"], t["size"], t["rows"], t["layer"], 0, memory.flags)
        if LIBM.fegetround() != memory.rounds:
            sys.exit("the thread rounds otherwise than before")
        LIBM.fesetround(0)
    if said:
        dmi.step_end()
        for request in said.get("ends", []):
            dmi.request_end(request)


def main():
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
    data = pathlib.Path(plan["data"]).read_bytes()
    memories = [Host(data)] if "host" in sys.argv else [Device(data), Host(data)]
    forked = "fork" in sys.argv and not os.fork()
    for number, said in enumerate(plan["rounds"] * (1 << 20 if "forever" in sys.argv else 1)):
        play(plan, number, said, memories)
        for memory in memories if number < len(plan["rounds"]) else ():
            pathlib.Path(f"{sys.argv[1]}.{memory.file}.{number}{'.child' * forked}").write_bytes(memory.read())
        if "FAIL_DISK" in os.environ and (rule := {2: "pwritev ENOSPC\n", 40: "\n"}.get(number)):
            pathlib.Path(os.environ["FAIL_DISK"]).write_text(rule)
        if number == 20:
            print("ready", flush=True)
    if "fork" in sys.argv and not forked:
        os.wait()
    print("done")


if __name__ == "__main__":
    main()
