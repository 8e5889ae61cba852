# SPDX-License-Identifier: Apache-2.0
"""Texts of tokens: byte-level and sentencepiece vocabularies, of a tokenizer.json or a GGUF's header. It makes no tokens of texts."""
from __future__ import annotations

import functools
import json
import re
from typing import Any, Sequence

from . import files

SPACE = "\u2581"  # sentencepiece's
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, RAW_BYTE = range(1, 7)  # tokenizer.ggml.token_type


def _byte_of() -> dict[str, int]:
    """{letter: byte} of byte-level vocabularies: printable bytes stand for themselves, the others for letters from U+0100 on. Source: GPT-2's encoder."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class Vocabulary:
    """pieces: the tokens as the file has them, by id; None where no token has that id. byte_level: else sentencepiece's way."""

    def __init__(self, pieces: Sequence[str | None], byte_level: bool, whole: Any = ()) -> None:
        self.pieces, self.byte_level, self._whole = pieces, byte_level, frozenset(whole)

    @classmethod
    def of_gguf(cls, header: dict) -> "Vocabulary | None":
        pieces, kinds = header.get("tokenizer.ggml.tokens"), header.get("tokenizer.ggml.token_type")
        if not isinstance(pieces, list):
            return None
        whole = [i for i, kind in enumerate(kinds) if kind in (CONTROL, USER_DEFINED)] if isinstance(kinds, list) else []
        return cls(pieces, header.get("tokenizer.ggml.model") == "gpt2", whole)

    @classmethod
    def of_file(cls, path: Any) -> "Vocabulary":
        """Reads a tokenizer.json. ValueError: the file is none."""
        data = files.read(path)
        try:
            found = json.loads(data)
            model = found["model"]
            listed = model["vocab"]
            by_id = {i: piece for piece, i in listed.items()} if isinstance(listed, dict) else {i: entry[0] for i, entry in enumerate(listed)}
            added = {entry["id"]: entry["content"] for entry in found.get("added_tokens") or []}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise ValueError(f"{path}: no tokenizer.json with a vocabulary: {type(error).__name__} {str(error)[:100]}") from None
        by_id |= added
        if not all(type(i) is int and 0 <= i < 1 << 24 and isinstance(piece, str) for i, piece in by_id.items()):
            raise ValueError(f"{path}: its vocabulary has ids that are no numbers below 2^24, or tokens that are no texts")
        pieces = [by_id.get(i) for i in range(max(by_id, default=-1) + 1)]
        return cls(pieces, "ByteLevel" in json.dumps([found.get("decoder"), found.get("pre_tokenizer")]), added)

    def __len__(self) -> int:
        return len(self.pieces)

    @functools.cached_property
    def _letters(self) -> dict[str, int]:
        return _byte_of()

    def bytes(self, token: int) -> bytes | None:
        """What a token stands for; None: the vocabulary lacks it."""
        piece = self.pieces[token] if 0 <= token < len(self.pieces) else None
        if piece is None:
            return None
        if token in self._whole:
            return piece.encode(errors="replace")
        if self.byte_level:
            try:
                return bytes(self._letters[letter] for letter in piece)
            except KeyError:
                return piece.encode(errors="replace")
        raw = BYTE.fullmatch(piece)
        return bytes([int(raw[1], 16)]) if raw else piece.replace(SPACE, " ").encode(errors="replace")

    def shown(self, token: int) -> str:
        """For people: a text in quotes with what cannot be printed escaped, as Python writes it; b'...': a part of a letter; else the id."""
        data = self.bytes(token)
        if data is None:
            return str(token)
        try:
            return repr(data.decode())
        except UnicodeDecodeError:
            return repr(data)

    @functools.cached_property
    def _ids(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for token in range(len(self.pieces)):
            data = self.bytes(token)
            if data is not None:
                found.setdefault(data, token)
        return found

    def id_of(self, text: str) -> int:
        """The token whose text is @text. KeyError: it is none, with the longest token that it begins with."""
        data = text.encode(errors="surrogateescape")
        if data in self._ids:
            return self._ids[data]
        begins = next((self._ids[data[:n]] for n in range(len(data) - 1, 0, -1) if data[:n] in self._ids), None)
        raise KeyError(f"{text!r} is not one token of the vocabulary" + (f"; it begins with {self.shown(begins)}" if begins is not None else ""))
