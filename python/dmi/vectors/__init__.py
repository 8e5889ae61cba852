# SPDX-License-Identifier: Apache-2.0
"""Vectors and features in the files of others, as safetensors that edits take (docs/vectors.md, "Files of others").

    python -m dmi vectors calm.gguf -o calm.safetensors
    python -m dmi vectors means.npy -o means.safetensors --layer-is resid_post --shift 0
    python -m dmi vectors refusal.pt -o refusal.safetensors --layer-is resid_pre --shift 0
    python -m dmi vectors SAE_FOLDER -o f.safetensors --feature 1289 > FEATURES
    python -m dmi vectors layer_20/width_16k/average_l0_71/params.npz --layer-is resid_post --shift 20 -o f.safetensors --feature 1289 > FEATURES

No file is executed, and none may ask for more memory than a few times its size. The standard library is enough for all but .pt, which torch reads in a
process of its own. dmi-run and dmi-ctl call hand_over() in another process.
"""
from __future__ import annotations

import os
import pathlib
import signal
import sys
from array import array
from dataclasses import dataclass, field
from typing import BinaryIO

from ..torch import names
from . import arrays, gguf, saelens, tensors, torch_file
from .tensors import VectorError

MAX_LAYER = 1021  # SPEC_MAX_PLACE_LAYER
HOW = ("\"layer_is: SITE\" with the vector in a file of edits (layer_is= of dmi.edit()), or what \"python -m dmi vectors FILE -o OUT.safetensors --layer-is SITE "
       "--shift N\" writes: layer L of the file is layer L + N of SITE. hidden_states of transformers are resid_pre, from 0; what layers return is resid_post")


@dataclass
class Found:
    """What a file holds.

    layers    {layer as the file counts, None: of each: numbers}
    layer_is  whose layers these are; None: the file does not say
    about     more that it says, as metadata
    to        {layer: what its rows are to have along the vector}, of adjust_rs
    unused    names of what it says that nothing here reads, and that changes no number
    """
    layers: dict[int | None, array]
    layer_is: str | None = None
    about: dict[str, str] = field(default_factory=dict)
    to: dict[int | None, float] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.layers:
            raise VectorError("it holds no vector")
        widths = {len(numbers): layer for layer, numbers in self.layers.items()}
        if len(widths) > 1:
            (a, at_a), (b, at_b) = list(widths.items())[:2]
            raise VectorError(f"its vectors are of different widths: {a} numbers in layer {at_a}, {b} in layer {at_b}")
        if 0 in widths:
            raise VectorError("its vectors have no number")

    @property
    def layered(self) -> bool:
        return None not in self.layers


def site_of(found: str | None, given: str | None, by: str = "--layer-is") -> str | None:
    """Whose layers they are: the file says @found, the user @given. A name that docs/taps.md lacks is the HookSpec's own for the same tensor."""
    if found and given and given in names.NAMES and given != found:
        raise VectorError(f"it is of {found}, and {by} says {given}")
    return given or found


def convert(source: str | pathlib.Path, out: str | pathlib.Path, layer_is: str | None = None, shift: int | None = None, features: tuple[int, ...] = ()) -> str:
    """Write @out, which must not be there yet. Returns what to say of it: a sentence, or for features a file of edits.

    source    GGUF control vector, .pt, .npy, .safetensors, a folder of SAELens's, or params.npz of Gemma Scope
    layer_is  the site whose layers the file's are, and shift what is to be added to their numbers, where the file does not say
    features  of the autoencoder
    Raises VectorError, whose text begins with the file's name, and OSError.
    """
    source = pathlib.Path(source)
    try:
        if source.is_dir() or source.suffix == saelens.NPZ:
            return _features(source, out, layer_is, shift, features)
        if features:
            raise VectorError("--feature is for a folder with cfg.json and sae_weights.safetensors, and for .npz of Gemma Scope")
        found = read(source)
        site, moved = site_of(found.layer_is, layer_is), _shifted(found, layer_is, shift)
        with open(out, "xb") as file:
            _write(file, source, found, site, moved)
        return "\n".join(_sentences(found, pathlib.Path(out), site, moved))
    except VectorError as error:
        raise VectorError(f"{source}: {error}") from None


def save(out: str | pathlib.Path, layers: dict, layer_is: str) -> None:
    """Write vectors as a safetensors file that says whose layers these are: {layer: numbers} of the site @layer_is. @out must not be there yet. ValueError: numbers
    that are not finite, or of different widths."""
    found = Found({int(layer): tensors.narrowed([float(x) for x in numbers], f"layer {layer}") for layer, numbers in sorted(layers.items())}, layer_is)
    with open(out, "xb") as file:
        _write(file, pathlib.Path(out), found, layer_is, {layer: layer for layer in found.layers})


