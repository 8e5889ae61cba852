# SPDX-License-Identifier: Apache-2.0
"""Files of vectors at random: shapes, types, names, keys and metadata as others write them, and what each is.

one(seed) makes a File. What it is is not worked out from its bytes: the numbers come first, then a way to write them, then what is wrong with it or left unsaid.
"""
import json
import random
import struct
from dataclasses import dataclass, field

import numpy as np
from vector_files import LIST, TEXT, U32, gguf, npy, safetensors, tensor, text, torch_file, value

MANY, NAN = 1e39, float("nan")


@dataclass
class File:
    """A file.

    name, data  with its ending; its bytes
    vector      what the edits say of it
    is_         {layer of resid_post, -1 for each: float32}; None: it must be refused, as it is not clear what it is, or as something in it is not done
    why         of that, in words of the generator
    """
    name: str
    data: bytes
    vector: dict = field(default_factory=dict)
    is_: dict | None = None
    why: str = ""
    rows: dict | None = None  # of a .pt: as the file counts layers, None: of each; whose layers these are it never says


def as_bf16(x):
    """(bits, the numbers that they are)"""
    bits = (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def numbers(some, shape):
    return np.array([some.gauss(0, 1) for _ in range(int(np.prod(shape)))]).reshape(shape)


def stored(some, x, kinds):
    """(type, what is stored, float32 that it is)"""
    kind = some.choice(kinds)
    with np.errstate(over="ignore"):
        if kind == "BF16":
            return kind, *as_bf16(x)
        there = x.astype({"F64": np.float64, "F32": np.float32, "F16": np.float16}[kind])
        return kind, there, there.astype(np.float32)


def spoilt(some, x):
    """Now and then with a number that is none of float32's."""
    if some.random() < 0.08:
        x = x.copy()
        x.flat[some.randrange(x.size)] = some.choice((NAN, float("inf"), MANY))
    return x


def settled(made, rows, why=""):
    """@made, which is these rows, unless something is wrong with it; rows that no edit takes may hold anything."""
    made.why = made.why or why or ("" if all(np.isfinite(row).all() for row in rows.values()) else "not finite")
    made.is_ = None if made.why else rows
    return made


def placed(some, layers, says=None):
    """(what the edits say, {layer: row} of resid_post or None, why) of rows by layer. @says: the file's own site; None: it says none."""
    given = some.choice((None, None, "resid_post", "resid_post", "resid_pre", "mlp_out", "z", "hook_resid_post"))
    vector = {} if given is None else {"layer_is": given}
    site = {"hook_resid_post": "resid_post"}.get(given, given)
    if says and site and says != site:
        return vector, None, "it contradicts the edits"
    site = site or says
    if site is None:
        return vector, None, "whose layers are not said"
    if site == "z":
        return vector, None, "it is of another site"
    moved = {layer - (site == "resid_pre"): row for layer, row in layers.items()}
    moved.pop(-1, None)
    return (vector, moved, "") if moved else (vector, None, "nothing but what enters the first layer")


# ------------------------------------------------------------------------- kinds of files


def of_npy(some):
    shape = some.choice(((5,), (1, 5), (3, 5), (6, 5), (2, 3, 5), (), (0, 5), (4, 1)))
    x = spoilt(some, numbers(some, shape)) if 0 not in shape and shape else np.zeros(shape)
    kind, there, is_ = stored(some, x, ("F64", "F32", "F16"))
    made = File("v.npy", b"")
    odd = some.random()
    if odd < 0.06:
        there, made.why = there.astype(">f4"), "big-endian"
    elif odd < 0.12:
        there, made.why = (np.nan_to_num(x, posinf=1, neginf=1) % 100).astype(some.choice((np.int64, np.int32, bool, np.complex64))), "no floating point"
    elif odd < 0.2 and len(shape) == 2 and min(shape) > 1:
        there, made.why = np.asfortranarray(there), "Fortran's order"
    made.data = npy(there)
    if len(shape) not in (1, 2) or 0 in shape:
        made.why = made.why or "another shape"
    if len(shape) == 2 and shape[0] > 1:
        made.vector, rows, why = placed(some, dict(enumerate(is_)))
        return settled(made, rows, why)
    return settled(made, {-1: is_.reshape(-1)})


SILENT = [None, {}, {"format": "pt"}, {"author": "x", "trait": "calm", "model_id": "y/z"}, {"scale": "1.0", "shift": "0", "normalize": "false"}]
LOUD = [{"scale": "2"}, {"layer": "14"}, {"operation": "project_out"}, {"normalized": "true"}, {"hook_name": "blocks.3.hook_resid_pre"}, {"coefficient": "-1"},
        {"mean_centered": "yes"}, {"shift": "1"}]


def of_safetensors(some):
    form, metadata, says, tensors, made = some.randrange(6), dict(some.choice(SILENT) or {}), None, {}, File("v.safetensors", b"")
    layers = sorted(some.sample(range(12), some.randint(1, 4)))
    if some.random() < 0.15:
        metadata |= some.choice(LOUD)
        made.why = "metadata that nothing reads"
    if some.random() < 0.3:
        says = some.choice(("resid_post", "resid_pre"))
        metadata["dmi.layer_is"] = says
    kinds, whole = ("F64", "F32", "F16", "BF16"), {}

    def add(name, x):
        kind, there, is_ = stored(some, spoilt(some, x), kinds)
        tensors[name] = (kind, there)
        return is_
    name = some.choice(("vector", "steer", "direction"))
    if form == 0:  # one for all
        whole = {-1: add(name, numbers(some, some.choice(((5,), (1, 5))))).reshape(-1)}
    elif form == 1:  # a row a layer
        layers = dict(enumerate(add(name, numbers(some, (some.randint(2, 6), 5)))))
    elif form == 2:  # by name
        pattern = some.choice(("layer_{}", "model.layers.{}.v", "{}", "blocks.{}.hook_resid_post"))
        layers = {layer: add(pattern.format(layer), numbers(some, some.choice(((5,), (1, 5))))).reshape(-1) for layer in layers}
    elif form == 3:  # names that tell nothing
        add("a", numbers(some, (5,)))
        add("b", numbers(some, (5,)))
        made.why = made.why or "which tensor"
    elif form == 4:  # heads
        add(name, numbers(some, (2, 3, 5)))
        made.why = made.why or "another shape"
    else:  # no floating point
        tensors[name] = ("I64", np.arange(5)) if some.random() < 0.5 else ("F8_E4M3", np.arange(5, dtype=np.uint8))
        made.why = made.why or "no floating point"
    made.data = safetensors(tensors, metadata or None)
    if whole:
        return settled(made, whole)
    if isinstance(layers, list):
        return made
    made.vector, rows, why = placed(some, layers, says)
    return settled(made, rows, why)


GGUF_SILENT = [[], [("controlvector.notes", value(TEXT, text("x")))], [("general.name", value(TEXT, text("scale 2")))], [("my.prompts", value(LIST, struct.pack("<IQI", U32, 1, 5)))]]
GGUF_LOUD = [("controlvector.operation", value(TEXT, text("project_out"))), ("controlvector.mode", value(TEXT, text("ablate"))), ("controlvector.kind", value(TEXT, text("x"))),
             ("repeng.scale", value(6, struct.pack("<f", 2))), ("my.layer_offset", value(U32, struct.pack("<I", 1))), ("controlvector.normalize", value(7, b"\1"))]


def of_gguf(some):
    layers = {layer: numbers(some, (5,)).astype(np.float32) for layer in some.sample(range(12), some.randint(1, 4))}
    arch = some.choice(("controlvector",) * 3 + ("llama",))
    made = File("v.gguf", b"")
    keys = list(some.choice(GGUF_SILENT))
    if some.random() < 0.25:
        keys.append(some.choice(GGUF_LOUD))
        made.why = "a key that nothing reads"
    made.vector, rows, why = placed(some, layers, "resid_post" if arch == "controlvector" else None)
    made.data = gguf(layers, arch=arch, values=keys)
    if some.random() < 0.1:
        made.data, made.why = made.data[:-some.randint(13, 40)], "cut"
    return settled(made, rows, why)


TORCH = {"FloatStorage": np.float32, "HalfStorage": np.float16, "DoubleStorage": np.float64}


def of_torch(some):
    """A tensor with strides of its own, or a dict of tensors by layer."""
    kind, made = some.choice(list(TORCH)), File("v.pt", b"")
    dtype = TORCH[kind]
    if some.random() < 0.4:  # by layer
        layers, entries, storages = {}, b"", {}
        for layer in some.sample(range(100), some.randint(1, 4)):
            x = numbers(some, (5,)).astype(dtype)
            key = some.choice((b"K" + bytes([layer]), b"X" + struct.pack("<I", len(f"layer_{layer}")) + f"layer_{layer}".encode()))
            entries += key + tensor((5,), (1,), 5, kind=kind, key=str(layer))[2:-1]
            layers[layer], storages[str(layer)] = x.astype(np.float32), x.tobytes()
        made.data = torch_file(b"\x80\x02}(" + entries + b"u.", storages)
        made.rows = layers
        return made
    shape = some.choice(((5,), (1, 5), (3, 5), (2, 3, 5)))
    order = some.sample(range(len(shape)), len(shape))
    with np.errstate(over="ignore"):
        x = spoilt(some, numbers(some, shape)).astype(dtype)
    there = np.ascontiguousarray(x.transpose(order))
    steps = [0] * len(shape)
    for place, axis in enumerate(order):
        steps[axis] = there.strides[place] // there.itemsize
    first = some.randint(0, 3)
    data = bytes(first * there.itemsize) + there.tobytes()
    made.data = torch_file(tensor(shape, tuple(steps), len(data) // there.itemsize, first=first, kind=kind), {"0": data})
    with np.errstate(over="ignore"):
        is_ = x.astype(np.float32)
    made.why = "another shape" if len(shape) > 2 else "" if np.isfinite(is_).all() else "not finite"
    if not made.why:
        made.rows = dict(enumerate(is_)) if is_.size > 5 else {None: is_.reshape(-1)}
    return made


# ------------------------------------------------------------------------- autoencoders

SAE_SILENT = {"dtype": "float32", "prepend_bos": True, "context_size": 64, "lr": 1e-3, "l1_coefficient": 5, "wandb_project": "x", "sae_lens_version": "6.1", "my_note": "y",
              "normalize_activations": "none", "reshape_activations": "none", "finetuning_scaling_factor": False, "hook_head_index": None, "seqpos_slice": [None]}
SAE_LOUD = {"normalize_activations": "layer_norm", "reshape_activations": "x", "finetuning_scaling_factor": True, "hook_head_index": 2, "activation_scale": 2.0,
            "rescale_acts_by_decoder_norm": True, "activation_fn_str": "tanh", "architecture": "gated", "activation_fn_kwargs": {"k": 3}, "hook_name_out": "blocks.1.hook_mlp_out",
            "model_from_pretrained_kwargs": {"my_rescaling": True}}
D, N = 5, 4


def of_sae(some):
    """(configuration, weights, site and layer or None, which feature, rows -> what it is)"""
    weights = {"W_enc": numbers(some, (D, N)), "W_dec": numbers(some, (N, D)), "b_enc": numbers(some, (N,)), "b_dec": numbers(some, (D,))}
    site, hook = some.choice((("resid_post", "hook_resid_post"), ("resid_pre", "hook_resid_pre"), ("mlp_out", "hook_mlp_out"), ("resid_mid", "hook_resid_mid")))
    layer, jumps, takes, centred, good = some.randint(1, 9), some.random() < 0.4, some.random() < 0.7, some.random() < 0.3, True
    config = {"architecture": "jumprelu" if jumps else "standard", "d_in": D, "d_sae": N, "model_name": "gpt2-small", "hook_name": f"blocks.{layer}.{hook}",
              "apply_b_dec_to_input": takes}
    if jumps:
        weights["threshold"] = np.abs(numbers(some, (N,)))
    config |= {key: SAE_SILENT[key] for key in some.sample(list(SAE_SILENT), some.randint(0, 6))}
    if centred:
        config["model_from_pretrained_kwargs"] = {"center_writing_weights": True, "fold_ln": True}
    if some.random() < 0.3:
        key = some.choice(list(SAE_LOUD))
        config[key], good = SAE_LOUD[key], False
    if some.random() < 0.1:
        weights["scaling_factor"], good = numbers(some, (N,)), False
    if some.random() < 0.4:  # as newer versions have it
        config["metadata"] = {key: config.pop(key) for key in ("hook_name", "model_name", "model_from_pretrained_kwargs") if key in config}
    weights = {key: x.astype(np.float32) for key, x in weights.items()}
    feature = some.randrange(N)

    def is_(rows):
        x = rows - rows.mean(-1, keepdims=True) if centred else rows
        before = (x - (weights["b_dec"] if takes else 0)) @ weights["W_enc"][:, feature] + weights["b_enc"][feature]
        return np.where(before > weights["threshold"][feature], before, 0) if jumps else np.maximum(before, 0)
    place = ("resid_post", layer - 1) if site == "resid_pre" else (site, layer)
    return json.dumps(config), safetensors(weights), place if good else None, feature, is_, weights["W_dec"][feature]


KINDS = (of_npy, of_npy, of_safetensors, of_safetensors, of_safetensors, of_gguf)


def one(seed):
    some = random.Random(f"file {seed}")
    return KINDS[seed % len(KINDS)](some)
