# SPDX-License-Identifier: Apache-2.0
"""Answers that need a model's weights beside what was captured: which word it has in mind at each layer, and who writes it.

    with dmi.open("RUN") as run:
        found = dmi.analysis.lens(run, "model.gguf", requests="ioi", words=[" Mary", " John"])
        found["followed_ranks"][-1]              # of the last token: [words, layers]
        parts = dmi.analysis.dla(run, "model.gguf", " Mary", " John", requests="ioi")
        parts["heads"][-1]                       # [layers, heads], in logits

What is selected (Run.select()) is what is answered, for one request. docs/analysis.md has the formulas, what each array of an answer holds, and limits.
The weights must be those of the run: W_U final_ln = final_logits is checked at every row that has both. Answers are dmi.results.Result. numpy is imported
where it is asked for. One thread at a time, as Run.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from .attention import probe_tokens  # noqa: F401
from .run.edited import Written, said
from .run.export import FINAL, HIDDEN, IDS, _of_requests, choose_layers
from .run.reading import Run, Tensor, _float32, _near, _true
from .results import Result, Writer, about
from .run.structs import DAMAGED, _Row
from .spelling import chooses
from .torch.names import NAMES
from .weights import HELD, Model, Weights

if TYPE_CHECKING:
    from .vocabulary import Vocabulary

LENS_FORMULA, DLA_FORMULA = 1, 2
ID = re.compile(r"id:\d{1,9}", re.ASCII)  # a word that is a token's id
NORMED, LOGITS = "final_ln", "final_logits"
AT_A_TIME = 64 << 20  # bytes of residual stream, and of logits, that are computed with together
# The largest relative error of a row of logits: what rounding of the captured types explains, and more. docs/analysis.md has what was measured.
BOUND = {"f16": 5e-3, "bf16": 2e-2}
BOUND_OF_OTHERS = 1e-3
SOME_TOKENS = 4096  # of whose logits it is seen in which type the engine holds the weights
EXACT = 1e-5  # relative: below it the weights are those that the engine computed with, in float32
# The largest error of a sum of parts, in logits, and how many times what rounding of the captured types explains it may be.
SUM_BOUND, SUM_TIMES = 1e-4, 6
ROUNDING = {"f64": 2.0 ** -53, "f16": 2.0 ** -11, "bf16": 2.0 ** -8, "f8e4m3": 2.0 ** -4, "f8e5m2": 2.0 ** -3}  # of one element, relative
ROUNDING_OF_OTHERS = 2.0 ** -24


class AnalysisError(ValueError):
    """What was asked for cannot be computed; its text says why."""


class Refused(AnalysisError):
    """A check does not hold, or nothing allows it: the answer would be another model's."""


# ------------------------------------------------------------------------- rows


def _rows(tensor: Tensor, first: int, n: int) -> Any:
    """[n, width] of true values, float32. AnalysisError: some cannot be read."""
    data, rows = bytearray(n * tensor.row_bytes), (_Row * max(n, 1))()
    tensor._read(first, n, data, rows)
    damaged = next((row.position for row in rows[:n] if row.flags & DAMAGED), None)
    if damaged is not None:
        raise AnalysisError(f"{tensor.key} is damaged at position {damaged}: select(tokens=) or --tokens may leave it out")
    return _true(_float32(data, tensor.dtype).reshape(n, -1), tensor, first)


def _positions(tensor: Tensor) -> list:
    """The positions of the rows; their numbers where positions are not known."""
    found = tensor.positions
    return list(range(len(found))) if None in found else found


def _one(run: Run, request: str | None) -> tuple[str | None, dict]:
    """(id, {site: {layer: tensor}}) of a request; None: the only one. KeyError, ValueError."""
    found = _of_requests(run)
    if request is None and len(found) == 1:
        request = next(iter(found))
    elif request is None:
        raise ValueError(f"the run has {len(found)} requests: say which ({', '.join(sorted(filter(None, found))[:5])}, ...)")
    if request not in found:
        raise KeyError(f"nothing of a request {request!r} is selected{_near(request, list(filter(None, found)))}")
    for tensors in found[request].values():
        for tensor in tensors.values():
            if tensor.mixed and tensor.site.name in (HIDDEN, FINAL, NORMED, LOGITS, "z", "resid_mid", "mlp_out"):
                raise AnalysisError(f"{tensor.key} changes its type or width from record to record")
    return request, found[request]


