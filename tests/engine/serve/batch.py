# SPDX-License-Identifier: Apache-2.0
"""A step's rows as arrays: what the kernels read, and whose the rows are. Knows no device."""
from dataclasses import dataclass, field

import numpy as np

from .blocks import PADDING

BEST = np.dtype([("value", np.float32), ("at", np.int32)])  # what argmax stores for a row


@dataclass
class Rows:
    """Row by row, [n] each; tables: a request's blocks, one row for each item; last: rows that sample."""
    ids: list = field(default_factory=list)
    positions: list = field(default_factory=list)
    slots: list = field(default_factory=list)
    of_request: list = field(default_factory=list)
    owners: list = field(default_factory=list)  # requests
    tables: list = field(default_factory=list)
    last: list = field(default_factory=list)

    @property
    def n(self):
        return len(self.ids)

    def add(self, request, start, tokens, block_size, n_last):
        """@tokens from position @start; the last @n_last of them sample."""
        for position, token in enumerate(tokens, start):
            self.ids.append(token)
            self.positions.append(position)
            self.slots.append(request.blocks[position // block_size] * block_size + position % block_size)
            self.of_request.append(len(self.tables))
            self.owners.append(request)
        self.tables.append(request.blocks)
        self.last += range(self.n - n_last, self.n)

    @staticmethod
    def of(plan, block_size):
        """All rows of a plan. As vLLM has it, the last row of a part of a prompt samples too, and nobody looks at it."""
        rows = Rows()
        for item in plan.items:
            tokens = item.request.tokens[item.start:item.start + item.n] + item.drafts
            rows.add(item.request, item.start, tokens, block_size, item.n_drafts + 1)
        return rows


class Layout:
    """Where the arrays lie in one buffer of int32, so that one copy brings them to the device."""

    def __init__(self, max_rows, max_requests, table_width):
        self.max_rows, self.table_width, self.n_tables = max_rows, table_width, max_requests + 1
        sizes = {"ids": max_rows, "positions": max_rows, "slots": max_rows, "of_request": max_rows, "last": max_rows,
                 "marks": 2 * max_rows, "last_marks": 2 * max_rows, "tables": self.n_tables * table_width}
        self.at, n = {}, 0
        for name, size in sizes.items():
            self.at[name] = slice(n, n + size)
            n += -(-size // 64) * 64
        self.n = n

    def pack(self, rows):
        """int32 [n]; rows after the last one are padding: token 0 at position 0 of a block that nobody holds."""
        out = np.zeros(self.n, dtype=np.int32)
        out[self.at["slots"]] = PADDING
        for name in ("ids", "positions", "slots", "of_request", "last"):
            out[self.at[name]][:len(getattr(rows, name))] = getattr(rows, name)
        # Padding rows have a table of their own, the last one, which holds block PADDING; they sample themselves.
        out[self.at["of_request"]][rows.n:] = self.n_tables - 1
        spare = rows.n if rows.n < self.max_rows else 0
        out[self.at["last"]][len(rows.last):] = spare
        tables = out[self.at["tables"]].reshape(self.n_tables, self.table_width)
        for i, blocks in enumerate(rows.tables):
            tables[i, :len(blocks)] = blocks
        marks = np.zeros((self.max_rows, 2), dtype=np.int32)
        marks[:rows.n, 0] = [request.number for request in rows.owners]
        marks[:rows.n, 1] = rows.positions
        out[self.at["marks"]] = marks.reshape(-1)
        out[self.at["last_marks"]][:2 * len(rows.last)] = marks[rows.last].reshape(-1)
        return out
