#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that says whose tokens its rows are, and then launches: rows_client.py PLAN, a JSON list of steps.

Each step has the arguments of dmi.step_begin() (or null: it ends the step before) and launches: [kernel, rows, seed, graph],
of which each writes WIDTH words a row. A graph is built once for each kernel and number of rows, and replayed; the graph "memory"
is another each time, with memory nodes, which no library can clone. A step may
have "pause", seconds until the next one, "ends", requests that end after it, "commands" for dmi-ctl before it, whose answers
are appended to the file ANSWERS names, and "take": descriptors of sockets are closed, and their numbers used for files.
rows_client.py PLAN GATE has all in segments in the end, makes the file GATE.reached, and waits until the file GATE is there.
"""
import json
import os
import pathlib
import subprocess
import sys
import time

from cuda.bindings import driver as cu

import dmi
from graph_client import Client, by_hand, ok

WIDTH = 4


class Rows(Client):
    def __init__(self):
        super().__init__()
        self.graphs = {}

    def replay(self, kernel, rows, seed):
        if (kernel, rows) not in self.graphs:
            graph, nodes = by_hand(self, [("first", 1, 8, 99), (kernel, 0, rows * WIDTH, 1)])
            self.graphs[kernel, rows] = ok(cu.cuGraphInstantiate(graph, 0)), nodes[1]
        exe, node = self.graphs[kernel, rows]
        ok(cu.cuGraphExecKernelNodeSetParams(exe, node, self.params(kernel, 0, rows * WIDTH, seed)))
        ok(cu.cuGraphLaunch(exe, self.streams[0]))

    def with_memory(self, kernel, rows, seed):
        def body(stream):
            memory = ok(cu.cuMemAllocAsync(256, stream))
            self.launch(kernel, stream, 0, rows * WIDTH, seed)
            ok(cu.cuMemFreeAsync(memory, stream))
        ok(cu.cuGraphLaunch(ok(cu.cuGraphInstantiate(self.capture(body), 0)), self.streams[0]))


def control(words):
    """Where a run is written: without the library nobody is there to be asked."""
    out = os.environ.get("DMI_OUT")
    if not out:
        return
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    run = next(path for path in pathlib.Path(out).iterdir() if path.is_dir())
    done = subprocess.run([os.environ["CTL"], "--json", run, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    with open(os.environ["ANSWERS"], "a", encoding="utf-8") as answers:
        answers.write(json.dumps([done.returncode, done.stdout]) + "\n")


def take_sockets():
    """A program that closes what is not its own, and opens files in its place. Return: those, each with a line in it."""
    taken = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
        except OSError:
            continue
        fd = os.open(f"taken-{name}", os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(fd, int(name))
        os.close(fd)
        os.write(int(name), b"mine")
        taken.append(int(name))
    return taken


def serves():
    return "dmi-control\n" in [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]


def begin(step):
    if step["said"] is None:
        return dmi.step_end()
    spans = [dmi.Span(**span) for span in step["said"]["spans"]]
    said = step["said"]
    return dmi.step_begin(said["step"], spans, said["n_rows"], ranks=said.get("ranks", ((0, 1),) * 4), caches=said.get("caches"))


def wait_at(gate):
    """Nothing is due any more: numbers that a reader sees from here on stand still."""
    ok(cu.cuCtxSynchronize())
    dmi.flush(timeout_s=100)
    pathlib.Path(f"{gate}.reached").touch()
    while not pathlib.Path(gate).exists():
        time.sleep(0.01)


def main():
    c = Rows()
    taken = []
    for step in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        for words in step.get("commands", ()):
            control(words)
        if step.get("take"):
            taken = take_sockets()
        begin(step)
        for kernel, rows, seed, graph in step["launches"]:
            if graph == "memory":
                c.with_memory(kernel, rows, seed)
            elif graph:
                c.replay(kernel, rows, seed)
            else:
                c.launch(kernel, c.streams[0], 0, rows * WIDTH, seed)
        if "missed" in step and dmi.loaded():
            print("missed", *(dmi.edits_missed(request) for request in step["missed"]))
        for request in step.get("ends", ()):
            dmi.request_end(request, 1)
        time.sleep(step.get("pause", 0))
    if len(sys.argv) > 2:
        wait_at(sys.argv[2])
    c.digest()
    until = time.monotonic() + 5
    while taken and serves():
        assert time.monotonic() < until, "a thread serves what is not its socket"
        time.sleep(0.01)
    assert all(os.pread(fd, 8, 0) == b"mine" for fd in taken)


if __name__ == "__main__":
    main()
