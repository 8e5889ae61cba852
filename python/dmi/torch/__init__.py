# SPDX-License-Identifier: Apache-2.0
"""Taps for PyTorch: tensors of a program by name, eagerly and within graphs of the compiler.

    dmi.torch.tap(hidden, "resid_pre", layer)        # anywhere in a model of one's own
    dmi.torch.attach(model, sites="resid_*,q,k")     # on a model of Hugging Face's

The spec of `dmi-run --tap` says which of them are captured. Without libdmi_preload.so in the process nothing is done.
"""
import importlib.util

if importlib.util.find_spec("torch") is not None:
    from dmi.torch.hooks import attach, family_of
    from dmi.torch.taps import tap
else:
    def tap(tensor, name, layer=None, rows=None, n_layers=None):
        """Nothing to tap without PyTorch."""

    def attach(model, sites="residuals", layers=None, sink=None):
        """Nothing to attach to without PyTorch."""
        raise ImportError("dmi.torch.attach() needs PyTorch, which is not installed")

    def family_of(model):
        """None: no model is known without PyTorch."""
        return None
