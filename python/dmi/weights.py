# SPDX-License-Identifier: Apache-2.0
"""A model's weights, as float32 rows that are read when they are asked for: a GGUF file, a safetensors file, or a folder of Hugging Face's.

    weights = dmi.weights.Weights("model.gguf")
    weights.rows("token_embd.weight", 0, 1000)       # [1000, width], float32

Nothing is guessed: config.json lies beside the safetensors files, a GGUF has it in its header. Quantised types of GGUF take the package gguf. What lens and
dla need of a model (its head, its last norm, attention's output matrices) is dmi.weights.Model. numpy is imported where it is asked for.
Sources: https://github.com/huggingface/safetensors, "Format"; https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""
from __future__ import annotations

import copy
import json
import math
import mmap
import pathlib
import re
from dataclasses import dataclass
from typing import Any

from . import configs
from .files import mapped, read
from .gguf_header import VERSIONS, Header, HeaderError
from .vocabulary import Vocabulary

LONGEST_HEADER = 256 << 20  # bytes; safetensors' own readers take 100 MB
SAFETENSORS = {"F32": ("<f4", 4), "F16": ("<f2", 2), "F64": ("<f8", 8), "BF16": ("bf16", 2)}
SCALES = ("_scale", "_scale_inv", "_scale_2", ".absmax")  # after the name of a tensor: compressed-tensors, DeepSeek, ModelOpt, bitsandbytes
GGML = {0: ("F32", "<f4"), 1: ("F16", "<f2"), 28: ("F64", "<f8"), 30: ("BF16", "bf16")}  # enum ggml_type of what needs no package


HELD = ("f16", "bf16")  # what engines make of weights when they load them


class WeightsError(ValueError):
    """A file of weights is not what is needed; its text names the file and why."""


@dataclass(frozen=True)
class _Entry:
    """Where a tensor lies. @shape: rows first. @kind: a type of numpy's, "bf16", or a number of ggml's."""
    file: pathlib.Path
    shape: tuple
    kind: Any
    first: int
    n_bytes: int


def _file(path: pathlib.Path) -> mmap.mmap:
    try:
        return mapped(path)
    except ValueError as error:
        raise WeightsError(str(error)) from None


def _json_file(path: pathlib.Path) -> dict:
    try:
        return _json(path, read(path))
    except WeightsError:
        raise
    except ValueError as error:
        raise WeightsError(str(error)) from None


def _json(path: pathlib.Path, data: bytes) -> dict:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: no JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise WeightsError(f"{path}: a JSON object was expected")
    return found


# ------------------------------------------------------------------------- safetensors


def _safetensors(path: pathlib.Path, data: mmap.mmap) -> dict[str, _Entry]:
    n_header = int.from_bytes(data[:8], "little")
    if len(data) < 8 or n_header > min(len(data) - 8, LONGEST_HEADER):
        raise WeightsError(f"{path}: no safetensors file: its header would have {n_header} bytes, the file has {len(data)}")
    found = {}
    for name, entry in _json(path, data[8:8 + n_header]).items():
        if name == "__metadata__":
            continue
        try:
            shape, (first, end), dtype = tuple(map(int, entry["shape"])), map(int, entry["data_offsets"]), str(entry["dtype"])
        except (KeyError, TypeError, ValueError):
            raise WeightsError(f"{path}: tensor {name!r} lacks its dtype, shape or data_offsets") from None
        kind, size = SAFETENSORS.get(dtype, (dtype, None))
        if min(shape, default=0) < 0 or not 0 <= first <= end <= len(data) - 8 - n_header or size and math.prod(shape) * size != end - first:
            raise WeightsError(f"{path}: tensor {name!r} lies outside of the file, or its size is not that of its shape {list(shape)}")
        found[name] = _Entry(path, shape, kind, 8 + n_header + first, end - first)
    return found


def _folder(path: pathlib.Path) -> list[pathlib.Path]:
    """The safetensors files of a folder of Hugging Face's."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        named = _json_file(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(name, str) and pathlib.PurePath(name).name == name for name in named.values()):
            raise WeightsError(f"{index}: no weight_map of files in this folder")
        return [path / name for name in sorted(set(named.values()))]
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        raise WeightsError(f"{path} has {len(files)} safetensors files and no model.safetensors.index.json: name the file")
    return files


# ------------------------------------------------------------------------- GGUF


