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


PASSED_OVER = ("Fuse", "Strip")  # they change whole texts alone
READ = ("ByteLevel", "Metaspace", "Replace", "ByteFallback", *PASSED_OVER)
GGUF_MODELS = ("gpt2", "llama", "t5")


def _refuse_marks(model: dict) -> None:
    """ValueError: tokens bear marks of a word's begin or end, which no step of a decoder that is read here takes away."""
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise ValueError(f"its model says {key}: {str(model[key])[:20]!r}, which is not read here")


def _steps(decoder: Any) -> list[tuple[str, tuple[str, str] | None]]:
    """[(type, (text, what takes its place))] of a decoder. ValueError: it has a step that is not read here."""
    if decoder is None:
        return []
    found: list = []
    for step in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
        kind = step["type"]
        if kind not in READ:
            raise ValueError(f"its decoder {str(kind)[:40]} is none of {', '.join(READ)}")
        if kind == "Replace" and not isinstance(step["pattern"].get("String"), str):
            raise ValueError("its decoder replaces by a pattern that is no text")
        pair = (step["pattern"]["String"], step["content"]) if kind == "Replace" else (step.get("replacement") or SPACE, " ") if kind == "Metaspace" else None
        if pair and not all(isinstance(text, str) for text in pair) or pair and not pair[0]:
            raise ValueError("its decoder replaces what is no text")
        found.append((kind, pair))
    return found


class Vocabulary:
    """Tokens and what they stand for.

    pieces      the tokens as the file has them, by id; None where no token has that id
    byte_level  else sentencepiece's way
    whole       ids of those that stand for their text as it is
    raw         ids of those that stand for one byte, as <0x41>: tokenizers take them where no other token has that byte. None: all of that form
    replaced    [(text, what it stands for)], one after the other
    """

    def __init__(self, pieces: Sequence[str | None], byte_level: bool, whole: Any = (), raw: Any = None, replaced: Any = ((SPACE, " "),)) -> None:
        self.pieces, self.byte_level, self._whole, self._replaced = pieces, byte_level, frozenset(whole), tuple(replaced)
        like = [] if byte_level else (i for i, piece in enumerate(pieces) if piece is not None and BYTE.fullmatch(piece))
        self._raw = frozenset(i for i in like if (raw is None or i in raw) and i not in self._whole)

    @classmethod
    def of_gguf(cls, header: dict) -> "Vocabulary | None":
        pieces, kinds, model = header.get("tokenizer.ggml.tokens"), header.get("tokenizer.ggml.token_type"), header.get("tokenizer.ggml.model")
        if not isinstance(pieces, list):
            return None
        if model is not None and model not in GGUF_MODELS:
            raise ValueError(f"its tokenizer.ggml.model, {str(model)[:40]}, is none of {', '.join(GGUF_MODELS)}")
        of = kinds if isinstance(kinds, list) else []
        whole = [i for i, kind in enumerate(of) if kind in (CONTROL, USER_DEFINED)]
        return cls(pieces, model == "gpt2", whole, [i for i, kind in enumerate(of) if kind == RAW_BYTE] if of else None)

    @classmethod
    def of_file(cls, path: Any) -> "Vocabulary":
        """Reads a tokenizer.json. ValueError: the file is none, or its tokens become texts in another way."""
        data = files.read(path)
        try:
            found = json.loads(data)
            model = found["model"]
            listed = model["vocab"]
            by_id = {i: piece for piece, i in listed.items()} if isinstance(listed, dict) else {i: entry[0] for i, entry in enumerate(listed)}
            added = {entry["id"]: entry["content"] for entry in found.get("added_tokens") or []}
            steps = _steps(found.get("decoder"))
            _refuse_marks(model)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise ValueError(f"{path}: no tokenizer.json with a vocabulary: {type(error).__name__} {str(error)[:200]}") from None
        by_id |= added
        if not all(type(i) is int and 0 <= i < 1 << 24 and isinstance(piece, str) for i, piece in by_id.items()):
            raise ValueError(f"{path}: its vocabulary has ids that are no numbers below 2^24, or tokens that are no texts")
        pieces = [by_id.get(i) for i in range(max(by_id, default=-1) + 1)]
        byte_level = "ByteLevel" in [kind for kind, _ in steps] or not steps and "ByteLevel" in json.dumps(found.get("pre_tokenizer"))
        falls_back = "ByteFallback" in [kind for kind, _ in steps] or model.get("byte_fallback") is True
        return cls(pieces, byte_level, (), None if falls_back else (), [pair for _, pair in steps if pair])

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
        if token in self._raw:
            return bytes([int(piece[3:5], 16)])
        for text, to in self._replaced:
            piece = piece.replace(text, to)
        return piece.encode(errors="replace")

    def shown(self, token: int) -> str:
        """For people: a text in quotes with what cannot be printed escaped, as Python writes it; b'...': a part of a letter; <0x41>: a token of one byte,
        beside which another one may stand for that letter; else the id."""
        if token in self._raw:
            return str(self.pieces[token])
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
        for token in sorted(range(len(self.pieces)), key=lambda token: token in self._raw):
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
        if BYTE.fullmatch(text) and (named := next((token for token in self._raw if str(self.pieces[token]).lower() == text.lower()), None)) is not None:
            return named
        begins = next((self._ids[data[:n]] for n in range(len(data) - 1, 0, -1) if data[:n] in self._ids), None)
        raise KeyError(f"{text!r} is not one token of the vocabulary" + (f"; it begins with {self.shown(begins)}" if begins is not None else ""))
