# SPDX-License-Identifier: Apache-2.0
"""Attaches to the models of a program that knows nothing of DMI, where DMI_ATTACH says what to tap, or DMI_ATTACH_WRITE where edits may write.

Python imports a module of this name when it starts, if its folder is in PYTHONPATH. The one that would have been found
without this folder is imported, too.
"""
import os
import sys


def _start():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    own = sys.modules.pop("sitecustomize", None)
    sites, write = os.environ.get("DMI_ATTACH"), os.environ.get("DMI_ATTACH_WRITE")
    if sites or write:
        try:
            from dmi.torch.script import watch
            watch(sites, os.environ.get("DMI_ATTACH_LAYERS") or None, write=write, models=os.environ.get("DMI_ATTACH_MODEL") or None)
        except Exception as error:
            try:
                os.write(2, f"dmi.torch: no models will be attached: {error!r}\n".encode(errors="replace"))
            except OSError:
                pass  # as dmi.saying, which may be what cannot be imported
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:  # an import looks for the module there afterwards
            sys.modules.setdefault("sitecustomize", own)


_start()
