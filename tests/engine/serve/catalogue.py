# SPDX-License-Identifier: Apache-2.0
"""--spans: what the engine does when, by the names of StriaTrace's catalogue (docs/trace.md). Without a trace it does nothing."""
import contextlib
import time

from .steps import package


class Unsaid:
    """Says nothing."""

    def range(self, name, **facts):
        return contextlib.nullcontext(self)

    def say(self, **facts):
        pass

    def request_began(self, request):
        pass

    def request_ended(self, request):
        pass


class Catalogue(Unsaid):
    def __init__(self):
        self.dmi, self.begun = package("dmi"), {}

    def range(self, name, **facts):
        return self.dmi.range(name, **facts)

    def request_began(self, request):
        self.begun[request.id] = time.monotonic_ns()

    def request_ended(self, request):
        with self.dmi.range_since(f"LLMEngine::Request {request.id}", self.begun.pop(request.id), True, prompt=request.n_prompt,
                                  generated=len(request.made), preemptions=request.preemptions):
            pass
