# SPDX-License-Identifier: Apache-2.0
"""Attention of what was captured, in numpy: what include/dmi/analyze.h gives. docs/attention.md has formulas and limits.

    with dmi.open("RUN") as run:
        answer = dmi.attention.attention(run, "r1", layers="2", config="config.json")
        answer.weights            # [layers, heads, queries, keys]
        answer.proof.error        # of attention's weights times v against z

libdmi_analyze.so computes; nothing is computed here. An answer is of the run as it was selected: run.select(fill_cached=True) adds rows of
cached tokens.
"""
from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass, field
from typing import Any, Iterable

from . import headers
from .run import edited
from .run.library import ReadError, failed, load, opened
from .run.reading import Run
from .run.structs import I32, I64, U32, U64
from .spelling import chooses

DOUBLE = ctypes.c_double
PROOFS = ("not checked", "holds", "fails")  # enum dmi_analyze_state
ORDERS = (None, "halves", "pairs")            # enum dmi_analyze_order
SITES = ("q_rot", "k_rot", "q_norm", "k_norm", "q", "k", "v", "z")


SCORES = ("previous", "duplicate", "induction", "sink", "entropy", "distance", "mul_previous", "mul_duplicate", "mul_induction", "abs_previous",
          "abs_duplicate", "abs_induction")
MEASURES = ("sum_normalize", "max_normalize", "sum", "max")  # enum dmi_analyze_measure


class AnswerRefused(ReadError):
    """Attention's weights times v are not z: what was computed is not what the model did."""


_STRUCTS = {**headers.structs("analyze.h"), **headers.structs("analyze_heads.h")}
_Head, _Options, _Shape, _Proof, _HeadsOptions, _Score, _Span, _Rows = (_STRUCTS[f"analyze_{name}"] for name in (
    "head", "options", "shape", "proof", "heads_options", "score", "span", "rows"))
_TAKE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Rows))


@dataclass(frozen=True)
class Proof:
    """Whether weights times v are z.

    state      "holds", "fails", "not checked" (v or z was not captured)
    error      norm of the difference / norm of z, of all rows of the head that is furthest off; None: nothing was compared
    worst_row  the same of the one row that is furthest off
    bound      above which the error is refused: by the type that was captured
    head       (layer, head) that is furthest off
    """
    state: str
    error: float | None
    worst_row: float | None
    bound: float | None
    n_rows: int
    head: tuple[int, int] | None


@dataclass(frozen=True)
class Attention:
    """Weights of one request.

    weights   float32 [layers, heads, queries, keys]; keys that a query does not see have 0
    layers, heads, queries   what the first three dimensions are: numbers of layers, of heads, positions
    proof     of all of it; proofs has that of each (layer, head)
    borrowed  positions whose keys or values another request computed
    edits     that wrote in the request, as Run.edits() has them
    """
    request: str | None
    weights: Any
    layers: list[int]
    heads: list[int]
    queries: list[int]
    multiplier: float
    borrowed: int
    proof: Proof
    proofs: dict[tuple[int, int], Proof]
    edits: list[edited.Edit] = field(default_factory=list)

    def rollout(self, residual: float = 0.5) -> Any:
        """float64 [layers, queries, keys]: attention rollout (Abnar and Zuidema, arXiv 2005.00928), of all heads of layers that follow one another.

        R[l] = B[l] R[l - 1], from the identity on, with B[l] = residual * I + (1 - residual) * the mean of the layer's heads, each row divided by its sum
        residual   the share that a token keeps of itself in each layer: 0.5 in the paper
        It takes values for equally large, and leaves out what MLPs do. ValueError: a layer, a head or a query lacks.
        """
        from .numeric import numpy
        self._square()
        if self.layers != list(range(self.layers[0], self.layers[0] + len(self.layers))):
            raise ValueError(f"the layers {self.layers} do not follow one another: rollout goes from each to the next")
        if not 0 <= residual < 1:
            raise ValueError(f"residual={residual}: expected a share from 0 to below 1")
        if numpy.isnan(self.weights).any() or self.heads != list(range(len(self.heads))):
            raise ValueError("rollout is of all heads of each layer")
        own = numpy.eye(len(self.queries))
        found, last = [], own
        for weights in self.weights:
            both = residual * own + (1 - residual) * weights.mean(0, dtype=numpy.float64)
            last = both / both.sum(-1, keepdims=True) @ last
            found.append(last)
        return numpy.stack(found)

    def circuitsvis(self, layer: int, tokens: Iterable[str] | None = None) -> dict[str, Any]:
        """What circuitsvis.attention.attention_patterns(**answer.circuitsvis(3)) and its attention_heads draw. @tokens: texts; None: positions."""
        self._square()
        if layer not in self.layers:
            raise KeyError(f"the answer has no layer {layer}; it has {self.layers}")
        return {"tokens": self._texts(tokens), "attention": self.weights[self.layers.index(layer)]}

    def bertviz(self, tokens: Iterable[str] | None = None) -> dict[str, Any]:
        """What bertviz.head_view(**answer.bertviz()) and its model_view draw: a tensor of PyTorch's for each layer. @tokens: texts; None: positions."""
        import torch
        self._square()
        return {"attention": [torch.from_numpy(weights)[None] for weights in self.weights], "tokens": self._texts(tokens)}

    def _square(self) -> None:
        if self.weights.shape[2] != self.weights.shape[3] or self.queries != list(range(self.weights.shape[3])):
            raise ValueError(f"the answer has {self.weights.shape[2]} queries of {self.weights.shape[3]} keys: ask without queries=, of a request of which no position lacks")

    def _texts(self, tokens: Iterable[str] | None) -> list[str]:
        found = [str(position) for position in self.queries] if tokens is None else list(tokens)
        if len(found) != len(self.queries):
            raise ValueError(f"tokens: {len(found)}, positions: {len(self.queries)}: as many are expected")
        return found


