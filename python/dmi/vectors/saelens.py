# SPDX-License-Identifier: Apache-2.0
"""Single features of autoencoders of SAELens: cfg.json and sae_weights.safetensors, as saved by versions 2 to 6.

f = relu((x - b_dec) . W_enc[:, i] + b_enc[i]), 0 unless that is above threshold[i], and the feature writes W_dec[i]. b_dec is folded into
the bias. Where other features decide (TopK), or the row is scaled first, one feature alone is not what the autoencoder computes: refused.
"""
from __future__ import annotations

import json
import math
import os
import pathlib
from array import array
from dataclasses import dataclass, field

from ..torch import names
from . import tensors
from .tensors import VectorError

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
MAX_CONFIG = 1 << 20
RELU, JUMP = "standard", "jumprelu"


@dataclass
class Feature:
    decoder: array
    encoder: array
    bias: float
    threshold: float


@dataclass
class Dictionary:
    """An autoencoder. path: its weights; site, layer: what it reads and writes; about: more that its configuration says."""
    path: pathlib.Path
    site: str
    layer: int
    width: int
    n_features: int
    jumps: bool
    centred: bool
    about: dict = field(default_factory=dict)

    def feature(self, index: int) -> Feature:
        if not 0 <= index < self.n_features:
            raise VectorError(f"it has no feature {index}; expected 0 to {self.n_features - 1}")
        file, d, n = tensors.File(tensors.mapped(self.path)), self.width, self.n_features
        if ("threshold" in file.entries) != self.jumps:
            raise VectorError(f"{WEIGHTS} has {'no' if self.jumps else 'a'} threshold, which contradicts {CONFIG}")
        decoder = self._numbers(file, "W_dec", (n, d), index * d, 1, d)
        encoder = self._numbers(file, "W_enc", (d, n), index, n, d)
        bias = self._numbers(file, "b_enc", (n,), index, 1, 1)[0]
        if self.centred:
            centre = self._numbers(file, "b_dec", (d,), 0, 1, d)
            bias -= math.fsum(b * e for b, e in zip(centre, encoder))
        threshold = self._numbers(file, "threshold", (n,), index, 1, 1)[0] if self.jumps else 0.0
        if not any(decoder) or not any(encoder):
            raise VectorError(f"feature {index} is all 0: it never writes anything")
        return Feature(decoder, encoder, bias, threshold)

    @staticmethod
    def _numbers(file: tensors.File, name: str, shape: tuple, first: int, step: int, n: int) -> array:
        dtype, found, data = file.entries.get(name, (None, (), memoryview(b"")))
        if dtype not in tensors.BYTES or found != shape:
            raise VectorError(f"{WEIGHTS} has no {name} of the shape {list(shape)} in f32, f16, bf16 or f64")
        return tensors.take(data, dtype, name, first, step, n)


def quoted(path: str | os.PathLike) -> str:
    """A path as YAML."""
    return json.dumps(os.fspath(path))


def _config(folder: pathlib.Path) -> dict:
    data = tensors.mapped(folder / CONFIG)
    if len(data) > MAX_CONFIG:
        raise VectorError(f"{CONFIG} has more than {MAX_CONFIG} bytes")
    try:
        config = json.loads(bytes(data))
        more = [config.get(key) or {} for key in ("meta", "metadata")]
        return {**config, **more[0], **more[1]}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise VectorError(f"{CONFIG} is no object of JSON") from None


def _refuse(config: dict) -> None:
    """VectorError where one feature by itself is not what the autoencoder computes."""
    architecture = str(config.get("architecture") or RELU)
    activation = str(config.get("activation_fn_str") or config.get("activation_fn") or "relu")
    if any("topk" in word.lower().replace("-", "").replace("_", "") for word in (architecture, activation)):
        raise VectorError("it is a TopK autoencoder: whether a feature is active depends on all others, so that a feature alone cannot be edited")
    if architecture not in (RELU, JUMP) or activation != "relu":
        raise VectorError(f"its architecture is {architecture} with {activation}; expected {RELU} or {JUMP} with relu")
    if (norm := config.get("normalize_activations") or "none") != "none":
        raise VectorError(f"it takes rows that are scaled first (normalize_activations: {norm}); fold the factor into its weights before")
    if config.get("finetuning_scaling_factor"):
        raise VectorError("it has factors of fine-tuning (finetuning_scaling_factor), which edits do not have")
    if config.get("hook_head_index") is not None:
        raise VectorError(f"it is of head {config['hook_head_index']} alone, which is not supported")


def _place(config: dict) -> tuple[str, int]:
    """(site, layer) of what it reads"""
    hook = config.get("hook_name") or config.get("hook_point")
    if not isinstance(hook, str):
        raise VectorError(f"{CONFIG} has no hook_name")
    try:
        wish, = names.parse_sites(hook)
    except ValueError as error:
        raise VectorError(f"its hook_name {hook} is no site: {error}") from None
    if not wish.exact or not wish.layers:
        raise VectorError(f"its hook_name {hook} is no tensor of one layer")
    layer, said = int(wish.layers), config.get("hook_layer", config.get("hook_point_layer"))
    if said is not None and said != layer:
        raise VectorError(f"its hook_name is {hook}, and hook_layer {said}")
    return wish.names[0], layer


def read(folder: pathlib.Path) -> Dictionary:
    config = _config(folder)
    _refuse(config)
    site, layer = _place(config)
    sizes = config.get("d_in"), config.get("d_sae")
    if not all(type(n) is int and 0 < n < 1 << 32 for n in sizes):
        raise VectorError(f"{CONFIG} says no sizes (d_in, d_sae)")
    model = config.get("model_name")  # a checkpoint's, as TransformerLens or the Hugging Face Hub has it: no model_type
    return Dictionary(folder / WEIGHTS, site, layer, *sizes, config.get("architecture") == JUMP, config.get("apply_b_dec_to_input", True) is not False,
                      {"dmi.checkpoint": model} if isinstance(model, str) else {})
