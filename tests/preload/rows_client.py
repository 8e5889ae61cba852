#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that says whose tokens its rows are, and then launches: rows_client.py PLAN, a JSON list of steps.

Each step has the arguments of dmi.step_begin() (or null: it ends the step before) and launches: [kernel, rows, seed, graph],
of which each writes WIDTH words a row. A graph is built once for each kernel and number of rows, and replayed. A step may
have "pause", seconds until the next one, and "ends", requests that end after it. rows_client.py PLAN GATE waits in the end until
the file GATE is there.
"""
import json
import pathlib
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


def begin(step):
    if step["said"] is None:
        return dmi.step_end()
    spans = [dmi.Span(**span) for span in step["said"]["spans"]]
    return dmi.step_begin(step["said"]["step"], spans, step["said"]["n_rows"])


def main():
    c = Rows()
    for step in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        begin(step)
        for kernel, rows, seed, graph in step["launches"]:
            if graph:
                c.replay(kernel, rows, seed)
            else:
                c.launch(kernel, c.streams[0], 0, rows * WIDTH, seed)
        for request in step.get("ends", ()):
            dmi.request_end(request, 1)
        time.sleep(step.get("pause", 0))
    while len(sys.argv) > 2 and not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
    c.digest()


if __name__ == "__main__":
    main()