# ------------------------------------------------------------------------- the library


_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """libdmi_analyze.so.1, once it is needed."""
    global _library
    _library = _library or load("analyze")
    return _library


class Model:
    """What a model's config says of its attention: its config.json, or the folder that has one."""

    def __init__(self, path: str | os.PathLike) -> None:
        self._handle = opened(library().dmi_analyze_model_open, os.fsencode(path))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            library().dmi_analyze_model_close(self._handle)


class _Answer:
    """A handle, and what was asked for: C borrows it."""

    def __init__(self, run: Run, **asked: Any) -> None:
        self.held = asked
        self.handle = opened(library().dmi_analyze_open, run._handle, ctypes.byref(_options(**asked)))

    def __enter__(self) -> "_Answer":
        return self

    def __exit__(self, *_: Any) -> None:
        library().dmi_analyze_close(self.handle)
        self.handle = None

    def call(self, name: str, *args: Any) -> int:
        r = getattr(library(), name)(self.handle, *args)
        if r < 0:
            raise failed(r, library().dmi_analyze_error(self.handle))
        return r

    def shape(self) -> _Shape:
        out = _Shape()
        self.call("dmi_analyze_shape", ctypes.byref(out))
        return out

    def proof(self, layer: int = -1, head: int = -1) -> Proof:
        out = _Proof()
        self.call("dmi_analyze_proof", I32(layer), I64(head), ctypes.byref(out))
        some = out.n_rows > 0
        return Proof(PROOFS[out.state], out.error if some else None, out.worst_row if some else None, out.bound if some else None, out.n_rows,
                     (out.layer, out.head) if some else None)


def _options(request: str | bytes | None = None, layers: str | int | None = None, heads: Iterable | None = None,
             queries: Iterable[int] | None = None, model: Model | None = None, multiplier: float = 0.0, sites: dict[str, str] | None = None,
             threads: int = 1, memory: int = 0, rope_order: str | None = None, prefix: Run | None = None,
             prefix_request: str | bytes | None = None) -> _Options:
    o = _Options()
    o.rope_order = ORDERS.index(rope_order)
    o.prefix = None if prefix is None else prefix._handle
    o.n_threads, o.multiplier, o.n_memory = threads, multiplier, memory
    for name, given in (("request", request), ("prefix_request", prefix_request)):
        if given is not None:
            setattr(o, name, ctypes.cast(ctypes.c_char_p(os.fsencode(given)), ctypes.c_void_p))
            setattr(o, f"{name}_bytes", len(os.fsencode(given)))
    o.layers = None if layers is None else str(layers).encode()
    if heads is not None:
        pairs = [(-1, h) if isinstance(h, int) else tuple(h) for h in heads]
        o.heads, o.n_heads = (_Head * max(len(pairs), 1))(*[_Head(*pair) for pair in pairs]), len(pairs)
    if queries is not None:
        positions = list(queries)
        o.queries, o.n_queries = (I64 * max(len(positions), 1))(*positions), len(positions)
    for name, site in (sites or {}).items():
        if name not in SITES:
            raise ValueError(f"{name!r} is none of {', '.join(SITES)}")
        setattr(o.sites, name, site.encode())
    if model is not None:
        o.model = model._handle
    return o


