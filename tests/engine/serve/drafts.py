# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding's draft: the model's first layers with its last norm and head, and a KV cache of its own.

Its kernels' names begin with draft_. Its cache has the target's blocks, and it computes all of a request for itself, also
where the target took blocks from the prefix cache (what it writes there is what is there already).
"""
from .batch import Rows


class Drafter:
    def __init__(self, runner, block_size, max_rows, merge):
        """@merge: of this rank's likeliest tokens, and how many, those of the whole vocabulary."""
        self.runner, self.block_size, self.max_rows, self.merge = runner, block_size, max_rows, merge

    def propose(self, plan):
        """Give each item with drafts its drafts, greedily."""
        items = [item for item in plan.items if item.n_drafts]
        for item in items:
            item.drafts = []
            self.catch_up(item)
        while todo := [item for item in items if len(item.drafts) < item.n_drafts]:
            rows = Rows()
            for item in todo:
                tokens = (item.request.tokens + item.drafts)[item.request.n_draft_computed:]
                rows.add(item.request, item.request.n_draft_computed, tokens, self.block_size, 1)
            for item, token in zip(todo, self.run(rows)):
                item.request.n_draft_computed = len(item.request.tokens) + len(item.drafts)
                item.drafts.append(token)
        for item in items:
            # What is rejected is computed again: of the drafts only those count that will be the request's own.
            item.request.n_draft_computed = len(item.request.tokens)

    def catch_up(self, item):
        """All but the last few tokens, a part at a time."""
        request = item.request
        while len(request.tokens) - request.n_draft_computed > self.max_rows // 16:
            n = min(self.max_rows, len(request.tokens) - request.n_draft_computed - 1)
            rows = Rows()
            rows.add(request, request.n_draft_computed, request.tokens[request.n_draft_computed:][:n], self.block_size, 1)
            self.run(rows)
            request.n_draft_computed += n

    def run(self, rows):
        n, replayed = self.runner.padded(rows, len(rows.last) == rows.n)
        self.runner.run(rows, n, replayed)
        return self.merge(self.runner.sampled(len(rows.last)), len(rows.last))
