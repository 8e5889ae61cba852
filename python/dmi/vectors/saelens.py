# SPDX-License-Identifier: Apache-2.0
"""Single features of autoencoders: of SAELens, cfg.json and sae_weights.safetensors, as saved by versions 2 to 6; of Gemma Scope, params.npz.

f = relu((x - b_dec) . W_enc[:, i] + b_enc[i]), 0 unless that is above threshold[i], and the feature writes W_dec[i]. b_dec is folded into
the bias; Gemma Scope's take rows as they are. Where other features decide (TopK), or the row is scaled first, one feature alone is not what the autoencoder computes: refused. What the configuration
says is done, or refused by name; what changes no number is listed as not used.
"""
from __future__ import annotations

import json
import math
import os
import pathlib
import re
from array import array
from dataclasses import dataclass, field

from ..torch import names
from . import arrays, tensors
from .tensors import VectorError

CONFIG, WEIGHTS, NPZ = "cfg.json", "sae_weights.safetensors", ".npz"
MAX_CONFIG = 1 << 20
RELU, JUMP = "standard", "jumprelu"
TENSORS = {"W_enc", "W_dec", "b_enc", "b_dec", "threshold"}
READ = {"architecture", "activation_fn_str", "activation_fn", "hook_name", "hook_point", "hook_layer", "hook_point_layer", "d_in", "d_sae", "model_name",
        "apply_b_dec_to_input", "model_from_pretrained_kwargs", "meta", "metadata"}
# Keys that may say nothing else than this here: the rest of what SAELens can compute is more than one feature of a row.
ONLY = {"normalize_activations": ("none",), "reshape_activations": ("none", "hook_z"), "finetuning_scaling_factor": (False,), "hook_head_index": (None,),
        "activation_fn_kwargs": ({},), "rescale_acts_by_decoder_norm": (False,), "hook_name_out": (None,), "hook_layer_out": (None,), "hook_head_index_out": (None,)}
# Of the training, of the prompts it was done with, and of the program: no number of a feature depends on them.
OF_TRAINING = re.compile(r"(l[01p]\d?_|lp_norm|lr|adam|mse_|n_|train|finetun.*(tokens|method)|dead_|feature_sampling|w(and)?b|log_|eval_|store_|act_store|checkpoint|"
                         r"b_dec_init|decoder_(init|orthogonal|heuristic)|init_|normalize_sae_decoder|scale_sparsity|noise_scale|jumprelu_(init|bandwidth|sparsity|tanh)|"
                         r"pre_act_loss|use_ghost|autocast|compile_|llm_comp|seed$|device$|dtype$|dataset|streaming|is_dataset|context_size|prepend_bos|exclude_special|"
                         r"sequence_sep|disable_concat|seqpos_slice|sae_lens|neuronpedia|model_class_name|hf_hook_name|hook_eval|cached_act|use_cached|expansion|from_pretrained|"
                         r"tokens_|verbose|run_name|model_kwargs)")
