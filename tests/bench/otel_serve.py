#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/engine/serve.py --spans, whose spans OpenTelemetry's SDK takes instead of DMI: otel_serve.py FILE [OPTION...].

As engines set the SDK up: spans that have ended wait in a queue, and a thread of the SDK exports them in batches, here as JSON into FILE.
"""
import pathlib
import runpy
import sys
import time

from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

ENGINE = pathlib.Path(__file__).resolve().parents[1] / "engine"
sys.path.insert(0, str(ENGINE))
from serve import engine  # noqa: E402


class Spans:
    """The calls of serve.catalogue.Catalogue, to OpenTelemetry."""

    def __init__(self, tracer):
        self.tracer, self.begun = tracer, {}
        Span.say = lambda span, **facts: span.set_attributes(facts)

    def range(self, name, **facts):
        return self.tracer.start_as_current_span(name, attributes=facts)

    def request_began(self, request):
        self.begun[request.id] = time.time_ns()

    def request_ended(self, request):
        facts = {"prompt": request.n_prompt, "generated": len(request.made), "preemptions": request.preemptions}
        self.tracer.start_span(f"LLMEngine::Request {request.id}", attributes=facts, start_time=self.begun.pop(request.id)).end()


def main():
    with open(sys.argv.pop(1), "w", encoding="utf-8") as out:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=out)))
        engine.Catalogue = lambda: Spans(provider.get_tracer("serve"))
        try:
            runpy.run_path(str(ENGINE / "serve.py"), run_name="__main__")
        finally:
            provider.shutdown()


if __name__ == "__main__":
    main()
