# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges around modules, as layerwise tracing of vLLM's V1 runner pushes them: what Python prints of a dict."""
import ctypes


class Ranges:
    """The modules that are open, the outermost first; @library: a path to one with NVTX's C functions."""

    def __init__(self, library):
        nvtx = ctypes.CDLL(library)
        self.push, self.pop = nvtx.nvtxRangePushA, nvtx.nvtxRangePop
        self.push.argtypes = [ctypes.c_char_p]
        self.open = []

    def enter(self, module, n_rows):
        """Be in @module, names joined by dots, each of which is a module too; those that it does not lie in end."""
        parts = module.split(".")
        path = [".".join(parts[:i + 1]) for i in range(len(parts)) if not parts[i] == "layers"]
        same = next((i for i, (a, b) in enumerate(zip(self.open, path)) if a != b), min(len(self.open), len(path)))
        self.close(same)
        for name in path[same:]:
            self.push(repr({"Module": name, "Inputs": [[n_rows]]}).encode())
            self.open.append(name)

    def close(self, left=0):
        while len(self.open) > left:
            self.pop()
            self.open.pop()


class NoRanges:
    def enter(self, module, n_rows):
        pass

    def close(self):
        pass