# Of TransformerLens: they change no row of the residual stream, of what goes into it, or of a head's z.
OF_LOADING = re.compile(r"(fold_ln|center_unembed|(torch_)?dtype|device|n_devices|revision|trust_remote_code|local_files_only|cache_dir|default_|token$|n_ctx$|use_auth)")
WRITTEN = ("embed", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")  # by the weights that TransformerLens centres
WITH_LAYERNORM = re.compile(r"(.*/)?(gpt2|distilgpt2|pythia|gpt-neo|gpt-j|opt-|bloom|stablelm|phi-?[12]\b|tiny-?stories|gelu-|solu-|attn-only|redwood)", re.IGNORECASE)


@dataclass
class Feature:
    decoder: array
    encoder: array
    bias: float
    threshold: float


@dataclass
class Dictionary:
    """An autoencoder.

    path         its weights
    site, layer  what it reads and writes
    centred      it takes b_dec from a row
    of_centred   it takes rows without their mean
    about        more that its configuration says
    unused       what it says that changes no number
    """
    path: pathlib.Path
    site: str
    layer: int
    width: int
    n_features: int
    jumps: bool
    centred: bool
    of_centred: bool
    about: dict = field(default_factory=dict)
    unused: list = field(default_factory=list)

    def feature(self, index: int) -> Feature:
        if not 0 <= index < self.n_features:
            raise VectorError(f"it has no feature {index}; expected 0 to {self.n_features - 1}")
        d, n = self.width, self.n_features
        file = arrays.npz(self.path) if self.path.suffix == NPZ else tensors.File(tensors.mapped(self.path)).entries
        if ("threshold" in file) != self.jumps:
            raise VectorError(f"{WEIGHTS} has {'no' if self.jumps else 'a'} threshold, which contradicts {CONFIG}")
        if more := sorted(file.keys() - TENSORS):
            raise VectorError(f"{self.path.name} has a tensor {tensors.printable(more[0])}, which a feature does not have")
        decoder = self._numbers(file, "W_dec", (n, d), index * d, 1, d)
        encoder = self._numbers(file, "W_enc", (d, n), index, n, d)
        bias = self._numbers(file, "b_enc", (n,), index, 1, 1)[0]
        if self.centred:
            centre = self._numbers(file, "b_dec", (d,), 0, 1, d)
            bias -= math.fsum(b * e for b, e in zip(centre, encoder))
        if self.of_centred:  # (x - mean(x)).e is x.(e - mean(e))
            mean = math.fsum(encoder) / d
            encoder = array("f", (e - mean for e in encoder))
        threshold = self._numbers(file, "threshold", (n,), index, 1, 1)[0] if self.jumps else 0.0
        if not any(decoder) or not any(encoder):
            raise VectorError(f"feature {index} is all 0: it never writes anything")
        return Feature(decoder, encoder, bias, threshold)

    def _numbers(self, file: dict, name: str, shape: tuple, first: int, step: int, n: int) -> array:
        dtype, found, data = file.get(name, (None, (), memoryview(b"")))
        if dtype not in tensors.BYTES or found != shape:
            raise VectorError(f"{self.path.name} has no {name} of the shape {list(shape)} in f32, f16, bf16 or f64")
        return tensors.take(data, dtype, name, first, step, n)


def quoted(path: str | os.PathLike) -> str:
    """A path as YAML."""
    return json.dumps(os.fspath(path))


def _config(folder: pathlib.Path) -> dict:
    """All that it says, of newer versions also in a dict of its own; None: says nothing."""
    data = tensors.mapped(folder / CONFIG)
    if len(data) > MAX_CONFIG:
        raise VectorError(f"{CONFIG} has more than {MAX_CONFIG} bytes")
    try:
        config = json.loads(bytes(data))
        parts = [{key: value for key, value in part.items() if value is not None} for part in (config, config.get("meta") or {}, config.get("metadata") or {})]
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise VectorError(f"{CONFIG} is no object of JSON") from None
    for key in sorted(parts[0].keys() & (parts[1].keys() | parts[2].keys())):
        if any(key in part and part[key] != parts[0][key] for part in parts[1:]):
            raise VectorError(f"{CONFIG} says {tensors.printable(key)} twice, and not alike")
    return {**parts[0], **parts[1], **parts[2]}


def _refuse(config: dict) -> None:
    """VectorError where one feature by itself is not what the autoencoder computes."""
    architecture = str(config.get("architecture") or RELU)
    activation = str(config.get("activation_fn_str") or config.get("activation_fn") or "relu")
    if any("topk" in word.lower().replace("-", "").replace("_", "") for word in (architecture, activation)):
        raise VectorError("it is a TopK autoencoder: whether a feature is active depends on all others, so that a feature alone cannot be edited")
    if architecture not in (RELU, JUMP) or activation != "relu":
        raise VectorError(f"its architecture is {tensors.printable(architecture)} with {tensors.printable(activation)}; expected {RELU} or {JUMP} with relu")
    if (norm := config.get("normalize_activations") or "none") != "none":
        raise VectorError(f"it takes rows that are scaled first (normalize_activations: {tensors.printable(str(norm))}); fold the factor into its weights before")
    if config.get("finetuning_scaling_factor"):
        raise VectorError("it has factors of fine-tuning (finetuning_scaling_factor), which edits do not have")
    if config.get("hook_head_index") is not None:
        raise VectorError(f"it is of head {tensors.printable(str(config['hook_head_index']))} alone, which is not supported")
    if "d_out" in config and config["d_out"] != config.get("d_in"):
        raise VectorError("it writes rows of another width than it reads (d_out)")


def _unused(config: dict) -> list[str]:
    """What it says that changes no number. VectorError: what may change some, and is not done here."""
    for key, values in ONLY.items():
        if config.get(key) is not None and config[key] not in values:
            raise VectorError(f"it says {key}: {tensors.printable(json.dumps(config[key]))}, which edits do not have; expected {json.dumps(values[0])}")
    more = {key: value for key, value in config.items() if key not in READ and key not in ONLY and key != "d_out"}
    free = {key: value for key, value in more.items() if not OF_TRAINING.match(key)}
    tensors.unused({key: value if isinstance(value, (str, int, float)) else json.dumps(value) for key, value in free.items()})
    return [tensors.printable(key) for key in more]


def _of_centred(config: dict, site: str) -> bool:
    """Was it trained on rows from which TransformerLens had taken the mean? VectorError: on rows that an engine has not, or it cannot be known."""
    said = config.get("model_from_pretrained_kwargs") or {}
    if not isinstance(said, dict):
        raise VectorError(f"{CONFIG}: model_from_pretrained_kwargs is no object of JSON")
    for key, value in said.items():
        if not value or key == "center_writing_weights" or OF_LOADING.match(key):
            continue
        if key == "fold_value_biases" and site not in ("v", "z") or key == "refactor_factored_attn_matrices" and site in WRITTEN:
            continue
        raise VectorError(f"it was trained on a model that TransformerLens had changed (model_from_pretrained_kwargs: {tensors.printable(key)}), and {site} of an "
                          "engine's model may be another one")
    if not said.get("center_writing_weights") or site not in WRITTEN:
        return False
    model = str(config.get("model_name"))
    if not WITH_LAYERNORM.match(model):
        raise VectorError(f"it says center_writing_weights, which TransformerLens does where a model has LayerNorm; whether {tensors.printable(model)} has it is "
                          "not known here")
    return True


def _place(config: dict) -> tuple[str, int]:
    """(site, layer) of what it reads"""
    hook = config.get("hook_name") or config.get("hook_point")
    if not isinstance(hook, str):
        raise VectorError(f"{CONFIG} has no hook_name")
    try:
        wish, = names.parse_sites(hook)
    except ValueError as error:
        raise VectorError(f"its hook_name {tensors.printable(hook)} is no site: {error}") from None
    if not wish.exact or not wish.layers:
        raise VectorError(f"its hook_name {tensors.printable(hook)} is no tensor of one layer")
    layer, said = int(wish.layers), config.get("hook_layer", config.get("hook_point_layer"))
    if said is not None and said != layer:
        raise VectorError(f"its hook_name is {tensors.printable(hook)}, and hook_layer {tensors.printable(str(said))}")
    return wish.names[0], layer


def read_npz(path: pathlib.Path, layer_is: str | None, layer: int | None) -> Dictionary:
    """Of Gemma Scope: five arrays, which say neither site nor layer."""
    file = arrays.npz(path)
    if set(file) != TENSORS:
        raise VectorError(f"it has the arrays {tensors.printable(', '.join(sorted(file)), 200)}; expected those of Gemma Scope: {', '.join(sorted(TENSORS))}")
    if layer_is is None or layer is None:
        raise VectorError("it does not say what it reads: expected --layer-is SITE --shift LAYER; layer_20 of gemma-scope-2b-pt-res is resid_post of layer 20, of "
                          "-mlp mlp_out, of -att z")
    _, shape, _ = file["W_dec"]
    if len(shape) != 2 or not all(0 < n < 1 << 32 for n in shape):
        raise VectorError("its W_dec has no two dimensions: features, width")
    return Dictionary(path, layer_is, 0, shape[1], shape[0], True, False, False)


def read(folder: pathlib.Path) -> Dictionary:
    config = _config(folder)
    _refuse(config)
    site, layer = _place(config)
    unused = _unused(config)
    if config.get("reshape_activations") == "hook_z" and site != "z":
        raise VectorError(f"it says reshape_activations: hook_z, and is of {site}")
    sizes = config.get("d_in"), config.get("d_sae")
    if not all(type(n) is int and 0 < n < 1 << 32 for n in sizes):
        raise VectorError(f"{CONFIG} says no sizes (d_in, d_sae)")
    centred = config.get("apply_b_dec_to_input", True)
    if not isinstance(centred, bool):
        raise VectorError(f"{CONFIG}: apply_b_dec_to_input is neither true nor false")
    model = config.get("model_name")  # a checkpoint's, as TransformerLens or the Hugging Face Hub has it: no model_type
    return Dictionary(folder / WEIGHTS, site, layer, *sizes, config.get("architecture") == JUMP, centred, _of_centred(config, site),
                      {"dmi.checkpoint": model} if isinstance(model, str) else {}, unused)
