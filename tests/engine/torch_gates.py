# SPDX-License-Identifier: Apache-2.0
"""Two gates in a model's forward, on a device: the host opens them. For programs whose graphs are to be under way for as long as they want."""
import threading

import torch
import triton
import triton.language as tl


@triton.jit
def wait_for(flag):
    while tl.load(flag, volatile=True) == 0:
        pass


class Gates:
    """
    A forward waits behind @module until a gate is open: the one of `at`, as it was when the forward was launched or captured. All are open at first.
    """

    def __init__(self, module):
        # 16 bytes a gate, so that Triton has one kernel for both
        self.flags, self.at = torch.ones(2, 4, dtype=torch.int32).pin_memory(), 0
        module.register_forward_hook(self.wait)

    def wait(self, *_):
        wait_for[(1,)](self.flags[self.at])

    def close(self, seconds):
        """Closes both; after @seconds they open by themselves, as somebody waits for the device all the same."""
        self.flags.zero_()
        self.opener = threading.Timer(seconds, lambda: self.flags.fill_(1))
        self.opener.start()

    def are_closed(self):
        return not self.flags.any()

    def open(self, at):
        self.opener.cancel()
        self.flags[at] = 1
