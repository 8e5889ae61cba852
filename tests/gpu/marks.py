# SPDX-License-Identifier: Apache-2.0
"""What the programs of tests/gpu/cases.py have in common: a tensor is marked by a kernel of the test's own that copies it.

That kernel, smoke_embed, is a site, and what it copies is tapped after it. The program clones what each mark wrote; in the end it
writes all clones, in the order of the marks, to the file that it was given. A run must hold the same bytes of both sites.
"""
import hashlib
import importlib
import pathlib
import sys
import types

COLS = 32  # of four bytes: a row of a mark is 128 bytes
ROW_BYTES = 4 * COLS


class Skip(Exception):
    """This machine cannot run the case; why is the first argument."""


def adapter(name):
    """A module of python/dmi without the package's own: that wants a newer Python than some machines with a GPU have."""
    package = sys.modules.setdefault("dmi_alone", types.ModuleType("dmi_alone"))
    package.__path__ = [str(pathlib.Path(__file__).resolve().parents[2] / "python" / "dmi")]
    return importlib.import_module(f"dmi_alone.{name}")


taps = adapter("taps")


def tap(stream, address, rows):
    """What is marked, of rows * 128 bytes; @stream: a number, or a handle."""
    if taps.loaded():
        taps.send("tapped", address, getattr(stream, "value", stream), taps.DTYPES["float32"], (rows, COLS), (COLS, 1), 4, 1, taps.NO_LAYER, 0)


class Marks:
    """Marks of one stream's work. @device: smoke_driver.PlainDevice, or torch_cases.TorchDevice"""

    def __init__(self, device, rows=256):
        self.device, self.found, self.inside = device, [], []
        self.to = device.empty(rows, COLS)

    def mark(self, address, rows, in_graph=False, tapped=True):
        """@address: of rows * 128 bytes; @tapped: tap it, too"""
        device = self.device
        stream = device.stream()
        device.kernels.embed(stream, device.address(self.to), address, rows, COLS)
        if tapped:
            tap(stream, address, rows)
        clone = device.clone(device.first(self.to, rows))
        (self.inside if in_graph else self.found).append(clone)

    def replayed(self, aside):
        """After a replay: what the graph's clones hold now. @aside: as many buffers as there are clones"""
        for to, clone in zip(aside, self.inside):
            self.device.copy(to, clone)
            self.found.append(to)

    def aside(self):
        return [self.device.empty(clone.rows, COLS) if hasattr(clone, "rows") else self.device.empty(clone.shape[0], COLS)
                for clone in self.inside]

    def bytes(self):
        return b"".join(self.device.to_bytes(clone) for clone in self.found)


def say(name, data):
    """An output of the program: the same with and without the library."""
    print(name, hashlib.sha256(data).hexdigest()[:32], flush=True)


def main(cases, kind):
    """NAME FILE: run one of @cases; --list prints them. Status 77: skipped, the last line says why."""
    if sys.argv[1:] == ["--list"]:
        print("\n".join(cases))
        return
    try:
        data = cases[sys.argv[1]]()
    except Skip as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    say(f"marks of {kind}", data)
    with open(sys.argv[2], "wb") as file:
        file.write(data)
