# SPDX-License-Identifier: Apache-2.0
"""Blocks of the paged KV cache: who holds them, and which full ones can be used again. Knows no device.

A block is held by any number of requests. One that nobody holds is free; if it is full and was published it keeps what it
holds until it is needed, the block that was freed first going first.
"""
import hashlib
from collections import OrderedDict

import numpy as np

PADDING = 0  # the block that padding rows write into; nobody holds it


def chain(before, tokens):
    """The key of a full block: of its tokens and all before them."""
    return hashlib.blake2b(before + np.asarray(tokens, dtype=np.int64).tobytes(), digest_size=16).digest()


class BlockPool:
    def __init__(self, n_blocks):
        """@n_blocks: that requests can hold; one more is there for padding."""
        self.holders = [0] * (n_blocks + 1)
        self.key_of = {}      # block: key
        self.block_of = {}    # key: block
        self.free = OrderedDict((block, None) for block in range(1, n_blocks + 1))

    @property
    def n_free(self):
        return len(self.free)

    def alloc(self):
        """A block with nothing in it that can be used."""
        block, _ = self.free.popitem(last=False)
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key]
        self.holders[block] = 1
        return block

    def hold(self, block):
        """One more request uses a published block."""
        if not self.holders[block]:
            del self.free[block]
        self.holders[block] += 1

    def release(self, block):
        if not self.holders[block]:
            raise ValueError(f"nobody holds block {block}")
        self.holders[block] -= 1
        if not self.holders[block]:
            self.free[block] = None

    def find(self, key):
        return self.block_of.get(key)

    def publish(self, block, key):
        """The block is full, and may be shared; of two with the same tokens the first one is."""
        if key not in self.block_of and block not in self.key_of:
            self.block_of[key], self.key_of[block] = block, key

    def check(self, held):
        """Raise unless the blocks that requests hold (lists of lists) are those that are not free."""
        counts = [0] * len(self.holders)
        for blocks in held:
            if len(set(blocks)) != len(blocks):
                raise AssertionError("a request holds a block twice")
            for block in blocks:
                counts[block] += 1
        if counts != self.holders or counts[PADDING]:
            raise AssertionError(f"holders are {self.holders}, requests hold {counts}")
        if {b for b in range(1, len(counts)) if not counts[b]} != set(self.free):
            raise AssertionError("free blocks are not those that nobody holds")
        if {block: key for key, block in self.block_of.items()} != self.key_of:
            raise AssertionError("published blocks and their keys differ")