def _gguf(path: pathlib.Path, data: mmap.mmap) -> tuple[dict[str, _Entry], dict]:
    """(tensors, the header's values)"""
    try:
        header = Header(data)
        if header.version not in VERSIONS:
            raise WeightsError(f"{path}: a GGUF of version {header.version}; 2 and 3 are read")
        values, places = header.values(), header.tensors()
    except HeaderError as error:
        raise WeightsError(f"{path}: the GGUF's header {error}") from None
    alignment = values.get("general.alignment", 32)
    start = header.start(alignment if isinstance(alignment, int) and alignment > 0 else 1)
    return {name: _ggml_entry(path, data, name, dims[::-1], kind, start + first) for name, dims, kind, first in places}, values


def _ggml_entry(path: pathlib.Path, data: mmap.mmap, name: str, shape: tuple, kind: int, first: int) -> _Entry:
    per_block, block_bytes = _block_of(path, kind)
    n_bytes = math.prod(shape) // per_block * block_bytes
    if first + n_bytes > len(data) or shape and shape[-1] % per_block:
        raise WeightsError(f"{path}: tensor {name!r} lies outside of the file, or its size is not that of its shape {list(shape)}")
    return _Entry(path, shape, GGML[kind][1] if kind in GGML else kind, first, n_bytes)


def _block_of(path: pathlib.Path, kind: int) -> tuple[int, int]:
    """(elements, bytes) of a block."""
    if kind in GGML:
        return 1, {"<f4": 4, "<f8": 8}.get(GGML[kind][1], 2)
    gguf = _package(path)
    try:
        return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise WeightsError(f"{path}: a tensor has type {kind} of ggml, which the package gguf does not know") from None


def _package(path: pathlib.Path) -> Any:
    try:
        import gguf
        import gguf.quants
    except ImportError as error:
        raise ImportError(f"{path} has quantised weights: this needs the package gguf (pip install gguf)") from error
    return gguf


# ------------------------------------------------------------------------- weights


def _rounded(x: Any, kind: str | None) -> Any:
    """float32 that @kind can hold, to nearest, ties to even."""
    if kind == "f16":
        return x.astype("<f2").astype("<f4")
    if kind == "bf16":
        bits = x.astype("<f4").view("<u4")
        return (bits + (0x7fff + (bits >> 16 & 1)) & 0xffff0000).astype("<u4").view("<f4")
    return x


class Weights:
    """Tensors by their name in the file.

    path     as it was given: a GGUF, a safetensors file with config.json beside it, a folder of Hugging Face's
    kind     "gguf" or "safetensors"
    config   the GGUF's header, or config.json (of a model with several parts, that of its text)
    shapes   {name: shape, rows first}
    held     one of HELD: rows() gives what an engine that holds them so computes with; None: as they are in the file
    """
    held: str | None = None

    def __init__(self, path: Any) -> None:
        self.path = pathlib.Path(path)
        if not self.path.exists():
            raise WeightsError(f"{path}: there is no such file or folder of weights")
        files = _folder(self.path) if self.path.is_dir() else [self.path]
        self._data = {file: _file(file) for file in files}
        self._entries: dict[str, _Entry] = {}
        self._kept: dict = {}  # whole(): the same of those that are held otherwise
        self.kind = "gguf" if self._data[files[0]][:4] == b"GGUF" else "safetensors"
        if self.kind == "gguf":
            self._entries, self.config = _gguf(files[0], self._data[files[0]])
        else:
            for file in files:
                self._entries |= _safetensors(file, self._data[file])
            self.config = self._config(files[0].parent / "config.json")
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}

    @staticmethod
    def _config(path: pathlib.Path) -> dict:
        if not path.exists():
            raise WeightsError(f"{path} is not there: it says which norm the weights are for, and its epsilon")
        config = _json_file(path)
        inner = config.get("text_config")
        return config | inner if isinstance(inner, dict) else config

    def held_as(self, kind: str | None) -> "Weights":
        """The same ones, rounded to @kind."""
        found = copy.copy(self)
        found.held = kind
        return found

    def whole(self, name: str) -> Any:
        """As rows(), of all of a tensor, and kept until another one is asked for, or held otherwise: a quantised head of 50,000 tokens takes half a second."""
        if (name, self.held) not in self._kept:
            self._kept.clear()
            self._kept[name, self.held] = self.rows(name)
        return self._kept[name, self.held]

    def may_be_rounded(self, name: str) -> bool:
        """Whether a tensor has more digits than HELD have: it is quantised, or of 32 bits and more."""
        return self._entries[name].kind not in ("bf16", "<f2")

    def rows(self, name: str, first: int = 0, end: int | None = None) -> Any:
        """[rows, ...] as float32. KeyError: no tensor has that name; WeightsError: its type cannot be read."""
        return _rounded(self._rows(name, first, end), self.held)

    def _rows(self, name: str, first: int = 0, end: int | None = None) -> Any:
        from .numeric import numpy
        entry = self._entries[name]
        scales = next((name + more for more in SCALES if name + more in self.shapes), None)
        if scales:
            raise WeightsError(f"{entry.file}: tensor {name!r} is quantised: its scales, {scales!r}, are not read")
        n = entry.shape[0] if entry.shape else 1
        first, end = min(first, n), n if end is None else min(end, n)
        row_bytes = entry.n_bytes // max(n, 1)
        data = memoryview(self._data[entry.file])[entry.first + first * row_bytes:entry.first + end * row_bytes]
        shape = (end - first, *entry.shape[1:])
        if entry.kind == "bf16":
            return (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
        if isinstance(entry.kind, int):
            gguf = _package(entry.file)
            blocks = numpy.frombuffer(data, "u1").reshape(-1, row_bytes if len(entry.shape) > 1 else len(data))
            return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(entry.kind)).reshape(shape)
        if not entry.kind.startswith("<"):
            raise WeightsError(f"{entry.file}: tensor {name!r} is {entry.kind}: {', '.join(SAFETENSORS)} are read")
        return numpy.frombuffer(data, entry.kind).astype("<f4").reshape(shape)

    def vocabulary(self, tokenizer: Any = None) -> Vocabulary | None:
        """Texts of the tokens: of @tokenizer (a tokenizer.json), else of the GGUF, else of tokenizer.json beside the weights; None: there is none."""
        if tokenizer is not None:
            return Vocabulary(tokenizer)
        file = next(iter(self._data))
        if self.kind == "gguf":
            return Vocabulary(file) if "tokenizer.ggml.tokens" in self.config else None
        beside = file.parent / "tokenizer.json"
        return Vocabulary(beside) if beside.exists() else None


