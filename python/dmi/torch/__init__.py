# SPDX-License-Identifier: Apache-2.0
"""Taps for PyTorch: tensors of a program by name, eagerly and within graphs of the compiler.

    dmi.torch.tap(hidden, "resid_pre", layer)        # anywhere in a model of one's own
    hidden = dmi.torch.edit(hidden, "resid_pre", layer)   # a place for edits: go on with what it returns
    dmi.torch.attach(model, sites="resid_*,q,k")     # on a model of Hugging Face's

The spec of `dmi-run --tap` says which of them are captured. Without libdmi_preload.so in the process nothing is done.
"""
import importlib
import importlib.util

_WHERE = {"tap": "taps", "edit": "taps", "attach": "hooks", "family_of": "hooks"}

if importlib.util.find_spec("torch") is not None:
    def __getattr__(name):
        """PyTorch is imported when it is needed: a program that only starts with DMI_ATTACH may never do so."""
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
        return found
else:
    def tap(tensor, name, layer=None, rows=None, n_layers=None, writable=False, gradient=False):
        """Nothing to tap without PyTorch."""

    def edit(tensor, name, layer=None, rows=None, n_layers=None, gradient=False):
        """@tensor: nothing to edit without PyTorch."""
        return tensor

    def attach(model, sites=None, layers=None, sink=None, write=None, gradients=False):
        """Nothing to attach to without PyTorch."""
        raise ImportError("dmi.torch.attach() needs PyTorch, which is not installed")

    def family_of(model):
        """None: no model is known without PyTorch."""
        return None
