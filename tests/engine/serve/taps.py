# SPDX-License-Identifier: Apache-2.0
"""--taps: every tensor of a forward is pointed out where it lies, as an engine with taps in its code does."""
from .steps import package


class Taps:
    """Says nothing where the library is not there."""

    def __init__(self, device, dtype, n_layers):
        self.device, self.n_layers, self.library = device, n_layers, package("dmi.taps")
        self.elements = {"element": (self.library.DTYPES[dtype.name], dtype.size), "id": (self.library.DTYPES["int32"], 4)}

    def __call__(self, step, n):
        """The views of a launch of @n rows, which was just queued."""
        for view in step.views if self.library.loaded() else ():
            dtype, size = self.elements[view.kind]
            layer = self.library.NO_LAYER if view.layer is None else view.layer
            status = self.library.send(view.site, view.place.address + view.offset, int(self.device.stream), dtype, (n, view.width),
                                       ((view.stride or view.width * size) // size, 1), size, 1, layer, self.n_layers)
            if status not in (0, 1):
                raise SystemExit(f"serve.py: dmi_tap() of {view.site} answered {status}")
