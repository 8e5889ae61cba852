# SPDX-License-Identifier: Apache-2.0
"""What a model of Hugging Face's, or an engine of its model, says of itself, noted in the run: programs that read it need no more (docs/attention.md)."""
import json
import os
import weakref

from dmi import calls

LEFT_OUT = ("id2label", "label2id")  # of classifiers: as many names as there are classes
MOST_BYTES = 1 << 20


_edited = weakref.WeakKeyDictionary()  # {model into which edits may, or might, write: its name}
_attached = weakref.WeakSet()  # those into which they may


def names_of(model):
    """What @model may be called by: its class, its checkpoint's path, the last part of that."""
    config = getattr(model, "config", None)
    path = str(getattr(config, "_name_or_path", None) or getattr(config, "name_or_path", None) or "").rstrip("/")
    return [name for name in (type(model).__name__, path, path.rpartition("/")[2]) if name]


def name_of(model):
    """Its class and, where it is known, the last part of its checkpoint's path."""
    names = names_of(model)
    return " ".join(names[::2]).replace(",", " ")


def may_edit(model):
    """Note that edits may write in @model: where several models are, what is said of edits names them."""
    name = name_of(model)
    others = [one for other, one in _edited.items() if other is not model]
    _attached.add(model)
    _edited[model] = name if name not in others else f"{name} {len(others) + 1}"
    if len(_edited) > 1:
        calls.describe("edited", ", ".join(_edited.values()))


def may_not_edit(model):
    """No edit writes in @model any more."""
    _attached.discard(model)


def edited():
    """Names of the models into which edits may write."""
    return [name for model, name in _edited.items() if model in _attached]


def describe(model, config=None, tokenizer=None):
    """Note @model's config and the place of its tokenizer by dmi.describe(): an engine's @config and @tokenizer, or the model's own.
    A model without a config is left alone."""
    config = config or getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return
    said = {key: value for key, value in config.to_dict().items() if key not in LEFT_OUT}
    if sinks := _sinks(model):
        said["dmi_sinks"] = sinks
    text = json.dumps(said, default=str)
    if len(text) <= MOST_BYTES:
        calls.describe("config", text)
    if name := tokenizer or getattr(config, "_name_or_path", None) or getattr(config, "name_or_path", None):
        calls.describe("tokenizer", os.path.abspath(name) if os.path.exists(name) else str(name))


def _sinks(model):
    """[layers][heads] of attention's sinks, which are weights; None: the model has none."""
    named = model.named_parameters() if hasattr(model, "named_parameters") else ()
    found = [parameter for name, parameter in named if name.endswith(".sinks") and parameter.dim() == 1]
    return [parameter.detach().float().cpu().tolist() for parameter in found] if found else None