def _unused(model: Model) -> dict:
    return {"not_used": model.unused} if model.unused else {}


def _once(sites: dict, name: str) -> Tensor | None:
    return next(iter(sites.get(name, {}).values()), None)


def _alike(tensors: Sequence[Tensor], width: int) -> list:
    """The positions that all of them have. AnalysisError: they differ, or the width is not the model's."""
    wanted = _positions(tensors[0])
    for tensor in tensors:
        if tensor.row_bytes and _width(tensor) != width:
            raise AnalysisError(f"{tensor.key} has {_width(tensor)} elements a row, the weights are for {width}")
        if tensor is not tensors[0] and _positions(tensor) != wanted:
            raise AnalysisError(f"{tensor.key} has rows of other positions than {tensors[0].name}: select tokens that both have")
    if not wanted:
        raise AnalysisError(f"{tensors[0].key} has no rows")
    return wanted


def _width(tensor: Tensor) -> int:
    n = 1
    for count in tensor.shape[1:]:
        n *= count
    return n


# ------------------------------------------------------------------------- are the weights the run's?


def _pairs(x: Tensor, y: Tensor) -> list[tuple[int, int]]:
    """Rows of both that belong to one position."""
    at = {position: i for i, position in enumerate(_positions(x))}
    return [(at[position], i) for i, position in enumerate(_positions(y)) if position in at]


