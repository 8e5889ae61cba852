# SPDX-License-Identifier: Apache-2.0
"""Texts of tokens: what include/dmi/analyze_vocabulary.h gives of a tokenizer.json or a GGUF. It makes no tokens of texts."""
from __future__ import annotations

import ctypes
import functools
import os
import re
from typing import Any

from . import headers
from .attention import library
from .run.library import ReadError, opened

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
ABSENT, _, ONE_BYTE = range(3)  # enum dmi_vocabulary_kind
_Vocabulary = headers.structs("analyze_vocabulary.h")["vocabulary"]


class Vocabulary:
    """Tokens and what they stand for. ValueError: the file has no vocabulary, or its tokens become texts in another way."""

    def __init__(self, path: Any) -> None:
        try:
            self._handle = opened(library().dmi_vocabulary_open, os.fsencode(path))
        except ReadError as error:
            raise ValueError(error.strerror) from None
        self._of = ctypes.cast(self._handle, ctypes.POINTER(_Vocabulary)).contents

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            library().dmi_vocabulary_close(self._handle)

    def __len__(self) -> int:
        return self._of.n_pieces

    def _kind(self, token: int) -> int:
        return self._of.pieces[token].kind if 0 <= token < len(self) else ABSENT

    def bytes(self, token: int) -> bytes | None:
        """What a token stands for; None: the vocabulary lacks it."""
        return ctypes.string_at(self._of.bytes + self._of.pieces[token].first, self._of.pieces[token].n) if self._kind(token) else None

    def shown(self, token: int) -> str:
        """For people: a text in quotes with what cannot be printed escaped, as Python writes it; b'...': a part of a letter; <0x41>: a token of one byte,
        beside which another one may stand for that letter; else the id."""
        data = self.bytes(token)
        if data is None:
            return str(token)
        if self._kind(token) == ONE_BYTE:
            return f"<0x{data[0]:02X}>"
        try:
            return repr(data.decode())
        except UnicodeDecodeError:
            return repr(data)

    @functools.cached_property
    def _ids(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for token in sorted(range(len(self)), key=lambda token: self._kind(token) == ONE_BYTE):
            data = self.bytes(token)
            if data is not None:
                found.setdefault(data, token)
        return found

    def id_of(self, text: str) -> int:
        """The token whose text is @text, one of a single byte only where no other has that text; "<0x41>" names that one. KeyError: it is none, with the longest
        token that it begins with."""
        data = text.encode(errors="surrogateescape")
        if data in self._ids:
            return self._ids[data]
        if byte := BYTE.fullmatch(text):
            named = bytes.fromhex(byte[1])
            if (token := next((token for token in range(len(self)) if self._kind(token) == ONE_BYTE and self.bytes(token) == named), None)) is not None:
                return token
        begins = next((self._ids[data[:n]] for n in range(len(data) - 1, 0, -1) if data[:n] in self._ids), None)
        raise KeyError(f"{text!r} is not one token of the vocabulary" + (f"; it begins with {self.shown(begins)}" if begins is not None else ""))
