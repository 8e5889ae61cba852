# SPDX-License-Identifier: Apache-2.0
"""Attaching to models of a program that knows nothing of DMI.

watch() waits until the program imports transformers, and then attaches every PreTrainedModel of a known family at its first
forward, or when it is compiled, whichever comes first; generate() announces its requests (dmi.huggingface). Imports neither PyTorch nor transformers by itself.
"""
import functools
import runpy
import sys

from dmi import adapters
from dmi.saying import say
from dmi.torch import names

MODELS = "transformers.modeling_utils"


def watch(sites, layers=None, sink=None, write=None):
    """Attach each model that this process uses from now on. Raises ValueError where @sites, @write or @layers means nothing."""
    if sites or not write:
        names.parse_sites(sites)
    if write:
        names.parse_places(write)
    if layers:
        names.layer_words(layers)
    wanted = functools.partial(attach_first, sites, layers, sink, write=write)
    adapters.when_imported(MODELS, lambda module: _change(module, wanted))


def attach_first(sites, layers, sink, model, write=None):
    """Attach @model, unless it is, or is a part of one that is. Never raises."""
    from dmi.torch import hooks, taps
    try:
        if "_dmi_seen" in model.__dict__:
            return
        for module in model.modules():
            if hasattr(module, "get_output_embeddings"):
                module.__dict__["_dmi_seen"] = True
        attached = hooks.attach(model, sites, layers, sink, **({"write": write} if write else {}))
        for missing in attached.missing:
            taps.complain(f"{type(model).__name__} has no {missing.name}: {missing.reason}")
    except Exception as error:
        taps.complain(f"{type(model).__name__} is not attached: {error}")


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
