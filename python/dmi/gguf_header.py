# SPDX-License-Identifier: Apache-2.0
"""The header of a GGUF file: its values, and where its tensors lie. Source: docs/gguf.md of the ggml project, versions 2 and 3."""
from __future__ import annotations

import struct
from typing import Any

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
MOST_NESTED = 4


class HeaderError(ValueError):
    """What is wrong, as a predicate: "ends in the middle of a value, at byte 20"."""


class Header:
    """Reads one thing after the other, from byte 4 on.

    data        the whole file
    keeps       whether values that are lists are kept; else they are None
    most_text   bytes of a text that are kept; None: all
    """

    def __init__(self, data: Any, keeps: bool = True, most_text: int | None = None) -> None:
        self.data, self.keeps, self.most_text, self.at = data, keeps, most_text, len(MAGIC)
        self.version, self.n_tensors, self.n_values = self.number("I"), self.number("Q"), self.number("Q")

    def skip(self, n: int) -> int:
        """Where the next @n bytes begin, all of which are there."""
        if n > len(self.data) - self.at:
            raise HeaderError(f"ends in the middle of a value, at byte {self.at}")
        self.at += n
        return self.at - n

    def number(self, form: str) -> Any:
        return struct.unpack_from("<" + form, self.data, self.skip(struct.calcsize("<" + form)))[0]

    def text(self) -> str:
        n = self.number("Q")
        first = self.skip(n)
        return bytes(self.data[first:first + (n if self.most_text is None else min(n, self.most_text))]).decode(errors="replace")

    def value(self, kind: int, nested: int = 0) -> Any:
        if kind == TEXT:
            return self.text()
        if kind == LIST and nested < MOST_NESTED:
            return self._list(self.number("I"), self.number("Q"), nested + 1)
        if kind not in SCALARS:
            raise HeaderError(f"has a value of the unknown type {kind}")
        return self.number(SCALARS[kind])

    def _list(self, kind: int, n: int, nested: int) -> list | None:
        if kind in SCALARS:
            first = self.skip(n * struct.calcsize("<" + SCALARS[kind]))
            return list(struct.unpack_from(f"<{n}{SCALARS[kind]}", self.data, first)) if self.keeps else None
        if n > len(self.data):  # each takes bytes
            self.skip(n)
        found = [value for _ in range(n) for value in [self.value(kind, nested)] if self.keeps]
        return found if self.keeps else None

    def values(self) -> dict[str, Any]:
        found = {}
        for _ in range(self.n_values):
            key = self.text()
            found[key] = self.value(self.number("I"))
        return found

    def tensors(self) -> list[tuple[str, tuple, int, int]]:
        """(name, dimensions as they stand there, type of ggml, bytes after start()) of each, once values() were read"""
        found = []
        for _ in range(self.n_tensors):
            name, n_dims = self.text(), self.number("I")
            found.append((name, tuple(self.number("Q") for _ in range(min(n_dims, 8))), self.number("I"), self.number("Q")))
        return found

    def start(self, alignment: int) -> int:
        """Where tensors() begin, once they were read."""
        return -(-self.at // alignment) * alignment
