# SPDX-License-Identifier: Apache-2.0
"""What tensors hold, and which experts were chosen, in numpy: what include/dmi/analyze_stats.h gives. docs/statistics.md has formulas and limits.

    with dmi.open("RUN") as run:
        found = dmi.stats.stats(run, skip_first=1)
        found.layer("resid_pre", 12).peak.value
        found.channels("resid_pre", 12)["score"]      # by channel
        dmi.stats.routing(run)[0].load                # by expert

libdmi_analyze.so computes; nothing is computed here. An answer is of the rows that the run has selected: run.select() chooses.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable

from . import headers
from .attention import DOUBLE, library
from .run import edited
from .run.library import opened
from .run.reading import Run
from .run.structs import U32, U64

OF = {"values": 0, "magnitudes": 1, "norms": 2}  # enum dmi_stats_of
QUANTILE_ERROR = 0.00390625


_STRUCTS = headers.structs("analyze_stats.h")
_Place, _Row, _Channel, _Options, _Layer, _Outlier = (_STRUCTS[f"stats_{name}"] for name in ("place", "row", "channel", "options", "layer", "outlier"))
_RoutingOptions, _RoutingLayer = _STRUCTS["routing_options"], _STRUCTS["routing_layer"]
_TAKE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, U64, U64, ctypes.POINTER(_Row), U64)


@dataclass(frozen=True)
class Place:
    """Where a value stands: tensor is its key, token its position, or its row where that is not known."""
    value: float
    tensor: str
    token: int
    channel: int


@dataclass(frozen=True)
class Layer:
    """One site and layer, all requests together; docs/statistics.md says what each number is. NaN, or None: there is none.

    left_out    why there are no numbers; None: there are
    n_outliers  None: more than half of the channels are equal, so that none can stand out
    """
    site: str
    layer: int | None
    left_out: str | None
    n_channels: int
    n_rows: int
    n_skipped: int
    n_damaged: int
    n_values: int
    n_zero: int
    n_nan: int
    n_infinite: int
    mean: float
    sd: float
    kurtosis: float
    least: float
    most: float
    peak: Place | None
    n_norms: int
    norm_mean: float
    norm_sd: float
    norm_peak: Place | None
    n_outliers: int | None


@dataclass(frozen=True)
class Outlier:
    """A channel that stands out in n_layers of of_layers of its site, furthest in layer, by score robust standard deviations."""
    site: str
    channel: int
    n_layers: int
    of_layers: int
    layer: int | None
    score: float


@dataclass(frozen=True)
class RoutingLayer:
    """One layer of a mixture of experts; docs/statistics.md says what each number is. load: uint64 [experts]. NaN: there is no such number."""
    layer: int | None
    n_experts: int
    n_choices: int
    n_tokens: int
    n_damaged: int
    n_invalid: int
    load: Any
    variation: float
    entropy: float
    n_idle: int
    busiest: int
    n_pairs: int
    token_overlap: float
    n_requests: int
    request_overlap: float
    request_likeness: float
    first_share: float
    token_entropy: float


def _number(layer: int) -> int | None:
    return None if layer < 0 else layer


def _listed(name: str, handle: ctypes.c_void_p, kind: Any) -> list:
    found = []
    while True:
        found.append(kind())
        if getattr(library(), name)(handle, U64(len(found) - 1), ctypes.byref(found[-1])):
            return found[:-1]


class Stats:
    """What stats() found.

    layers    list[Layer], by site and layer
    outliers  list[Outlier]: channels that stand out in at least a quarter of their site's layers
    edits     {request: what edits wrote in it, as Run.edits() has them}, of requests in which some did: what is computed after them is in these numbers
    """

    def __init__(self, run: Run, handle: ctypes.c_void_p, rows: dict[str, Any] | None) -> None:
        self._handle, self._rows = handle, rows
        keys = list(run._tensors)
        self.edits = edited.of_selected(run)
        raw = _listed("dmi_stats_layer", handle, _Layer)
        self.layers = [self._layer(x, keys) for x in raw]
        self.outliers = [Outlier(o.name.decode(), o.channel, o.n_layers, o.of_layers, _number(o.layer), o.score)
                         for o in _listed("dmi_stats_outlier", handle, _Outlier)]

    @staticmethod
    def _layer(x: _Layer, keys: list[str]) -> Layer:
        def place(at: _Place, any_is: int) -> Place | None:
            return Place(at.value, keys[at.tensor], at.position, at.channel) if any_is else None
        return Layer(x.name.decode(), _number(x.layer), x.left_out.decode() if x.left_out else None, x.width, x.n_rows, x.n_skipped, x.n_damaged, x.n_values,
                     x.n_zero, x.n_nan, x.n_infinite, x.mean, x.sd, x.kurtosis, x.least, x.most, place(x.peak, x.n_values), x.n_norms, x.norm_mean,
                     x.norm_sd, place(x.norm_peak, x.n_norms), x.n_outliers if x.has_spread else None)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            library().dmi_stats_close(self._handle)

    def _index(self, site: str, layer: int | None) -> int:
        for i, x in enumerate(self.layers):
            if (x.site, x.layer) == (site, layer):
                return i
        raise KeyError(f"there is no {site} of layer {layer}")

    def layer(self, site: str, layer: int | None = None) -> Layer:
        return self.layers[self._index(site, layer)]

    def quantile(self, site: str, layer: int | None, q: float, of: str = "values") -> float:
        """Within QUANTILE_ERROR of the value of rank floor(q * (n - 1)). of: "values", "magnitudes" (without their sign), "norms" (of rows)."""
        function = library().dmi_stats_quantile
        function.restype = DOUBLE
        return function(self._handle, U64(self._index(site, layer)), U32(OF[of]), DOUBLE(q))

    def channels(self, site: str, layer: int | None = None) -> Any:
        """A numpy array of structs, by channel: mean, sd, peak (the largest magnitude), score, n_bad (values that are not finite)."""
        from .numeric import numpy
        index = self._index(site, layer)
        out = numpy.empty(self.layers[index].n_channels, _Channel)
        if library().dmi_stats_channels(self._handle, U64(index), ctypes.c_void_p(out.ctypes.data), U64(len(out))) < 0:
            raise MemoryError("no memory for channels")
        return out

    def rows(self, key: str) -> Any:
        """A numpy array of structs, by row of a tensor: norm, mean, peak, n_bad; NaN for rows that were left out. Only where stats() was asked for rows."""
        if self._rows is None:
            raise ValueError("rows were not asked for: stats(run, rows=True)")
        return self._rows[key]


def _rows_of(run: Run) -> tuple[dict[str, Any], Callable]:
    """Arrays by tensor, and what fills them."""
    from .numeric import numpy
    kind = numpy.dtype(_Row)
    nothing = numpy.array((numpy.nan, numpy.nan, numpy.nan, 0), kind)
    arrays = [(t.key, numpy.full(len(t), nothing, kind)) for t in run._tensors.values()]

    def take(_: Any, tensor: int, first: int, rows: Any, n: int) -> int:
        ctypes.memmove(arrays[tensor][1].ctypes.data + first * kind.itemsize, rows, n * kind.itemsize)
        return 0
    return dict(arrays), take


def stats(run: Run, skip_first: int = 0, rows: bool = False, threads: int = 1) -> Stats:
    """Norms, moments, the largest value, quantiles and channels of all rows that the run has selected, by site and layer.

    skip_first  so many first tokens of each request are left out: massive activations sit there
    rows        what each row holds, too
    threads     that compute; the answer does not depend on them
    Raises ReadError.
    """
    arrays, take = _rows_of(run) if rows else (None, None)
    options = _Options()
    options.n_threads, options.skip_first = threads, skip_first
    if take:
        options.take = ctypes.cast(_TAKE(take), ctypes.c_void_p)
    return Stats(run, opened(library().dmi_stats_open, run._handle, ctypes.byref(options)), arrays)


def routing(run: Run, top_k: int = 0, experts: int = 0, ids: str | None = None, weights: str | None = None, logits: str | None = None) -> list[RoutingLayer]:
    """Which experts were chosen, by layer, of all rows that the run has selected.

    top_k    0: captured choices; else the choices are the largest router logits, and their weights the softmax of these
    experts  how many a layer has, where router logits were not captured
    ids, weights, logits   names of sites in the place of topk_ids, topk_weights, router_logits
    Raises ReadError: what lacks, by name.
    """
    from .numeric import numpy
    options = _RoutingOptions()
    options.n_experts, options.top_k = experts, top_k
    for name, site in (("ids", ids), ("weights", weights), ("logits", logits)):
        setattr(options, name, None if site is None else site.encode())
    handle = opened(library().dmi_routing_open, run._handle, ctypes.byref(options))
    try:
        return [RoutingLayer(_number(x.layer), x.n_experts, x.n_choices, x.n_tokens, x.n_damaged, x.n_invalid,
                             numpy.ctypeslib.as_array(x.load, (x.n_experts,)).copy(), x.variation, x.entropy, x.n_idle, x.busiest, x.n_pairs, x.token_overlap,
                             x.n_requests, x.request_overlap, x.request_likeness, x.first_share, x.token_entropy)
                for x in _listed("dmi_routing_layer", handle, _RoutingLayer)]
    finally:
        library().dmi_routing_close(handle)
