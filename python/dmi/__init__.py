# SPDX-License-Identifier: Apache-2.0
"""Tensors of a running model: out of it, into it, and as arrays.

    collect    what the requests of a block computed, once it ends:   with dmi.collect(sites="resid_post", layers="last") as got:
    edit       what is written into tensors while a block runs:       with dmi.edit("calm.safetensors", times=2):
    open       a run that was captured, as a mapping of tensors:      run = dmi.open("RUN"); run["france/q.3"].numpy()
    tap        point out an array that a program has, by a name:      dmi.tap(x, "resid_pre", layer=3)
    requests   names and tags of the requests of generate():          with dmi.requests("france", tags={"capture": "yes"}):

sites=, layers= and requests= choose, wherever something is chosen; site=, layer= and request= were their names before. An engine says whose tokens a forward computes by
step_begin(), step_end(), accept() and request_end(), the functions of include/dmi/dmi.h; adapters of engines do so for it: dmi.huggingface, dmi.vllm, dmi.sglang,
dmi.tinygrad. Without libdmi_preload.so in the process these and tap() do nothing and return OFF, so a program may always call them. All may be called from any thread; only
flush() waits for the GPU. help(dmi.open), help(dmi.reading.Run) and the like have the rest.
"""
import importlib

from .calls import (
    BAD_VERSION, LAST, OFF, OK, PADDING, PART, TIMEOUT, End, Phase, Span, accept, describe, edits_missed, flush, loaded, range, range_since,
    request_end, site_enable, step_begin, step_end, step_resume)

_WHERE = {"collect": "collecting", "edit": "edits", "requests": "huggingface", "tap": "taps"}  # functions, by module
_MODULES = {"export": "run.export", "reading": "run.reading", "tables": "run.tables",
            **{name: name for name in ("adapters", "analysis", "attention", "collecting", "edits", "huggingface", "results", "several", "sglang", "stats", "tinygrad", "torch", "vllm", "vocabulary",
                                       "weights")}}

__all__ = [  # not range, which would take the place of Python's where all is imported
    "collect", "edit", "open", "tap", "requests",
    "step_begin", "step_end", "step_resume", "accept", "request_end", "edits_missed", "site_enable", "describe", "flush", "loaded",
    "Span", "Phase", "End", "PADDING", "LAST", "PART", "OK", "OFF", "BAD_VERSION", "TIMEOUT",
]


def open(path):  # pylint: disable=redefined-builtin
    """A run that was captured: dmi.reading.Run, whose page has the rest. Of a list of paths all of them: dmi.several.Runs."""
    if isinstance(path, (list, tuple)):
        from .several import Runs
        return Runs(path)
    from .run.reading import Run
    return Run(path)


def _version():
    """Of the installed package, in a clone the version that it would have."""
    import importlib.metadata
    import pathlib
    import re
    try:
        return importlib.metadata.version("dmi")
    except importlib.metadata.PackageNotFoundError:
        return re.search(r"^ *version: '(.*?)'", (pathlib.Path(__file__).parents[2] / "meson.build").read_text(encoding="utf-8"), re.MULTILINE)[1]


def __getattr__(name):
    """What is imported once it is asked for: the functions of other modules, and these modules."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name == "__version__":
        return _version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*__all__, *_MODULES, range.__name__, range_since.__name__, "__all__", "__doc__", "__version__"])
