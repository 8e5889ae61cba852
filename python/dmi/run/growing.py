# SPDX-License-Identifier: Apache-2.0
"""What a run that grows has by now: records that were on their way at one moment, requests that ended. For Run.finished() and dmi.collect()."""
from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Iterator

from ..calls import PADDING
from .structs import REQUEST_STATES, U32, U64, _bytes_at, _Request, _Span, _Step, _text

if TYPE_CHECKING:
    from .reading import Request, Run

ENDED = [REQUEST_STATES.index(state) for state in ("finished", "aborted")]


class Due:
    """The records that a run expected at one moment and did not have. A run takes records in the order of their launches."""

    def __init__(self, run: "Run") -> None:
        self._captured, self._missing = self._totals(run)

    @staticmethod
    def _totals(run: "Run") -> tuple[int, int]:
        known = [account for account in run.accounts if account]
        return sum(account.captured for account in known), sum(account.missing for account in known)

    def is_met(self, run: "Run") -> bool:
        """Does the run have them now, or never will?"""
        captured, missing = self._totals(run)
        return run.state != "running" or not missing or captured - self._captured >= self._missing


def step_of(run: "Run", i: int) -> _Step:
    return run._get("dmi_read_step", _Step, U64(i))


def spans_of(run: "Run", i: int, n: int) -> list[tuple[str, _Span]]:
    """(request, span) of step @i of @n spans, without padding."""
    spans = [run._get("dmi_read_span", _Span, U64(i), U32(k)) for k in range(n)]
    return [(_text(_bytes_at(s.request, s.request_bytes)) or "", s) for s in spans if s.request_bytes and not s.flags & PADDING]


class _Ends:
    """The requests of a run that ended, each once.

    A request is known by its last step and its row there. Its name may be another one's after segments were released: of three requests `r`, `r~2`
    and `r~3` the last two are `r` and `r~2` once nothing is left of the first.
    """

    def __init__(self, run: "Run") -> None:
        self.run = run
        self._given: set[tuple] = set()
        self._due: dict[tuple, Due] = {}
        self._done: set[int] = set()  # indices of requests, as long as no step is released
        self._first: tuple | None = None
        self._newest = -1             # sequence of the last step that was seen

    def new(self) -> list[Request]:
        """Those whose records have come since, in the order of their first rows."""
        self._look_back()
        ended = {}
        for i in range(self.run._n_requests):
            if i not in self._done:
                r = self.run._get("dmi_read_request", _Request, U64(i))
                if r.state in ENDED and r.n_steps:
                    ended[_text(_bytes_at(r.id, r.id_bytes))] = i
        marks, found = self._marks(set(ended)), []
        for name, i in ended.items():
            mark = marks[name]
            if mark not in self._given and not self._due.setdefault(mark, Due(self.run)).is_met(self.run):
                continue
            self._done.add(i)
            self._due.pop(mark, None)
            if mark not in self._given:
                self._given.add(mark)
                found.append(self.run._request(i))
        return found

    def is_waiting(self) -> bool:
        """Has one ended whose records are on their way?"""
        return bool(self._due)

    def _look_back(self) -> None:
        """Forgets what is about steps that were released."""
        first = step_of(self.run, 0) if self.run.n_steps else None
        mark = (first.sequence, first.time_ns) if first else None
        if mark == self._first and self.run.n_runs == 1:
            return
        if first and self._first and self.run.n_runs == 1:
            if first.sequence > self._newest + 1:
                warnings.warn(f"{self.run.path}: {first.sequence - self._newest - 1} steps were released before finished() saw them", RuntimeWarning, stacklevel=5)
            self._given = {given for given in self._given if given[0] >= first.sequence}
        self._first, self._done = mark, set()

    def _marks(self, wanted: set[str]) -> dict[str, tuple]:
        """{request: what tells its last row from all others}"""
        found: dict[str, tuple] = {}
        if self.run.n_steps:
            self._newest = max(self._newest, step_of(self.run, self.run.n_steps - 1).sequence)
        for i in range(self.run.n_steps - 1, -1, -1):
            if len(found) == len(wanted):
                break
            step = step_of(self.run, i)
            for name, span in spans_of(self.run, i, step.n_spans):
                if name in wanted:
                    found.setdefault(name, (step.sequence, step.time_ns, span.first_row))
        return found


def finished(runs: list["Run"], poll_s: float, timeout_s: float | None) -> Iterator[tuple[int, Request]]:
    """As Run.finished() says, with the index of the request's run."""
    ends, since_s = [_Ends(run) for run in runs], time.monotonic()
    while True:
        is_last = all(run.state != "running" for run in runs)
        for i, of in enumerate(ends):
            for request in of.new():
                yield i, request
                since_s = time.monotonic()
        if is_last:
            return
        if timeout_s is not None and time.monotonic() - since_s > timeout_s:
            raise TimeoutError(f"{', '.join(str(run.path) for run in runs)}: no request ended within {timeout_s:g} s")
        time.sleep(min(poll_s, 0.02) if any(of.is_waiting() for of in ends) else poll_s)
        for run in runs:
            if run.state == "running":
                run.refresh()
