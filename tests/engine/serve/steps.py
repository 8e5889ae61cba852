# SPDX-License-Identifier: Apache-2.0
"""--steps: what the engine tells DMI. Without libdmi_preload.so in the process all of it does nothing."""
import importlib
import json
import pathlib
import sys

PYTHON = str(pathlib.Path(__file__).resolve().parents[3] / "python")


def package(name):
    """A module of the adapters'."""
    if PYTHON not in sys.path:
        sys.path.insert(0, PYTHON)
    return importlib.import_module(name)


class Silent:
    """Says nothing to anybody."""

    def begin(self, plan, n_rows):
        pass

    def verified(self, step, verified):
        pass

    def ended(self, ended):
        pass

    def idle(self):
        pass


class Steps(Silent):
    def __init__(self, part, caches):
        self.dmi = dmi = package("dmi")
        self.caches = caches  # rows of equal prefixes are shared between requests
        self.ranks = ((part.rank, part.ranks), (part.stage, part.stages), (0, 1), (0, 1))
        self.reasons = {"stop": dmi.End.STOP, "length": dmi.End.LENGTH, "aborted": dmi.End.ABORTED}

    def begin(self, plan, n_rows):
        """The rows of the step whose launches come now; rows after the last item's are padding."""
        spans, row = [], 0
        for item in plan.items:
            spans += self.spans(item, row)
            row += item.n_rows
        if row < n_rows:
            spans.append(self.dmi.Span(None, 0, n_rows - row, row, flags=self.dmi.PADDING))
        self.judge("dmi_step_begin()", self.dmi.step_begin(plan.step, spans, n_rows=n_rows, ranks=self.ranks, caches=self.caches))

    def judge(self, what, status):
        if status not in (self.dmi.OK, self.dmi.OFF):
            raise SystemExit(f"serve.py: {what} answered {status}")

    def spans(self, item, row):
        """Tokens that are the request's, then drafts that may be rejected: a span each, as each has logits of its own."""
        phase = self.dmi.Phase.DECODE if item.is_decode else self.dmi.Phase.PREFILL
        request = item.request
        common = {"n_prompt": request.n_prompt, "tags": json.dumps({"preemptions": request.preemptions, **request.tags})}
        yield self.dmi.Span(request.id, item.start, item.n, row, n_cached=item.n_cached, phase=phase,
                            cached_ids=request.tokens[item.start - item.n_cached:item.start], flags=self.dmi.LAST if item.is_last else 0, **common)
        for i in range(item.n, item.n_rows):
            yield self.dmi.Span(request.id, item.start + i, 1, row + i, phase=self.dmi.Phase.DRAFT, **common)

    def verified(self, step, verified):
        for item, accepted in verified:
            self.judge("dmi_accept()", self.dmi.accept(item.request.id, step, accepted))

    def ended(self, ended):
        for request, reason in ended:
            self.judge("dmi_request_end()", self.dmi.request_end(request.id, self.reasons[reason]))

    def idle(self):
        self.dmi.step_end()