def hand_over(to: int, source: str, layer_is: str | None = None) -> None:
    """For dmi-run and dmi-ctl, in a process of its own: a safetensors file, with what it does not use in its metadata, into the descriptor @to. @layer_is: as
    the edits say it; layers are as the file counts them. What is wrong is a last line on stderr."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        found = read(pathlib.Path(source))
        site, moved = site_of(found.layer_is, layer_is, '"layer_is"'), _shifted(found, layer_is, 0)
        with os.fdopen(to, "wb") as file:
            _write(file, pathlib.Path(source), found, site, moved, {"dmi.unused": ", ".join(found.unused)} if found.unused else {})
    except (VectorError, OSError) as error:
        text = tensors.printable(str(error), 1000) if isinstance(error, VectorError) else error.strerror
        print(f"dmi: {text}", file=sys.stderr)
        sys.exit(2)


def read(source: pathlib.Path) -> Found:
    """The vectors of a file, as it counts layers."""
    if source.suffix == ".gguf":
        return Found(*gguf.read(source))
    if source.suffix in (".npy", ".safetensors"):
        return Found(*arrays.read(source))
    if source.suffix in (".pt", ".pth"):
        layers, layer_is, about, to, left = torch_file.read(source)
        unused = tensors.unused({key: None for key, _ in left})
        return Found(layers, layer_is, about, to, [f"{key} {where}" for key, where in left if key in unused])
    raise VectorError("expected a file that ends with .gguf, .pt, .pth, .npy or .safetensors; of features .npz, or a folder with cfg.json and sae_weights.safetensors")


def _shifted(found: Found, layer_is: str | None, shift: int | None) -> dict[int | None, int | None]:
    """{layer of the file: layer of the model}"""
    if not found.layered:
        return {None: None}
    if found.layer_is is None and (layer_is is None or shift is None):
        raise VectorError(f"it does not say which layers its vectors are of; expected {HOW}")
    moved = {layer: layer + (shift or 0) for layer in found.layers}
    for layer, to in moved.items():
        if not 0 <= to <= MAX_LAYER:
            raise VectorError(f"its layer {layer} would be layer {to} of the model; expected 0 to {MAX_LAYER}")
    return moved


def _write(file: BinaryIO, source: pathlib.Path, found: Found, site: str | None, moved: dict, more: dict | None = None) -> None:
    about = {**found.about, "dmi.source": source.name} | (more or {})
    if site:
        about["dmi.layer_is"] = site
    if found.layered:
        about["dmi.tensor"] = "layers.{layer}"
    tensors.write(file, {f"layers.{moved[layer]}" if found.layered else "vector": numbers for layer, numbers in found.layers.items()}, about)


def _sentences(found: Found, out: pathlib.Path, site: str | None, moved: dict) -> list[str]:
    width = len(next(iter(found.layers.values())))
    layers = f"layers {spell(moved.values())}" if found.layered else "one vector for all layers"
    said = [f"{out}: {layers}" + (f" of {site}" if site else "") + f", {width} numbers each"]
    said += [f"not used: {name}" for name in found.unused]
    for layer, to in found.to.items():
        at = f"layers: '{moved[layer]}', " if found.layered else ""
        said.append(f"do as its owner does: {{{at}do: [{{adjust_rs: {out.stem}, to: {to:.9g}}}]}}")
    return said


def spell(layers) -> str:
    """[1, 2, 3, 7] as "1-3,7"."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _place_of(dictionary: saelens.Dictionary, layer_is: str | None, shift: int | None) -> tuple[str, int | None, str]:
    """(site, layer, None: it has none; what to say of it) of an autoencoder's features. What enters a block is what the block before it returns, where engines
    have places for edits."""
    site, layer = dictionary.site, dictionary.layer + (shift or 0)
    if not 0 <= layer <= MAX_LAYER:
        raise VectorError(f"its layer would be layer {layer} of the model; expected 0 to {MAX_LAYER}")
    if site == "resid_pre" and layer == 0 and layer_is is None:
        raise VectorError("its hook_name is what enters layer 0, which no layer returns: --layer-is embed where the model adds nothing to its embedding, and scales "
                          "nothing; --layer-is resid_pre for an engine that has such a place")
    to = ("embed", None) if layer == 0 else ("resid_post", layer - 1)
    if site == "resid_pre" and layer_is in (None, to[0]):
        return *to, f"# resid_pre of layer {layer} is {to[0]}{'' if layer == 0 else f' of layer {layer - 1}'}; --layer-is resid_pre leaves it as it is\n"
    return site_of(site, layer_is), layer, ""


def _features(source: pathlib.Path, out: str | pathlib.Path, layer_is: str | None, shift: int | None, features: tuple[int, ...]) -> str:
    dictionary = saelens.read(source) if source.is_dir() else saelens.read_npz(source, layer_is, shift)
    if not features:
        raise VectorError(f"it has {dictionary.n_features} features; expected --feature N, once for each that is wanted")
    site, layer, moved = _place_of(dictionary, layer_is, shift)
    numbers, vectors, operations = {}, [], []
    end, key = ("", "") if layer is None else (f".{layer}", ".{layer}")
    for index in dict.fromkeys(features):
        one, name = dictionary.feature(index), f"feature-{index}"
        numbers[f"{name}.decoder{end}"], numbers[f"{name}.encoder{end}"] = one.decoder, one.encoder
        vectors += [f"  {name}: {{file: {saelens.quoted(out)}, tensor: '{name}.decoder{key}'}}",
                    f"  {name}-encoder: {{file: {saelens.quoted(out)}, tensor: '{name}.encoder{key}'}}"]
        operations.append(f"{{feature: {name}, encoder: {name}-encoder, to: 0, bias: {one.bias:.9g}, threshold: {one.threshold:.9g}}}")
    with open(out, "xb") as file:
        tensors.write(file, numbers, {**dictionary.about, "dmi.source": source.name, "dmi.layer_is": site})
    name = "-".join(["feature", *map(str, dict.fromkeys(features))])[:127]
    left = [f"# not used of its configuration: {', '.join(dictionary.unused)}"] if dictionary.unused else []
    return moved + "\n".join([*left, "editspec: 1", "vectors:", *vectors, "edits:", f"  - name: {name}", f"    site: {site}",
                              *([] if layer is None else [f"    layers: '{layer}'"]), "    do:", *(f"      - {operation}" for operation in operations)])