# ------------------------------------------------------------------------- answers


@chooses
def attention(run: Run, requests: str | bytes | None = None, layers: str | int | None = None, heads: Iterable | None = None,
              queries: Iterable[int] | None = None, config: str | os.PathLike | Model | None = None, unchecked: bool = False,
              **more: Any) -> Attention:
    """The weights that a request's tokens gave to one another, layer by layer and head by head.

    requests    its id; None: the only one of the run
    layers      words as of the tools: "0,3-7,last", or a number; None: all
    heads       numbers, of each layer, or pairs (layer, head); None: all
    queries     positions, ascending; None: all that have a row
    config      the model's config.json, a GGUF, or a Model; None: what an adapter noted in the run
    unchecked   give an answer whose proof fails, or lacks where rows of another request are in it
    more        multiplier: of scores; 0: the config's, else 1 / square root of a head's elements
                sites: {"q_rot": NAME, ...}: where a site has another name than DMI's
                rope_order: "halves" or "pairs", where neither config nor run says it
                prefix, prefix_request: a run and its request, whose keys and values stand in for positions that lack
                threads, memory: that computing may take; the answer does not depend on them
    Raises ReadError: what lacks, by name. AnswerRefused: the proof fails.
    """
    from .numeric import numpy
    model = config if config is None or isinstance(config, Model) else Model(config)
    with _Answer(run, request=requests, layers=layers, heads=heads, queries=queries, model=model, **more) as answer:
        shape = answer.shape()
        rows: dict[tuple[int, int], Any] = {}

        def take(_: Any, pointer: Any) -> int:
            one = pointer.contents
            block = numpy.ctypeslib.as_array(one.weights, (one.n, one.stride))
            rows.setdefault((one.layer, one.head), numpy.zeros((shape.n_queries, shape.n_keys), numpy.float32))[
                one.first_query:one.first_query + one.n] = block[:, :shape.n_keys]
            return 0

        answer.call("dmi_analyze_attention", _TAKE(take), None)
        proof = answer.proof()
        _judge(run, proof, shape, unchecked)
        numbers, its_heads = sorted({layer for layer, _ in rows}), sorted({head for _, head in rows})
        none = numpy.full((shape.n_queries, shape.n_keys), math.nan, numpy.float32)  # a head that was asked for in other layers alone
        return Attention(
            request=_request_of(shape),
            weights=numpy.stack([numpy.stack([rows.get((layer, head), none) for head in its_heads]) for layer in numbers]),
            layers=numbers, heads=its_heads, queries=shape.queries[:shape.n_queries], multiplier=shape.multiplier, borrowed=shape.n_borrowed,
            proof=proof, proofs={pair: answer.proof(*pair) for pair in sorted(rows)}, edits=run.edits(_request_of(shape)))


def _opened(run: Run, config: Any, more: dict) -> _Answer:
    return _Answer(run, model=config if config is None or isinstance(config, Model) else Model(config), **more)


@chooses
def heads(run: Run, requests: str | bytes | None = None, ids: Iterable[int] | None = None, exclude_bos: bool = False, exclude_current: bool = False,
          config: str | os.PathLike | Model | None = None, unchecked: bool = False, **more: Any) -> dict[str, Any]:
    """What heads do: {score: float64 [layers, heads]}, by the names of SCORES, and "layers" and "heads", which say what the dimensions are.

    ids     token ids by position; None: those of the site token_ids
    exclude_bos, exclude_current   for mul_ and abs_: without the first token's weights, without those of the query's own token
    more    as of attention(), layers and queries too
    A score is NaN where no query has what it needs.
    """
    from .numeric import numpy
    o = _HeadsOptions()
    o.flags = bool(exclude_bos) | bool(exclude_current) << 1
    if ids is not None:
        given = list(ids)
        o.ids, o.n_ids = (I32 * max(len(given), 1))(*given), len(given)
    with _opened(run, config, {"request": requests, **more}) as answer:
        shape = answer.shape()
        found = (_Score * (shape.n_layers * shape.n_heads))()
        n = _count(answer, "dmi_analyze_heads", ctypes.byref(o), found, U64(ctypes.sizeof(_Score)), U64(len(found)))
        _judge(run, answer.proof(), shape, unchecked)
    layers, numbers = sorted({s.layer for s in found[:n]}), sorted({s.head for s in found[:n]})
    out = {name: numpy.full((len(layers), len(numbers)), math.nan) for name in SCORES}
    for score in found[:n]:
        for name in SCORES:
            out[name][layers.index(score.layer), numbers.index(score.head)] = getattr(score, name)
    return {**out, "layers": layers, "heads": numbers}


