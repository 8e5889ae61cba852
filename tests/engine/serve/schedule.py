# SPDX-License-Identifier: Apache-2.0
"""What is decided from outside of the scheduler: arrivals, chunk sizes, preemptions, aborts, the order of rows.

Schedule decides nothing, FixedSchedule reads a file (README.md says what it holds), RandomSchedule throws dice.
"""
import json
import random


def decode_first(items):
    """As vLLM orders a batch: rows of decoding requests before the others."""
    return sorted(items, key=lambda item: not item.is_decode)


class Schedule:
    def arrival(self, request):
        return request.arrival

    def chunk(self, step, request, most):
        return most

    def preemptions(self, step, running):
        return []

    def aborts(self, step, alive):
        return []

    def order(self, step, items):
        return decode_first(items)

    def more(self, step, n_alive):
        """Requests that come now: [(id, index of a request in the file, tokens to make or None)]."""
        return []


class FixedSchedule(Schedule):
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            given = json.load(file)
        self.arrivals = given.get("arrivals", {})
        self.steps = {int(step): what for step, what in given.get("steps", {}).items()}

    def at(self, step, what, otherwise):
        return self.steps.get(step, {}).get(what, otherwise)

    def arrival(self, request):
        return self.arrivals.get(request.id, request.arrival)

    def chunk(self, step, request, most):
        chunk = self.at(step, "chunk", most)
        return chunk.get(request.id, most) if isinstance(chunk, dict) else chunk

    def preemptions(self, step, running):
        return [r for r in running if r.id in self.at(step, "preempt", [])]

    def aborts(self, step, alive):
        return [r for r in alive if r.id in self.at(step, "abort", [])]

    def order(self, step, items):
        ids = self.at(step, "order", None)
        items = decode_first(items)
        return items if ids is None else sorted(items, key=lambda i: ids.index(i.request.id) if i.request.id in ids else len(ids))


class RandomSchedule(Schedule):
    """Arrivals, repeats, chunks, preemptions, aborts and orders by @seed: the same in every process."""

    def __init__(self, seed, n_given, until, crowd):
        """@n_given: requests of the file; new ones come until step @until, while fewer than @crowd are there."""
        self.dice, self.n_given, self.until, self.crowd, self.n_made = random.Random(seed), n_given, until, crowd, 0

    def chunk(self, step, request, most):
        return self.dice.randint(1, most)

    def preemptions(self, step, running):
        return [self.dice.choice(running)] if running and self.dice.random() < 0.04 else []

    def aborts(self, step, alive):
        return [self.dice.choice(alive)] if alive and self.dice.random() < 0.01 else []

    def order(self, step, items):
        items = list(items)
        if self.dice.random() < 0.5:
            return decode_first(items)
        self.dice.shuffle(items)
        return items

    def more(self, step, n_alive):
        came = []
        while step < self.until and n_alive + len(came) < self.crowd and self.dice.random() < 0.3:
            which, self.n_made = self.dice.randrange(self.n_given), self.n_made + 1
            came.append((f"r{self.n_made}", which, self.dice.randint(1, 12)))
        return came
