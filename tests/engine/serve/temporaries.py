# SPDX-License-Identifier: Apache-2.0
"""Where a step's temporaries lie: one block of memory, in which what is freed is used again at once.

So tensors of a step overlap as a caching allocator would have it: an output lies where an earlier temporary was.
"""
from .device import Address

ALIGN = 256


class Temporaries:
    def __init__(self, memory=None):
        """@memory: an Address; without one, only sizes are found out."""
        self.memory, self.used, self.peak = memory, [], 0

    def alloc(self, n_bytes):
        """The first gap that is large enough."""
        n_bytes, at = -(-n_bytes // ALIGN) * ALIGN, 0
        for start, end in sorted(self.used):
            if start - at >= n_bytes:
                break
            at = end
        self.used.append((at, at + n_bytes))
        self.peak = max(self.peak, at + n_bytes)
        place = self.memory.part(at, n_bytes) if self.memory else Address(at, n_bytes)
        place.span = (at, at + n_bytes)
        return place

    def free(self, *places):
        for place in places:
            self.used.remove(place.span)