def _compared(x: Tensor, y: Tensor, compute: Any, n: int | None) -> tuple[float, int]:
    """(largest error of a row of compute(x) against the first @n elements of y, relative to their norm; rows compared)."""
    from .numeric import numpy
    pairs, worst = _pairs(x, y), 0.0
    step = max(AT_A_TIME // max(_width(y) * 12, 1), 1)
    for first in range(0, len(pairs), step):
        part = pairs[first:first + step]
        low = [min(pair[side] for pair in part) for side in (0, 1)]
        high = [max(pair[side] for pair in part) + 1 for side in (0, 1)]
        given = _rows(x, low[0], high[0] - low[0])[[i - low[0] for i, _ in part]]
        wanted = _rows(y, low[1], high[1] - low[1])[[i - low[1] for _, i in part], :n]
        error = numpy.linalg.norm(compute(given) - wanted, axis=1) / numpy.maximum(numpy.linalg.norm(wanted, axis=1), 1e-30)
        worst = max(worst, float(numpy.where(numpy.isfinite(error), error, numpy.inf).max()))
    return worst, len(pairs)


def _errors(model: Model, sites: dict, tokens: int | None = None) -> list[dict]:
    """The checks that the request's tensors allow, of the logits of the first @tokens of the vocabulary; None: of all. Refused: a size is not the model's."""
    logits, made = _once(sites, LOGITS), []
    for name, compute in ((NORMED, lambda x: model.logits(x, tokens)), (FINAL, lambda x: model.logits(model.norm(x), tokens))):
        x = _once(sites, name)
        if x is None or logits is None or not _pairs(x, logits):
            continue
        if _width(x) != model.width or _width(logits) != model.vocabulary_size:
            raise Refused(f"{model.weights.path} is not of the run's model: its head takes {model.width} elements and gives {model.vocabulary_size}, "
                          f"{x.key} has {_width(x)} and {logits.key} {_width(logits)}")
        error, n = _compared(x, logits, compute, tokens)
        what = f"W_U {name} = {LOGITS}" if name == NORMED else f"W_U norm({name}) = {LOGITS}"
        made.append({"name": what, "error": error, "bound": max(BOUND.get(tensor.dtype, BOUND_OF_OTHERS) for tensor in (x, logits)), "rows": n})
    return made


def _checked(model: Model, sites: dict, request: str | None, written: Written, unchecked: bool) -> tuple[Model, list[dict]]:
    """(the model, its checks). Refused: one does not hold, or nothing allows one; not with @unchecked.

    An engine may hold the weights with fewer digits than the file. Where the logits differ, these are tried, and those that explain the logits best are taken.
    """
    def worst(made: list[dict]) -> float:
        return max((check["error"] for check in made), default=0.0)
    weights = model.weights
    if model.may_be_rounded:  # some tokens' logits tell; of a quantised file the whole head is decoded once
        best = worst(_errors(model, sites, SOME_TOKENS))
        for kind in HELD if best > EXACT else ():
            tried = Model(weights.held_as(kind))
            if (error := worst(_errors(tried, sites, SOME_TOKENS))) < best:
                best, model = error, tried
    made = _errors(model, sites)
    wrong = next((check for check in made if check["error"] > check["bound"]), None)
    if wrong and not unchecked:
        only_norm = wrong is not made[0]  # the head is the run's
        raise Refused(f"{weights.path} does not hold the run's weights: {wrong['name']} has a relative error of {wrong['error']:.2g}, above {wrong['bound']:g}, "
                      f"in request {request}" + (f", though {made[0]['name']} holds: the last norm is another one, or a model of the type {model.arch!r} computes it in "
                                                 "another way than is known here" if only_norm else "") + said(written.edits))
    if not made and not unchecked:
        raise Refused(f"nothing shows that {weights.path} holds the run's weights: request {request} has no row of {LOGITS} beside one of {NORMED} or "
                      f"{FINAL}. Capture these for its last token, or take the weights unchecked")
    return model, made


# ------------------------------------------------------------------------- words


def _opened(weights: Any, tokenizer: Any) -> "tuple[Weights, Vocabulary | None]":
    weights = weights if isinstance(weights, Weights) else Weights(weights)
    return weights, weights.vocabulary(tokenizer)


def _token(word: str | int, vocabulary: "Vocabulary | None", size: int) -> int:
    """The id of a word, or the one that it is: a number, "id:319". KeyError: it is not one token. ValueError: no such id."""
    if isinstance(word, str) and vocabulary is not None:
        try:
            return vocabulary.id_of(word)
        except KeyError as error:
            if not ID.fullmatch(word):
                raise KeyError(error.args[0] + (f". For the id write id:{word}" if word.isdecimal() else "")) from None
    if isinstance(word, str):
        word = word.removeprefix("id:") if ID.fullmatch(word) else word
        if not (word.isascii() and word.isdecimal()) or len(word) > 9:
            raise KeyError(f"{word!r}: the weights have no vocabulary beside them: name a tokenizer.json, or the token's id")
    if not 0 <= int(word) < size:
        raise ValueError(f"token {word}: the model has {size}")
    return int(word)


# ------------------------------------------------------------------------- lens


@dataclass(frozen=True)
class _Stream:
    """The residual stream of a request at some layers. @layers: their numbers, of what leaves the last layer that of the layers."""
    layers: list
    tensors: list
    positions: list

    def blocks(self, model: Model) -> Iterator[tuple[int, Any]]:
        """(first row, [rows, layers, width]), after the last norm."""
        from .numeric import numpy
        step = max(AT_A_TIME // (4 * model.width * len(self.tensors)), 1)
        for first in range(0, len(self.positions), step):
            n = min(step, len(self.positions) - first)
            yield first, numpy.stack([model.norm(_rows(tensor, first, n)) for tensor in self.tensors], axis=1)


def _stream(model: Model, sites: dict, site: str, layers: Any) -> _Stream:
    stock, end = sorted(k for k in sites.get(site, {}) if k is not None), _once(sites, FINAL)
    if not stock and (end is None or layers is None):
        raise KeyError(f"nothing of a site {site} is there")
    if stock and stock[-1] >= model.n_layers:
        raise AnalysisError(f"{site}.{stock[-1]} is there, and {model.weights.path} has {model.n_layers} layers")
    last = "last" if end is not None else None if site == HIDDEN or not stock else stock[-1]
    chosen = choose_layers(layers, stock, last)
    tensors = [end if layer == "last" else sites[site][layer] for layer in chosen]
    return _Stream([model.n_layers if layer == "last" else layer for layer in chosen], tensors, _alike(tensors, model.width))


def _largest(logits: Any, k: int) -> Any:
    """[layers, k]: ids of the largest of each row, the largest first."""
    from .numeric import numpy
    part = numpy.argpartition(logits, -k, axis=1)[:, -k:]
    values = numpy.take_along_axis(logits, part, 1)
    return numpy.take_along_axis(part, numpy.lexsort((part, -values), axis=1), 1).astype("<i4")


def _first_anywhere(firsts: Any) -> list:
    """Tokens that are first at any layer: from the last layer to the first."""
    return list(dict.fromkeys(firsts[::-1].tolist()))


def _token_row(writer: Writer, logits: Any, followed: list | None, top: int) -> set[int]:
    """What the answer has of one token. @logits: [layers, vocabulary]. Return: the ids that it names."""
    from .numeric import numpy
    ids = _largest(logits, top)
    most = logits.max(1, keepdims=True)
    total = most[:, 0] + numpy.log(numpy.exp(logits - most).sum(1, dtype="f8"))
    words = _first_anywhere(ids[:, 0]) if followed is None else followed
    of_words = logits[:, words].T
    ranks = [(logits > of_word[:, None]).sum(1) for of_word in of_words]
    writer.add("top_ids", ids[None])
    writer.add("top_logits", numpy.take_along_axis(logits, ids, 1).astype("<f4")[None])
    writer.add("logsumexp", total.astype("<f4")[None])
    writer.add("followed", numpy.array([len(words)], "<i4"))
    writer.add("followed_ids", numpy.array(words, "<i4"))
    writer.add("followed_ranks", numpy.array(ranks, "<i4"))
    writer.add("followed_logits", of_words.astype("<f4"))
    return {*ids.ravel().tolist(), *words}


@chooses
def lens(run: Run, weights: Any, words: Sequence | None = None, layers: Any = None, top: int = 10, sites: str = HIDDEN, requests: str | None = None,
         tokenizer: Any = None, unchecked: bool = False, out: Any = None) -> Result:
    """The words that the model has in mind at each layer: W_U norm(resid_pre.l), at the end W_U norm(resid_final).

    weights    a path, or Weights; tokenizer: a tokenizer.json, where the weights have none
    words      to follow, texts of one token or ids; None: those that are first at any layer, of each token its own
    layers     "0,3-7,last", a list; None: all that there are. last: what leaves the last layer
    top        how many words of each layer and token
    sites      a residual stream by layer: resid_pre, resid_mid, resid_post
    requests   the id of one; None: the only one
    unchecked  take the weights though nothing shows that they are the run's
    out        the file to write; None: none
    Refused, AnalysisError, KeyError, ValueError, ImportError (quantised weights without the package gguf).
    """
    from .numeric import numpy
    weights, vocabulary = _opened(weights, tokenizer)
    request, there = _one(run, requests)
    model, written = Model(weights), Written(run, request)
    stream = _stream(model, there, sites, layers)
    followed = None if words is None else [_token(word, vocabulary, model.vocabulary_size) for word in words]
    if not 0 < top <= model.vocabulary_size:
        raise ValueError(f"top={top}: the vocabulary has {model.vocabulary_size} tokens")
    model, checks = _checked(model, there, request, written, unchecked)
    step = max(AT_A_TIME // (4 * model.vocabulary_size * len(stream.layers)), 1)
    with Writer(out, run) as writer:
        writer.add("layers", numpy.array(stream.layers, "<i4"))
        writer.add("positions", numpy.array(stream.positions, "<i8"))
        seen = _add_ids(writer, there, stream.positions)
        for _, block in stream.blocks(model):
            for first in range(0, len(block), step):
                part = block[first:first + step]
                logits = model.logits(part.reshape(-1, model.width)).reshape(len(part), len(stream.layers), -1)
                for of_token in logits:
                    seen |= _token_row(writer, of_token, followed, top)
            del block, part, logits, of_token  # before the next ones are read
        _add_texts(writer, vocabulary, seen)
        parameters = {"weights": str(weights.path), "held": model.weights.held, "site": sites, "top": top, "words": followed, "n_layers": model.n_layers, **_unused(model)}
        return writer.finish(about("lens", LENS_FORMULA, run, request, parameters, checks, written.edits))


def _add_ids(writer: Writer, sites: dict, positions: list) -> set[int]:
    """Adds the ids of the tokens of these rows, -1 where an id was not captured. Return: the ids."""
    from .numeric import numpy
    tensor = _once(sites, IDS)
    if tensor is None or tensor.mixed or tensor.dtype[0] not in "iu":
        return set()
    known = dict(zip(_positions(tensor), tensor.numpy().reshape(len(tensor), -1)[:, 0].tolist()))
    ids = [known.get(position, -1) for position in positions]
    writer.add("token_ids", numpy.array(ids, "<i4"))
    return set(ids)


def _add_texts(writer: Writer, vocabulary: "Vocabulary | None", seen: set[int]) -> None:
    """Adds the texts of all tokens that the answer names, so that readers need no vocabulary."""
    from .numeric import numpy
    known = {} if vocabulary is None else {token: data for token in sorted(seen) if (data := vocabulary.bytes(token)) is not None}
    if known:
        writer.add("text_ids", numpy.array(list(known), "<i4"))
        writer.add("text_ends", numpy.cumsum([len(data) for data in known.values()]).astype("<i8"))
        writer.add("texts", numpy.frombuffer(b"".join(known.values()), "u1"))


# ------------------------------------------------------------------------- direct logit attribution


@dataclass(frozen=True)
class _Parts:
    """Tensors whose sum is the residual stream at the end. @middle: {layer: resid_mid}, of layers without mlp_out."""
    end: Tensor
    first: Tensor
    heads: list
    mlps: list


def _parts(model: Model, sites: dict) -> _Parts:
    """AnalysisError: a part was not captured, by name."""
    def of(name: str, layer: int) -> Tensor | None:
        return sites.get(name, {}).get(layer)
    end, first, heads, mlps, lacks = _once(sites, FINAL), of(HIDDEN, 0), [], [], []
    lacks += [FINAL] * (end is None) + [f"{HIDDEN}.0"] * (first is None)
    for layer in range(model.n_layers):
        heads.append(of("z", layer))
        after = of(HIDDEN, layer + 1) if layer + 1 < model.n_layers else end
        whole, middle = of("mlp_out", layer), of("resid_mid", layer)
        mlps.append((whole,) if whole is not None else (after, middle))
        lacks += [f"z.{layer}"] * (heads[-1] is None) + [f"mlp_out.{layer} (or {HIDDEN}.{layer + 1} and resid_mid.{layer})"] * (None in mlps[-1])
    if lacks:
        raise AnalysisError(f"the parts of the residual stream are not all there: {', '.join(lacks[:4])}{', ...' if len(lacks) > 4 else ''} {'was' if len(lacks) == 1 else 'were'} not captured")
    return _Parts(end, first, heads, mlps)


class _Direction:
    """W_U[a] - W_U[b] seen through the last norm, whose scale is that of each token: a part x of the stream adds scale * (x @ vector)."""

    def __init__(self, model: Model, a: int, b: int) -> None:
        self.plain, self.of_head = model.direction(a, b)
        self.vector = model.norm.centre(self.plain * model.norm.weight)  # centring is its own transpose
        self.constant = self.of_head + (0.0 if model.norm.bias is None else float(self.plain @ model.norm.bias))


class _Heads:
    """What a layer's heads add, before the scale of the last norm."""

    def __init__(self, model: Model, layer: int, z: Tensor, direction: _Direction) -> None:
        self._matrix, self._bias = model.output(layer)
        if _width(z) != self._matrix.shape[1]:
            raise AnalysisError(f"{z.key} has {_width(z)} elements a row, attention's output matrix of layer {layer} takes {self._matrix.shape[1]}: the heads of a "
                                "rank may be missing")
        self._n_heads = z.shape[1] if len(z.shape) == 3 else model.n_heads
        if not self._n_heads or self._matrix.shape[1] % self._n_heads:
            raise AnalysisError(f"{z.key}: {self._matrix.shape[1]} elements cannot be {self._n_heads} heads")
        self._after, self._factor = model.norm_after(layer), model.residual
        through = direction.vector if self._after is None else self._after.centre(direction.vector * self._after.weight)
        self._vector = through @ self._matrix.astype("f8")  # [heads * d]
        self._of_bias = 0.0 if self._bias is None else float(through @ self._bias)
        self._of_after = 0.0 if self._after is None or self._after.bias is None else float(direction.vector @ self._after.bias)
        if self._after is None:
            self._matrix = self._bias = None

    def __call__(self, rows: Any, added: list) -> tuple[Any, Any, Any, list]:
        """(heads [rows, H], biases [rows], sums of squares of the products [rows], what edits added) of z's rows.

        @added: [(number, rows)] of edits that are in z; the last of what it returns has what each of these adds, which is in no head.
        """
        from .numeric import numpy
        scale = numpy.ones((len(rows), 1))
        if self._after is not None:
            whole = rows @ self._matrix.T if self._bias is None else rows @ self._matrix.T + self._bias
            scale = self._after.scale(whole.astype("f8"))
        products = rows.astype("f8") * self._vector * scale * self._factor
        of_edits = [(number, x.astype("f8") * self._vector * scale * self._factor) for number, x in added]
        biases = (scale[:, 0] * self._of_bias + self._of_after) * self._factor
        heads = (products - sum(x for _, x in of_edits)).reshape(len(rows), self._n_heads, -1).sum(-1)
        return heads, biases, (products ** 2).sum(1), [(number, x.sum(1)) for number, x in of_edits]


class _Shares:
    """What edits add to the stream at some rows, each along the direction: a part of its own, which is taken out of the part whose tensor has it, too."""

    def __init__(self, model: Model, written: Written, direction: _Direction, positions: list) -> None:
        from .numeric import numpy
        self._model, self._written, self._direction, self._positions = model, written, direction, positions
        self.found = numpy.zeros((len(positions), len(written.edits)))  # before the scale of the last norm

    def at(self, site: str, layer: int | None, times: float = 1.0) -> Any:
        """[rows]: what edits added at a site of the stream; it counts as theirs."""
        return self.add([(number, x.astype("f8") @ self._direction.vector * times) for number, x in self.rows(site, layer, self._model.width)])

    def rows(self, site: str, layer: int | None, width: int) -> list:
        return self._written.rows(site, layer, self._positions, width) if self._written.edits else []

    def add(self, shares: list) -> Any:
        """[rows]: the sum of [(number of an edit, what it adds)]."""
        for number, x in shares:
            self.found[:, number] += x
        return sum((x for _, x in shares), 0.0)


# Types of models, of Hugging Face and of GGUF, whose layer 0 gets what the embedding gives, plus positions: nothing multiplies it.
PLAIN_EMBEDDING = frozenset(("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen2moe", "qwen3moe", "gpt2", "gpt_neo", "gpt_neox", "gptneox", "phi", "phi2",
                             "phi3", "olmo2", "starcoder2", "glm4", "cohere", "nemotron", "smollm3"))
# Sites that edits may write without a part of the stream of their own: what comes of it is in z and in the MLP's output.
INSIDE = frozenset(NAMES) - {"embed", HIDDEN, "resid_mid", "resid_post", FINAL, NORMED, LOGITS, "attn_out", "mlp_out", "z"}


def _judge_edits(model: Model, parts: _Parts, written: Written, positions: list, request: str | None, unchecked: bool) -> tuple[Written, list]:
    """(what is known of what edits added, the numbers of those that left other values in z or mlp_out: heads and MLPs have these).

    Refused: an edit wrote these rows, and what it added to the stream is not known. With @unchecked such an edit has no part.
    """
    left: list = []

    def why(number: int) -> str | None:
        edit = written.edits[number]
        if not edit.known or edit.site in INSIDE or not written.wrote(number, positions):
            return None if edit.known else "what it wrote is not known"
        if edit.site == "attn_out" and any(edit.wrote(layer) and model.norm_after(layer) for layer in range(model.n_layers)):
            return "a norm comes after attn_out there, so its part is not known"
        if edit.written != edit.due:
            return "which of its rows were missed is not known"
        if edit.site == "embed" and model.arch not in PLAIN_EMBEDDING:
            return f"what a model of the type {model.arch!r} makes of its embedding is not known"
        if edit.site not in NAMES or edit.site in (NORMED, LOGITS):
            return f"what comes of {edit.site} in the residual stream is not known"
        try:
            for layer in range(model.n_layers) if edit.site not in ("embed", FINAL) else [None]:
                written.rows(edit.site, layer, positions, _width(parts.heads[layer]) if edit.site == "z" else model.width)
        except KeyError:
            if edit.site not in ("z", "mlp_out"):
                return "it does not only add vectors, so its part is not known"
            left.append(number)
        return None
    wrong = {number: reason for number in range(len(written.edits)) if (reason := why(number))}
    if wrong and not unchecked:
        number, reason = next(iter(wrong.items()))
        raise Refused(f"an edit wrote in request {request}: {written.edits[number].text}: {reason}. A run without that edit, or other positions, can be answered")
    return written.without({*wrong, *left}), left


def _attributed(model: Model, parts: _Parts, direction: _Direction, positions: list, written: Written) -> Iterator[tuple[dict, Any]]:
    """({array: [rows, ...]}, [rows] what rounding of the captured types adds to the sum: its standard deviation), some rows at a time."""
    from .numeric import numpy
    heads = [_Heads(model, layer, z, direction) for layer, z in enumerate(parts.heads)]
    edited = {id(tensor) for tensor in (parts.end, parts.first, *parts.heads, *(x for mlp in parts.mlps for x in mlp)) if written.edits and tensor.edits}
    step = max(AT_A_TIME // (8 * 4 * model.width), 1)
    for first in range(0, len(positions), step):
        n = min(step, len(positions) - first)
        variance, shares = numpy.zeros(n), _Shares(model, written, direction, positions[first:first + n])

        def rounded(tensor: Tensor, squares: Any, times: int = 1) -> None:
            variance[:] += times * squares * ROUNDING.get(tensor.dtype, ROUNDING_OF_OTHERS) ** 2 / 3

        def along(tensor: Tensor, times: int = 1) -> Any:
            products = _rows(tensor, first, n).astype("f8") * direction.vector
            rounded(tensor, (products ** 2).sum(1), times)
            return products.sum(1)

        def of_mlp(layer: int, mlp: tuple) -> Any:
            """Without what edits added to the tensors that it is computed from."""
            shares.at("attn_out", layer, model.residual)
            at_middle, at_out, after = shares.at("resid_mid", layer), shares.at("mlp_out", layer, model.residual), shares.at("resid_post", layer)
            last = layer + 1 == model.n_layers
            of_end = shares.at(FINAL, None) if last else shares.at(HIDDEN, layer + 1)
            if len(mlp) == 1:
                return along(mlp[0]) * model.residual - at_out * (id(mlp[0]) in edited)
            return along(mlp[0]) - along(mlp[1]) - at_out - after - of_end * (id(mlp[0]) in edited) - at_middle * (id(mlp[1]) not in edited)
        scale = model.norm.scale(_rows(parts.end, first, n).astype("f8"))
        along(parts.end, 2 * model.n_layers)  # the stream was rounded after each addition
        of_heads, of_biases = [], []
        for layer, (compute, z) in enumerate(zip(heads, parts.heads)):
            found, bias, squares, of_edits = compute(_rows(z, first, n), shares.rows("z", layer, _width(z)))
            shares.add(of_edits)
            rounded(z, squares)
            of_heads.append(found)
            of_biases.append(bias)
        mlps = [of_mlp(layer, mlp) for layer, mlp in enumerate(parts.mlps)]
        embedding = along(parts.first) - shares.at(HIDDEN, 0) * (id(parts.first) in edited) - shares.at("embed", None)
        yield {"embedding": embedding * scale[:, 0], "heads": numpy.stack(of_heads, 1) * scale[..., None], "mlps": numpy.stack(mlps, 1) * scale,
               "biases": numpy.stack(of_biases, 1) * scale, "constant": numpy.full(n, direction.constant),
               **({"edits": shares.found * scale} if written.edits else {})}, variance ** 0.5 * scale[:, 0]


def _differences(model: Model, sites: dict, positions: list, direction: _Direction, a: int, b: int) -> Any:
    """[positions]: the difference of the two logits, as captured, or of final_ln; NaN where neither is there."""
    from .numeric import numpy
    found = dict.fromkeys(positions, numpy.nan)
    logits, normed = None if model.capped else _once(sites, LOGITS), _once(sites, NORMED)
    for tensor, compute in ((normed, lambda x: x.astype("f8") @ direction.plain + direction.of_head), (logits, lambda x: x[:, a].astype("f8") - x[:, b])):
        if tensor is None:
            continue
        step = max(AT_A_TIME // (4 * _width(tensor)), 1)
        of = _positions(tensor)
        for first in range(0, len(of), step):
            n = min(step, len(of) - first)
            found |= {position: float(x) for position, x in zip(of[first:first + n], compute(_rows(tensor, first, n))) if position in found}
    return numpy.array([found[position] for position in positions])


class _Proof:
    """The sum of the parts against the difference of the logits, at each position that has it: the worst one counts."""

    def __init__(self) -> None:
        self._error, self._bound, self._rows = 0.0, SUM_BOUND, 0

    def add(self, errors: Any, deviation: Any) -> None:
        """@errors: NaN where the difference is not known."""
        for error, bound in zip(abs(errors).tolist(), (SUM_TIMES * deviation).clip(SUM_BOUND).tolist()):
            if error == error:
                self._rows += 1
                if error / bound >= self._error / self._bound:
                    self._error, self._bound = error, bound

    def check(self, request: str | None, written: Written, unchecked: bool) -> list[dict]:
        """The check, none where nothing was compared. Refused: it does not hold, or nothing allows it; not with @unchecked."""
        if not self._rows and not unchecked:
            raise Refused(f"nothing shows that the parts sum up: request {request} has no {LOGITS} or {NORMED} at these positions")
        if self._error > self._bound and not unchecked:
            raise Refused(f"the parts do not sum up to the difference of the logits: the error is {self._error:.2g}, above {self._bound:.2g}, in request {request}"
                          f"{said(written.edits)}")
        check = {"name": "sum of the parts = difference of the logits", "error": self._error, "bound": self._bound, "rows": self._rows}
        return [check] if self._rows else []


@chooses
def dla(run: Run, weights: Any, a: str | int, b: str | int, requests: str | None = None, tokenizer: Any = None, unchecked: bool = False,
        out: Any = None) -> Result:
    """Who writes the difference of two logits: what embedding, heads, MLPs and edits add to logit(a) - logit(b), through the last norm with its scale frozen.

    a, b   texts of one token, or ids. Other arguments, and errors, are those of lens().
    Refused: the parts do not sum up to the difference that was captured; or an edit wrote these rows, and what it wrote is not known.
    """
    from .numeric import numpy
    weights, vocabulary = _opened(weights, tokenizer)
    request, sites = _one(run, requests)
    model, written = Model(weights), Written(run, request)
    ids = [_token(word, vocabulary, model.vocabulary_size) for word in (a, b)]
    parts = _parts(model, sites)
    read = [parts.first, parts.end, *(tensor for mlp in parts.mlps for tensor in mlp)]
    positions = _alike(read, model.width)
    for z in parts.heads:
        if _positions(z) != positions:
            raise AnalysisError(f"{z.key} has rows of other positions than {parts.first.name}: select tokens that both have")
    model, checks = _checked(model, sites, request, written, unchecked)
    shown, left = _judge_edits(model, parts, written, positions, request, unchecked)
    direction = _Direction(model, *ids)
    wanted = _differences(model, sites, positions, direction, *ids)
    proof, at = _Proof(), 0
    with Writer(out, run) as writer:
        writer.add("positions", numpy.array(positions, "<i8"))
        _add_texts(writer, vocabulary, _add_ids(writer, sites, positions) | {*ids})
        for block, deviation in _attributed(model, parts, direction, positions, shown):
            total = block["embedding"] + block["heads"].sum((1, 2)) + block["mlps"].sum(1) + block["biases"].sum(1) + block["constant"]
            total = total + block["edits"].sum(1) if "edits" in block else total
            difference = wanted[at:at + len(total)]
            at += len(total)
            proof.add(total - difference, deviation)
            for name, rows in {**block, "sum": total, "difference": difference}.items():
                writer.add(name, rows.astype("<f8"))
        checks += proof.check(request, written, unchecked)
        parameters = {"weights": str(weights.path), "held": model.weights.held, "tokens": ids, "n_layers": model.n_layers, **({"edited": left} if left else {}),
                      **_unused(model)}
        return writer.finish(about("dla", DLA_FORMULA, run, request, parameters, checks, written.edits))
