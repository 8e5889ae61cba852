# SPDX-License-Identifier: Apache-2.0
"""What a Python program may tell DMI: whose tokens a forward computes, which sites to capture.

These are the functions of include/dmi/dmi.h.  Without libdmi_preload.so in the process they do nothing and
return OFF, so a program may always call them.  All may be called from any thread; only flush() waits for the
GPU.  Adapters of engines are in this folder: dmi.huggingface, dmi.vllm, dmi.sglang,
dmi.tinygrad.

dmi.open() reads what was captured, in any process: dmi.reading.
"""
from .calls import (  # noqa: F401
    BAD_VERSION, LAST, OFF, OK, PADDING, PART, TIMEOUT, End, Phase, Span, accept, describe, edits_missed, flush, loaded, range, range_since,
    request_end, site_enable, step_begin, step_end, step_resume)


def open(path):  # pylint: disable=redefined-builtin
    """A run that was captured: dmi.reading.Run, whose page has the rest. Of a list of paths all of them: dmi.several.Runs."""
    if isinstance(path, (list, tuple)):
        from .several import Runs
        return Runs(path)
    from .run.reading import Run
    return Run(path)


def __getattr__(name):
    """dmi.analysis, dmi.attention, dmi.collect, dmi.collecting, dmi.edit, dmi.edits, dmi.export, dmi.reading, dmi.several, dmi.stats, dmi.tables, dmi.tap and dmi.weights, once they are asked for; __version__ of the installed package, in a clone the version that it would have."""
    import importlib.metadata
    import pathlib
    import re
    if name in ("analysis", "attention", "collecting", "edits", "results", "several", "stats", "vocabulary", "weights"):
        return importlib.import_module(f"{__name__}.{name}")
    if name in ("export", "reading", "tables"):
        return importlib.import_module(f"{__name__}.run.{name}")
    if name == "collect":
        from .collecting import collect
        return collect
    if name == "edit":
        from .edits import edit
        return edit
    if name == "tap":
        from .taps import tap
        return tap
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.metadata.version("dmi")
    except importlib.metadata.PackageNotFoundError:
        return re.search(r"^ *version: '(.*?)'", (pathlib.Path(__file__).parents[2] / "meson.build").read_text(encoding="utf-8"), re.MULTILINE)[1]
