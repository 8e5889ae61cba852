# SPDX-License-Identifier: Apache-2.0
"""Runs forwards on the device: launch by launch, as one graph, or as graphs between eager attention."""
import numpy as np

from .batch import BEST, Rows
from .catalogue import Unsaid
from .program import Builder
from .ranges import NoRanges

GRAPH_BUCKETS = (1, 2, 4, 8, 16)
TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


def bucket(n, buckets):
    """The least of them that holds @n, or None."""
    return next((b for b in buckets if b >= n), None)


class Model:
    """What programs are built from: weights, a KV cache of its own, and where a step's arrays lie."""

    def __init__(self, device, weights, shape, part, dtype, layout, *, n_slots, block_size, n_positions, prefix="", first_layer=0,
                 fingerprint=None):
        """@prefix: of its kernels' names; @first_layer: the number of the part's first layer; @fingerprint: (site, layer)."""
        self.device, self.weights, self.shape, self.part, self.dtype = device, weights, shape, part, dtype
        self.layout, self.block_size, self.n_positions = layout, block_size, n_positions
        self.prefix, self.first_layer, self.fingerprint = prefix, first_layer, fingerprint
        self.inputs = device.alloc(4 * layout.n)
        self.best = device.alloc(BEST.itemsize * layout.max_rows)
        n_bytes = n_slots * shape.kv_width * dtype.size
        self.caches = [(device.alloc(n_bytes), device.alloc(n_bytes)) for _ in range(shape.layers)]
        self.temporaries = None
        self.programs = {}

    def function(self, name):
        return self.device.function(f"{self.prefix}{name}_{self.dtype.suffix}")

    def input(self, name):
        at = self.layout.at[name]
        return self.inputs.part(4 * at.start, 4 * (at.stop - at.start))

    def program(self, n_rows):
        """Pieces for a batch of so many rows, padding included."""
        if self.temporaries is None:
            self.temporaries = self.device.alloc(Builder(self, self.layout.max_rows).build().temporaries.peak)
        if n_rows not in self.programs:
            self.programs[n_rows] = Builder(self, n_rows, self.temporaries).build().pieces
        return self.programs[n_rows]


class Runner:
    def __init__(self, model, mode, ranks=None, tap=None, ranges=None, says=Unsaid()):
        """@mode: eager, graph or piecewise; @ranks: where sums and hand-overs go through, None: there are none; @tap: called with
        each launch and its rows, right after it; @ranges: of modules; @says: what the engine does when."""
        self.model, self.mode, self.ranks, self.device = model, mode, ranks, model.device
        self.tap, self.ranges, self.says = tap, ranges or NoRanges(), says
        self.graphs = {}

    # ---- how a step is padded

    def padded(self, rows, all_sample):
        """(rows with padding, is it replayed?)"""
        if self.mode == "graph" and all_sample:
            wanted = bucket(rows.n, GRAPH_BUCKETS)
        elif self.mode == "piecewise":
            wanted = bucket(rows.n, TOKEN_BUCKETS)
        else:
            wanted = None
        return (wanted, True) if wanted else (rows.n, False)

    def n_of(self, piece, rows, n_padded):
        """Rows that a piece computes."""
        if piece.kind == "logits":
            return n_padded if self.mode == "graph" and n_padded > rows.n else len(rows.last)
        return rows.n if piece.kind == "attention" and self.mode == "piecewise" else n_padded

    # ---- a step

    def run(self, rows, n_padded, replayed, dump=None):
        """Queue a forward. @dump: called with each launch's views and rows right after it; then nothing is replayed."""
        with self.says.range("ModelRunner::Forward", rows=n_padded, replayed=int(replayed)):
            self.queue(rows, n_padded, replayed, dump)

    def queue(self, rows, n_padded, replayed, dump):
        model = self.model
        self.device.upload(model.layout.pack(rows), model.inputs)
        for key, kind, pieces in self.parts(n_padded, replayed):
            if kind in ("reduce", "send", "receive"):
                getattr(self.ranks, kind)(self, pieces[0].places, n_padded)
                continue
            counted = [(step, self.n_of(piece, rows, n_padded)) for piece in pieces for step in piece.steps]
            if dump:
                self.run_dumped(counted, dump)
            elif replayed and self.is_graph(kind):
                self.replay((n_padded, key, counted[-1][1]), counted)
            else:
                self.launch(counted)

    def launch(self, counted):
        for step, n in counted:
            self.ranges.enter(step.module, n)
            step.launch(n)(self.device.stream)
            if self.tap:
                self.tap(step, n)
        self.ranges.close()

    def is_graph(self, kind):
        return self.mode == "graph" or kind == "compute"

    def parts(self, n_padded, replayed):
        """(key, kind, pieces): in graph mode all pieces between two that go through the host are one."""
        together = []
        for i, piece in enumerate(self.model.program(n_padded)):
            hosted = piece.kind in ("reduce", "send", "receive")
            if together and (hosted or self.mode != "graph"):
                yield i, together[0].kind, together
                together = []
            if hosted:
                yield i, piece.kind, [piece]
            else:
                together.append(piece)
        if together:
            yield -1, together[0].kind, together

    def run_dumped(self, counted, dump):
        for step, n in counted:
            step.launch(n)(self.device.stream)
            for view in step.views:
                dump(view, n, self.read(view, n))

    def replay(self, key, counted):
        if key not in self.graphs:
            for step, n in counted:
                step.launch(n)  # what it needs is there before the capture
            self.graphs[key] = self.device.capture(lambda: self.launch(counted))
        self.device.replay(self.graphs[key])

    def read(self, view, n):
        """[n, width] of a view as it is stored, by a synchronous copy of its buffer."""
        store = np.int32 if view.kind == "id" else self.model.dtype.store
        size = np.dtype(store).itemsize
        stride = (view.stride or view.width * size) // size
        whole = self.device.download(view.place, n * stride, store).reshape(n, stride)
        first = view.offset // size
        return np.ascontiguousarray(whole[:, first:first + view.width])

    def sampled(self, n):
        """The likeliest tokens of the first @n rows that sample, and how likely: waits for the step."""
        with self.says.range("ModelRunner::Sample"):
            return self.device.download(self.model.best, n, BEST)

    def warm_up(self):
        """Run every kernel once, as engines do before they capture: first uses load code."""
        self.device.upload(self.model.layout.pack(Rows()), self.model.inputs)
        for n in (1, 4):
            for piece in self.model.program(n):
                for step in piece.steps:
                    step.launch(n)(self.device.stream)
        self.device.wait()