# ------------------------------------------------------------------------- a model


# Names of tensors, of Hugging Face's models and of GGUF. {} is the layer.
EMBEDDING = (r"(.*\.)?embed_tokens\.weight", r"(.*\.)?wte\.weight", r"(.*\.)?embed_in\.weight", r"token_embd\.weight")
HEAD = (r"(.*\.)?lm_head\.weight", r"(.*\.)?embed_out\.weight", r"output\.weight")
NORM = (r"(.*\.)?norm\.weight", r"(.*\.)?final_layernorm\.weight", r"(.*\.)?ln_f\.weight", r"(.*\.)?final_layer_norm\.weight", r"output_norm\.weight")
OUTPUT = (r"(.*\.)?layers\.{}\.self_attn\.(o_proj|dense)\.weight", r"(.*\.)?layers\.{}\.attention\.dense\.weight", r"(.*\.)?h\.{}\.attn\.c_proj\.weight",
          r"(.*\.)?h\.{}\.attn\.attention\.out_proj\.weight", r"blk\.{}\.attn_output\.weight")
# A norm of attention's output, before it is added. Hugging Face's post_attention_layernorm is one where the MLP has one of its own.
AFTER = (r"(.*\.)?layers\.{}\.post_self_attn_layernorm\.weight", r"blk\.{}\.post_attention_norm\.weight")
AFTER_WITH_MLP = (r"(.*\.)?layers\.{}\.post_attention_layernorm\.weight", r"(.*\.)?layers\.{}\.post_feedforward_layernorm\.weight")


# Types of models whose norms multiply by 1 + w. Source: modeling_*.py of transformers 5.19, by the class of the decoder's last norm.
PLUS_ONE = re.compile(r"(gemma[23]?|recurrent_gemma|vaultgemma|nemotron|qwen3_next|qwen3_5(_moe)?|qwen4_exp|step3p[57]|minimax_m3_vl|muse_glimmer)(_text)?")


@dataclass(frozen=True)
class Norm:
    """y = w * x / rms(x), or w * (x - mean) / sd(x) + b. In float32, or in the type of what it is given."""
    weight: Any
    bias: Any
    eps: float
    centred: bool

    def scale(self, x: Any) -> Any:
        """[rows, 1]: what each row, centred if it is to be, is multiplied by before the weight."""
        x = self.centre(x)
        return 1 / ((x * x).mean(-1, keepdims=True) + self.eps) ** 0.5

    def centre(self, x: Any) -> Any:
        return x - x.mean(-1, keepdims=True) if self.centred else x

    def __call__(self, x: Any) -> Any:
        y = self.centre(x) * self.scale(x) * self.weight
        return y if self.bias is None else y + self.bias


