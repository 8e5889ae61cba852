# SPDX-License-Identifier: Apache-2.0
"""Which experts computed each token of a request, and with what weights: Request.experts()."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .reading import Request, Tensor

IDS, WEIGHTS, LOGITS = "topk_ids", "topk_weights", "router_logits"


class Experts(NamedTuple):
    """Of one layer. ids: [tokens, k], int64, the most likely expert first; weights: [tokens, k], float32, or None where they were not captured."""
    ids: Any
    weights: Any


def chosen(request: "Request", layer: int, k: int | None, normalize: bool) -> Experts:
    """As Request.experts() says."""
    there = {tensor.site.name: tensor for tensor in request.tensors.values() if tensor.layer == layer and tensor.site.name in (IDS, WEIGHTS, LOGITS)}
    ids, weights, logits = (there.get(name) for name in (IDS, WEIGHTS, LOGITS))
    if ids is None and logits is None:
        layers = sorted({tensor.layer for tensor in request.tensors.values() if tensor.site.name in (IDS, LOGITS) and tensor.layer is not None})
        raise KeyError(f"request {request.id} has neither {IDS} nor {LOGITS} of layer {layer!r}" +
                       (f"; there are layers {', '.join(map(str, layers))}" if layers else ""))
    if ids is not None:
        return _captured(ids, weights, k)
    if k is None:
        raise ValueError(f"{logits.key}: the router's logits do not say how many experts a token has: give k")
    return of_logits(logits.float32(), k, normalize)


def _captured(ids: "Tensor", weights: "Tensor | None", k: int | None) -> Experts:
    found = ids.numpy().reshape(len(ids), -1).astype("i8")
    if k not in (None, found.shape[1]):
        raise ValueError(f"{ids.key} has {found.shape[1]} experts a token, not {k}")
    if weights is None:
        return Experts(found, None)
    if weights.positions != ids.positions:
        raise ValueError(f"{weights.key} and {ids.key} do not have the same positions: {len(weights)} and {len(ids)} rows")
    return Experts(found, weights.float32().reshape(found.shape))


def of_logits(logits: Any, k: int, normalize: bool) -> Experts:
    """Of [tokens, experts]: the k largest, and their softmax over all experts, or over those k (@normalize). Of equal logits the first counts as larger."""
    from ..numeric import numpy
    logits = numpy.asarray(logits, numpy.float32).reshape(len(logits), -1)
    if not 0 < k <= logits.shape[1]:
        raise ValueError(f"k={k}: the router has {logits.shape[1]} experts")
    ids = numpy.argsort(-logits, axis=1, kind="stable")[:, :k]
    best = numpy.take_along_axis(logits, ids, 1)
    weights = numpy.exp(best - best[:, :1])
    whole = weights if normalize else numpy.exp(logits - best[:, :1])
    return Experts(ids, weights / whole.sum(axis=1, keepdims=True))
