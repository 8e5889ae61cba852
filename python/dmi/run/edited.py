# SPDX-License-Identifier: Apache-2.0
"""Which edits wrote to which rows of a request (docs/edits.md), as libdmi_read.so answers it.

    run["steered/resid_post.1"].edits        # [Edit(name="calm", site="resid_post", ...)]
    run.edits("steered")                     # of the whole request

What a request computes after an edit, in later layers and at later tokens, is computed with it.
"""
from __future__ import annotations

import copy
import ctypes
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .structs import EDITED, I32, I64, U64, _Edit, _Row

if TYPE_CHECKING:
    from .reading import Run, Tensor

NOBODY = 2**64 - 1  # DMI_READ_NOBODY
ALL = 2**63 - 1     # after all positions


def in_layers(words: str, layer: int) -> bool:
    """@words: as Edit.layers has them."""
    intervals = [word.partition("-") for word in words.split(",")] if words != "all" else []
    return not intervals or any(int(first) <= layer <= int(last or first) for first, _, last in intervals)


@dataclass(frozen=True)
class Edit:
    """What an edit wrote in a request.

    name     None: edits may have been in force, and the run does not say which: site is None then
    site     the place that it writes
    layers   words as "0,3-7"; "all": in each that the place has
    first, end   positions, from the first that it wrote to after the last; end is None where it wrote all rows
    known    whether its text can be read; False: it may have written all layers and positions
    due, written   rows, each once at each place and layer; None: all were written
    text     all of it, to stand in a sentence
    """
    name: str | None
    site: str | None
    layers: str
    first: int
    end: int | None
    known: bool
    due: int | None
    written: int | None
    text: str

    def __str__(self) -> str:
        return self.text

    def wrote(self, layer: int | None) -> bool:
        """In that layer?"""
        return layer is None or in_layers(self.layers, layer)


def of_request(run: "Run", index: int) -> list[Edit]:
    """@index: of the request in Run.requests, or NOBODY."""
    found: list[Edit] = []
    while True:
        entry = _Edit()
        if run._call("dmi_read_edit", U64(index), U64(len(found)), ctypes.byref(entry), allow=-errno.ENOENT):
            return found
        name, site, layers, text = (None if value is None else value.decode(errors="replace") for value in (entry.name, entry.site, entry.layers, entry.text))
        counts = [None if n == 2**64 - 1 else n for n in (entry.due, entry.written)]
        found.append(Edit(name, site, layers or "all", entry.first, None if entry.end == ALL else entry.end, bool(entry.known), counts[0], counts[1], text or "?"))


def index_of(run: "Run", request: str | None) -> int:
    """Of a request's id; None: of rows that have none. KeyError."""
    if request is None:
        return NOBODY
    if request not in run._numbers:
        raise KeyError(f"the run has no request {request!r}")
    return run._numbers[request]


def of_selected(run: "Run") -> dict[str | None, list[Edit]]:
    """{request: its edits}, of requests that have tensors among those selected and in which an edit wrote."""
    if not any(site.writes for site in run.sites):
        return {}
    found = {request: run.edits(request) for request in dict.fromkeys(tensor.request for tensor in run.values())}
    return {request: edits for request, edits in found.items() if edits}


def of_tensor(tensor: "Tensor") -> list[Edit]:
    """Those that wrote rows of it."""
    rows = (_Row * max(len(tensor), 1))()
    tensor._read(0, len(tensor), None, rows)
    if not any(row.flags & EDITED for row in rows[:len(tensor)]):
        return []
    return [edit for edit in tensor.run.edits(tensor.request) if edit.name is None or (edit.site == tensor.site.name and edit.wrote(tensor.layer))]


def add_to(run: "Run", index: int, number: int, layer: int | None, position: int, row: Any) -> bool | None:
    """Adds to @row (float32) what edit @number of a request added there. Return: whether it wrote the row; None: what it wrote is not known."""
    r = run._call("dmi_read_edit_sum", U64(index), U64(number), I32(-1 if layer is None else layer), I64(position),
                  row.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), U64(len(row)), allow=(-errno.ENOTSUP, -errno.ENODATA))
    return None if r < 0 else bool(r)


class Written:
    """What the edits of one request added to its rows. index: of the request; edits: all of them, also those that wrote elsewhere."""

    def __init__(self, run: "Run", request: str | None) -> None:
        self._run, self.index = run, index_of(run, request)
        self.edits = of_request(run, self.index)
        self._left_out: frozenset = frozenset()

    def rows(self, site: str, layer: int | None, positions: list, width: int) -> list[tuple[int, Any]]:
        """[(number of the edit, float32 [positions, width])] of those that added to the site's rows. KeyError: the text of one whose work is not known."""
        from ..numeric import numpy
        found = []
        for number, edit in enumerate(self.edits):
            if number in self._left_out or edit.site not in (site, None) or not edit.wrote(layer):
                continue
            added, any_row = numpy.zeros((len(positions), width), "<f4"), False
            for row, position in zip(added, positions):
                if edit.first <= position and (edit.end is None or position < edit.end):
                    wrote = add_to(self._run, self.index, number, layer, position, row)
                    if wrote is None:
                        raise KeyError(edit.text)
                    any_row |= wrote
            found += [(number, added)] if any_row else []
        return found

    def without(self, numbers: Any) -> "Written":
        """The same, as if these had added nothing."""
        found = copy.copy(self)
        found._left_out = frozenset(numbers)
        return found

    def wrote(self, number: int, positions: list) -> bool:
        """Did it write any of these positions, in any layer?"""
        edit = self.edits[number]
        return any(edit.first <= position and (edit.end is None or position < edit.end) for position in positions)


def texts(edits: list[Edit]) -> str:
    """To stand in a sentence."""
    return ", ".join(edit.text for edit in edits)


def said(edits: list[Edit]) -> str:
    """What a sentence about a check that fails ends with; "" where there were no edits."""
    return f"; edits wrote in the request: {texts(edits)}" if edits else ""


def values(edits: list[Edit]) -> list[dict]:
    """As an answer has them (docs/analysis.md)."""
    return [{"name": edit.name, "site": edit.site, "layers": edit.layers, "first": edit.first, "end": edit.end, "text": edit.text} for edit in edits]
