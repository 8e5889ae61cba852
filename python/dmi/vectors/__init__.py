# SPDX-License-Identifier: Apache-2.0
"""Vectors and features in the files of others, as safetensors that edits take (docs/edits.md, "Files of others").

    python -m dmi vectors calm.gguf -o calm.safetensors
    python -m dmi vectors refusal.pt -o refusal.safetensors --layer-is resid_pre --shift 0
    python -m dmi vectors SAE_FOLDER -o f.safetensors --feature 1289 > FEATURES

No file is executed, and none may ask for more memory than a few times its size. The standard library is enough: dmi-run and dmi-ctl call
this with whatever python3 there is.
"""
from __future__ import annotations

import pathlib
from array import array
from dataclasses import dataclass, field

from ..torch import names
from . import gguf, pickled, saelens, tensors
from .tensors import VectorError

MAX_LAYER = 1021  # SPEC_MAX_PLACE_LAYER
HOW = ("python -m dmi vectors FILE -o OUT.safetensors --layer-is SITE --shift N: layer L of the file is layer L + N of SITE. For hidden_states of "
       "transformers, where 0 is the embedding, these are resid_pre and 0; for what blocks return, counted from 0, resid_post and 0")


@dataclass
class Found:
    """What a file holds.

    layers    {layer as the file counts, None: of each: numbers}
    layer_is  whose layers these are; None: the file does not say
    about     more that it says, as metadata
    to        {layer: what its rows are to have along the vector}, of adjust_rs
    ignored   names of what is left out
    """
    layers: dict[int | None, array]
    layer_is: str | None = None
    about: dict[str, str] = field(default_factory=dict)
    to: dict[int | None, float] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

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


def site_of(found: str | None, given: str | None) -> str | None:
    """Whose layers they are: the file says @found, the user @given. A name that docs/taps.md lacks is the HookSpec's own for the same tensor."""
    if found and given and given in names.NAMES and given != found:
        raise VectorError(f"it is of {found}, and --layer-is says {given}")
    return given or found


def convert(source: str | pathlib.Path, out: str | pathlib.Path, layer_is: str | None = None, shift: int | None = None, features: tuple[int, ...] = ()) -> str:
    """Write @out, which must not be there yet. Returns what to say of it: a sentence, or for features a file of edits.

    source    GGUF control vector, .pt, or a folder of SAELens's
    layer_is  the site whose layers the file's are, and shift what is to be added to their numbers, where the file does not say
    features  of the autoencoder
    Raises VectorError, whose text begins with the file's name, and OSError.
    """
    source = pathlib.Path(source)
    try:
        if source.is_dir():
            return _features(source, out, layer_is, shift, features)
        if features:
            raise VectorError("--feature is for a folder with cfg.json and sae_weights.safetensors")
        return _vectors(source, out, layer_is, shift)
    except VectorError as error:
        raise VectorError(f"{source}: {error}") from None


def read(source: pathlib.Path) -> Found:
    """The vectors of a file, as it counts layers."""
    if source.suffix == ".gguf":
        return Found(*gguf.read(source))
    if source.suffix in (".pt", ".pth"):
        return Found(*pickled.read(source))
    raise VectorError("expected a file that ends with .gguf, .pt or .pth, or a folder with cfg.json and sae_weights.safetensors")


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


def _vectors(source: pathlib.Path, out: str | pathlib.Path, layer_is: str | None, shift: int | None) -> str:
    found = read(source)
    site, moved = site_of(found.layer_is, layer_is), _shifted(found, layer_is, shift)
    about = {**found.about, "dmi.source": source.name}
    if site:
        about["dmi.layer_is"] = site
    if found.layered:
        about["dmi.tensor"] = "layers.{layer}"
    tensors.write(out, {f"layers.{moved[layer]}" if found.layered else "vector": numbers for layer, numbers in found.layers.items()}, about)
    return "\n".join(_sentences(found, pathlib.Path(out), site, moved))


def _sentences(found: Found, out: pathlib.Path, site: str | None, moved: dict) -> list[str]:
    width = len(next(iter(found.layers.values())))
    layers = f"layers {spell(moved.values())}" if found.layered else "one vector for all layers"
    said = [f"{out}: {layers}" + (f" of {site}" if site else "") + f", {width} numbers each"]
    said += [f"left out: {name}" for name in found.ignored]
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


def _features(source: pathlib.Path, out: str | pathlib.Path, layer_is: str | None, shift: int | None, features: tuple[int, ...]) -> str:
    dictionary = saelens.read(source)
    if not features:
        raise VectorError(f"it has {dictionary.n_features} features; expected --feature N, once for each that is wanted")
    site, layer = site_of(dictionary.site, layer_is), dictionary.layer + (shift or 0)
    if not 0 <= layer <= MAX_LAYER:
        raise VectorError(f"its layer would be layer {layer} of the model; expected 0 to {MAX_LAYER}")
    numbers, vectors, operations = {}, [], []
    for index in dict.fromkeys(features):
        one, name = dictionary.feature(index), f"feature-{index}"
        numbers[f"{name}.decoder.{layer}"], numbers[f"{name}.encoder.{layer}"] = one.decoder, one.encoder
        vectors += [f"  {name}: {{file: {saelens.quoted(out)}, tensor: '{name}.decoder.{{layer}}'}}",
                    f"  {name}-encoder: {{file: {saelens.quoted(out)}, tensor: '{name}.encoder.{{layer}}'}}"]
        operations.append(f"{{feature: {name}, encoder: {name}-encoder, to: 0, bias: {one.bias:.9g}, threshold: {one.threshold:.9g}}}")
    about = {**dictionary.about, "dmi.source": source.name, "dmi.layer_is": site}
    tensors.write(out, numbers, about)
    name = "-".join(["feature", *map(str, dict.fromkeys(features))])[:127]
    return "\n".join(["editspec: 1", "vectors:", *vectors, "edits:", f"  - name: {name}", f"    site: {site}", f"    layers: '{layer}'",
                      "    do:", *(f"      - {operation}" for operation in operations)])