class Model:
    """What lens and dla need of a model.

    n_layers, n_heads, width, vocabulary_size, arch: the type of model that the config names
    norm       the last norm, a Norm
    residual   by which attention's and the MLP's outputs are multiplied before they are added (Granite's residual_multiplier), else 1
    unused     keys of its config that nothing here reads, and that say nothing of these numbers
    """

    def __init__(self, weights: Weights) -> None:
        self.weights, config = weights, weights.config
        self._read: set[str] = set()
        self.arch = str(config.get("general.architecture") or config.get("model_type") or "")
        embedding = self._one(EMBEDDING, "embedding")
        self._head = self._find_head(embedding)
        self._shaped(self._head, None, None)
        self.vocabulary_size, self.width = weights.shapes[self._head]
        self.norm = self._norm(self._one(NORM, "last norm"))
        self.n_layers = int(self._said("block_count", "num_hidden_layers", "n_layer", "num_layers", default=0))
        self.n_heads = int(self._said("attention.head_count", "num_attention_heads", "n_head", "num_heads", default=0))
        if self.n_layers < 1:
            raise WeightsError(f"{weights.path}: nothing says how many layers the model has (num_hidden_layers, n_layer, num_layers; block_count of a GGUF)")
        self.residual = float(self._said("residual_scale", "residual_multiplier", default=1.0)) * self._depth()
        self._cap = float(self._said("final_logit_softcapping", "final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap", default=0.0) or 0.0)
        self._divided = self._divisor()
        self._some: Any = None
        bias = self._head.removesuffix("weight") + "bias"
        self._bias = weights.rows(bias) if bias in weights.shapes else None
        self.unused = self._refuse_unread()

    def _refuse_unread(self) -> list[str]:
        bearing, unused = configs.unread(self.weights.config, self.weights.kind, self.arch, self._read)
        if bearing:
            raise WeightsError(f"{self.weights.path}: it says {', '.join(bearing[:3])}, which is not read here, and bears on the logits or on their parts")
        return unused

    def _depth(self) -> float:
        """What MiniCPM multiplies by: scale_depth / sqrt(layers)."""
        scale = self._said("", "scale_depth", default=0.0) if self.weights.kind != "gguf" else 0.0
        return float(scale) / math.sqrt(self.n_layers) if scale else 1.0

    def _divisor(self) -> float:
        """By what logits are divided."""
        scale = float(self._said("logit_scale", "logits_scaling", "logit_scale", default=1.0) or 1.0)
        base = float(self._said("", "dim_model_base", default=0.0)) if self.weights.kind != "gguf" else 0.0
        if base:  # MiniCPM's
            scale = self.width / base
        if scale == 1 or base or configs.DIVIDED.fullmatch(self.arch):
            return scale
        if not configs.MULTIPLIED.fullmatch(self.arch):
            raise WeightsError(f"{self.weights.path}: whether models of the type {self.arch[:40]!r} multiply logits by {scale:g} (logit_scale, logits_scaling), or divide "
                               "them by it, is not known here")
        return 1 / scale

    def _find_head(self, embedding: str) -> str:
        """Tied weights are the embedding's, whatever else the file has. WeightsError: they are not tied, and there is no head."""
        tied = self.weights.config.get("tie_word_embeddings") if self.weights.kind != "gguf" else None
        head = None if tied is True else self._find(HEAD)
        if tied is False and not head:
            raise WeightsError(f"{self.weights.path}: no tensor is known as the head, and tie_word_embeddings: false says that it is not the embedding")
        return head or embedding

    def _find(self, patterns: tuple, layer: int | None = None) -> str | None:
        wanted = re.compile("|".join(f"(?:{pattern.replace('{}', str(layer))})" for pattern in patterns))
        return next((name for name in sorted(self.weights.shapes, key=len) if wanted.fullmatch(name)), None)

    def _one(self, patterns: tuple, what: str, layer: int | None = None) -> str:
        name = self._find(patterns, layer)
        if name is None:
            raise WeightsError(f"{self.weights.path}: no tensor is known as the {what}" + ("" if layer is None else f" of layer {layer}"))
        return name

    def _shaped(self, name: str, *wanted: int | None) -> str:
        """@name, whose shape is the one wanted; None: any number."""
        shape = self.weights.shapes[name]
        if len(shape) != len(wanted) or any(n is not None and n != m for n, m in zip(wanted, shape)):
            raise WeightsError(f"{self.weights.path}: {name} has the shape {list(shape)}, where {' x '.join('n' if n is None else str(n) for n in wanted)} was expected")
        return name

    def _said(self, in_gguf: str, *in_config: str, default: Any = None) -> Any:
        """A value of the header or of config.json; @default: where it is not there."""
        keys = [f"{self.arch}.{in_gguf}"] if self.weights.kind == "gguf" else in_config
        self._read.update([in_gguf.replace(".", "_")] if self.weights.kind == "gguf" else in_config)
        found = next((self.weights.config[key] for key in keys if self.weights.config.get(key) is not None), default)
        if not isinstance(found, (int, float)):
            raise WeightsError(f"{self.weights.path}: {keys[0]} is {found!r}: a number was expected")
        return found

    def _norm(self, name: str) -> Norm:
        rms = self._said("attention.layer_norm_rms_epsilon", "rms_norm_eps", default=0.0)
        eps = rms or self._said("attention.layer_norm_epsilon", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps", default=0.0)
        if not eps:
            raise WeightsError(f"{self.weights.path}: nothing says the epsilon of the norms (rms_norm_eps, layer_norm_eps)")
        weight, bias = self.weights.rows(self._shaped(name, self.width)), name.removesuffix("weight") + "bias"
        centred = self._is_centred(bool(rms), bias in self.weights.shapes)
        if PLUS_ONE.fullmatch(self.arch) and self.weights.kind == "safetensors":
            weight = weight + 1  # a GGUF has that sum
        return Norm(weight, self.weights.rows(bias) if bias in self.weights.shapes else None, float(eps), centred)

    def _is_centred(self, has_rms: bool, has_bias: bool) -> bool:
        self._read.update(configs.OF_NORM)
        try:
            found = configs.is_centred(self.weights.config, self.weights.kind, self.arch, has_rms, has_bias)
        except ValueError as error:
            raise WeightsError(f"{self.weights.path}: {error}") from None
        if found is None:
            raise WeightsError(f"{self.weights.path}: nothing says whether models of the type {self.arch[:40]!r} have an RMSNorm or a LayerNorm (norm_type)")
        return found

    # ---- the head

    @property
    def head(self) -> Any:
        """[vocabulary, width], float32, and kept with the weights: 4 bytes * vocabulary * width."""
        return self.weights.whole(self._head)

    def _first(self, n: int) -> Any:
        """[n, width] of the head."""
        if self._some is None or len(self._some) != min(n, self.vocabulary_size):
            self._some = self.weights.rows(self._head, 0, n)
        return self._some

    def logits(self, x: Any, n: int | None = None) -> Any:
        """[rows, vocabulary] of what the last norm returned. @n: of the first tokens alone, whose rows of the head are read for it."""
        from .numeric import numpy
        found = x.astype("<f4") @ (self.head if n is None else self._first(n)).T
        if self._bias is not None:
            found += self._bias[:n]
        if self._divided != 1:
            found /= self._divided
        return numpy.tanh(found / self._cap) * self._cap if self._cap else found

    @property
    def may_be_rounded(self) -> bool:
        """Whether an engine may hold the head with fewer digits than the file."""
        return self.weights.may_be_rounded(self._head)

    @property
    def capped(self) -> bool:
        """Whether logits go through a tanh, and are no sums of parts any more."""
        return bool(self._cap)

    def direction(self, a: int, b: int) -> tuple[Any, float]:
        """(float64 [width], constant): the logit of @a less that of @b, before a cap, is x @ direction + constant of the last norm's output x."""
        rows = [self.weights.rows(self._head, token, token + 1)[0].astype("f8") for token in (a, b)]
        constant = 0.0 if self._bias is None else float(self._bias[a]) - float(self._bias[b])
        return (rows[0] - rows[1]) / self._divided, constant / self._divided

    # ---- attention's output

    def output(self, layer: int) -> tuple[Any, Any]:
        """([width, heads * d], bias or None): z, heads side by side, @ matrix.T + bias is what attention returns."""
        name = self._one(OUTPUT, "output matrix of attention", layer)
        turned = name.endswith("attn.c_proj.weight")  # GPT-2's Conv1D
        matrix = self.weights.rows(self._shaped(name, *((None, self.width) if turned else (self.width, None))))
        matrix, bias = matrix.T if turned else matrix, name.removesuffix("weight") + "bias"
        return matrix, self.weights.rows(bias) if bias in self.weights.shapes else None

    def norm_after(self, layer: int) -> Norm | None:
        """The norm of attention's output (Gemma 2 and 3, OLMo 2, GLM 4), or None."""
        name = self._find(AFTER, layer)
        both = [self._find((pattern,), layer) for pattern in AFTER_WITH_MLP]
        name = name or (both[0] if all(both) else None)
        return self._norm(name) if name else None