def _count(answer: _Answer, name: str, *args: Any) -> int:
    getattr(library(), name).restype = I64
    return answer.call(name, *args)


@chooses
def focus(run: Run, instruction: tuple[int, int], data: tuple[int, int], requests: str | bytes | None = None, heads: Iterable | None = None,
          measure: str = "sum_normalize", config: str | os.PathLike | Model | None = None, unchecked: bool = False, **more: Any) -> tuple[float, list[float]]:
    """(mean, [number of each head]) of the share of attention that the instruction has beside data: Attention Tracker's focus.

    instruction, data   positions [first, end)
    queries             as of attention(); its focus is of the prompt's last token: queries=[n_prompt - 1]
    measure             one of MEASURES
    """
    with _opened(run, config, {"request": requests, "heads": heads, **more}) as answer:
        shape, mean = answer.shape(), DOUBLE()
        by_head = (DOUBLE * (shape.n_layers * shape.n_heads))()
        n = _count(answer, "dmi_analyze_focus", (_Span * 2)(_Span(*instruction), _Span(*data)), U32(MEASURES.index(measure)), by_head,
                   U64(len(by_head)), ctypes.byref(mean))
        _judge(run, answer.proof(), shape, unchecked)
        return mean.value, by_head[:n]


@chooses
def tokens(run: Run, requests: str | bytes | None = None, config: str | os.PathLike | Model | None = None, unchecked: bool = False, **more: Any) -> Any:
    """float64 [keys]: the sum over heads of the mean over queries of the weight that each key gets. more: as of attention()."""
    from .numeric import numpy
    with _opened(run, config, {"request": requests, **more}) as answer:
        shape = answer.shape()
        out = numpy.zeros(shape.n_keys)
        answer.call("dmi_analyze_tokens", out.ctypes.data_as(ctypes.POINTER(DOUBLE)), U64(len(out)))
        _judge(run, answer.proof(), shape, unchecked)
        return out


def rerank(query: Any, null: Any, documents: Iterable[tuple[int, int]]) -> list[float]:
    """CoRe's score of each document, from tokens() of a query and of one without content. documents: positions [first, end)."""
    from .numeric import numpy
    both, spans = [numpy.ascontiguousarray(x, numpy.float64) for x in (query, null)], list(documents)
    scores = (DOUBLE * max(len(spans), 1))()
    pointers = [x.ctypes.data_as(ctypes.POINTER(DOUBLE)) for x in both]
    if library().dmi_analyze_rerank(*pointers, U64(min(map(len, both))), (_Span * max(len(spans), 1))(*[_Span(*s) for s in spans]), U64(len(spans)), scores):
        raise ValueError("a document is empty, or ends after the keys that both have")
    return scores[:len(spans)]


def probe_tokens(n: int, vocabulary: int, first: int | None = None, seed: int = 0, lowest: int = 1000) -> list[int]:
    """Token ids for a clean induction test: @n random ones twice, after @first (the model's BOS; None: none).

    vocabulary, lowest   ids are drawn from lowest to before vocabulary: the first ids of a vocabulary are often special
    Sequences without meaning leave a head nothing but the repetition to go by (Olsson et al., arXiv 2209.11895).
    """
    from .numeric import numpy
    drawn = numpy.random.default_rng(seed).integers(lowest, vocabulary, n).tolist()
    return ([] if first is None else [first]) + drawn + drawn


def _request_of(shape: _Shape) -> str | None:
    return ctypes.string_at(shape.request, shape.request_bytes).decode(errors="surrogateescape") if shape.request else None


def _judge(run: Run, proof: Proof, shape: _Shape, unchecked: bool) -> None:
    if unchecked:
        return
    borrowed = shape.n_borrowed
    if proof.state == "fails":
        layer, head = proof.head or (-1, -1)
        raise AnswerRefused(0, f"attention's weights times v are not z: head {layer}.{head} is off by {proof.error:.2g} of z's norm, where "
                               f"{proof.bound:.2g} is allowed{edited.said(run.edits(_request_of(shape)))}")
    if borrowed and proof.state != "holds":
        raise AnswerRefused(0, "rows of another request stand in for those that a prefix cache had, and without v and z nothing shows that they are right")


__all__ = ["AnswerRefused", "Attention", "MEASURES", "Model", "Proof", "SCORES", "attention", "focus", "heads", "probe_tokens", "rerank", "tokens"]
