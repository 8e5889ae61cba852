# SPDX-License-Identifier: Apache-2.0
"""Attaching to models of a program that knows nothing of DMI.

watch() waits until the program imports transformers, and then attaches every PreTrainedModel of a known family at its first
forward, or when it is compiled, whichever comes first; generate() announces its requests (dmi.huggingface). Edits may write in each of them but drafts: a model
that guesses for another one (assisted generation) is no part of what that computes. Imports neither PyTorch nor transformers by itself.
"""
import fnmatch
import functools
import runpy
import sys

from dmi import adapters
from dmi.saying import say
from dmi.torch import names

MODELS = "transformers.modeling_utils"


def watch(sites, layers=None, sink=None, write=None, models=None):
    """Attach each model that this process uses from now on. Raises ValueError where @sites, @write or @layers means nothing.

    @models: patterns of their names, with commas between: of the class, of the checkpoint's path or its last part. None: all
    """
    if sites or not write:
        names.parse_sites(sites)
    if write:
        names.parse_places(write)
    if layers:
        names.layer_words(layers)
    wanted = functools.partial(attach_first, sites, layers, sink, write=write, models=models)
    adapters.when_imported(MODELS, lambda module: _change(module, wanted))


SEEN, DRAFT = "_dmi_seen", "_dmi_draft"


def attach_first(sites, layers, sink, model, write=None, models=None):
    """Attach @model, unless it is, or is a part of one that is, or has another name than @models. Never raises."""
    from dmi.torch import config, taps
    try:
        if SEEN in model.__dict__:
            return
        _mark(model, SEEN)
        name = config.name_of(model)
        if models and not _is_named(model, models):
            taps.complain(f"{name} is left alone: --model {models} names others")
            return
        _attach(sites, layers, sink, model, write, DRAFT in model.__dict__ and not models)
    except Exception as error:
        taps.complain(f"{type(model).__name__} is not attached: {error}")


def _attach(sites, layers, sink, model, write, is_draft):
    from dmi.torch import config, hooks, taps
    if is_draft and write:
        taps.complain(f"{config.name_of(model)} drafts for another model: no edit is done in it, unless --model names it")
        if not sites:
            return
    more = {"write": None if is_draft else write} if write else {}
    for missing in hooks.attach(model, sites, layers, sink, **more).missing:
        taps.complain(f"{type(model).__name__} has no {missing.name}: {missing.reason}")
    if any(owner and not owner.everywhere for owner in (module.__dict__.get(taps.OWNER) for module in model.modules())):
        taps.say_of_device(next(model.parameters(), None))


def _mark(model, mark):
    for module in model.modules():
        if hasattr(module, "get_output_embeddings"):
            module.__dict__[mark] = True


def _is_named(model, models):
    from dmi.torch import config
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in filter(None, models.split(",")) for name in config.names_of(model))


def _becomes_draft(model, again):
    """@model guesses for another one from now on: where it was attached by itself, it is attached without places. @again: attach_first() but for the model."""
    from dmi.torch import hooks
    if DRAFT in model.__dict__:
        return
    _mark(model, DRAFT)
    if SEEN in model.__dict__ and again.keywords.get("write") and not again.keywords.get("models"):
        hooks.detach_from(model)
        _attach(*again.args, model, again.keywords["write"], True)


def _watch_drafts(base, again):
    """generate() says which model drafts before that computes anything."""
    from transformers import GenerationMixin
    from dmi.torch import taps
    generate = GenerationMixin.generate

    @functools.wraps(generate)
    def generates(self, *args, **kwargs):
        try:
            for one in (*args, kwargs.get("assistant_model")):
                if isinstance(one, base) and one is not self:
                    _becomes_draft(one, again)
        except Exception as error:
            taps.complain(f"which model drafts is not known: {error!r}")
        return generate(self, *args, **kwargs)
    GenerationMixin.generate = generates


def _change(modeling, attach):
    """Where models are called or compiled, they are attached first."""
    import torch
    base = modeling.PreTrainedModel
    call, compile_module, compile_any = base.__call__, base.compile, torch.compile

    @functools.wraps(call)
    def called(self, *args, **kwargs):
        if not torch.compiler.is_compiling():
            attach(self)
        return call(self, *args, **kwargs)

    @functools.wraps(compile_module)
    def compiled(self, *args, **kwargs):
        attach(self)
        return compile_module(self, *args, **kwargs)

    @functools.wraps(compile_any)
    def compiled_any(model=None, **kwargs):
        if isinstance(model, base):
            attach(model)
        return compile_any(model, **kwargs)
    base.__call__, base.compile, torch.compile = called, compiled, compiled_any
    try:
        _watch_drafts(base, attach)
    except ImportError as error:  # another version of transformers: all models are alike then
        say(f"dmi.torch: drafts are not known: {error!r}")
    _announce_requests()


def _announce_requests():
    from dmi import huggingface
    try:
        huggingface.attach_all()
    except Exception as error:
        say(f"dmi.huggingface: generate() is not attached: {error!r}")


def main(words):
    """python -m dmi.torch.attach [--sites SITES] [--write SITES] [--layers LAYERS] SCRIPT [ARGUMENT ...]"""
    options = {"sites": None}
    while words and words[0] in ("--sites", "--layers", "--write") and len(words) > 1:
        options[words[0][2:]] = ",".join([*filter(None, [options.get(words[0][2:])]), words[1]])
        words = words[2:]
    if not (options["sites"] or options.get("write")) or not words or words[0].startswith("-"):
        raise SystemExit(main.__doc__)
    try:
        watch(**options)
    except ValueError as error:
        raise SystemExit(f"dmi.torch.attach: {error}") from None
    sys.argv = words
    sys.path[0] = words[0].rpartition("/")[0] or "."
    runpy.run_path(words[0], run_name="__main__")
