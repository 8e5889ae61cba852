# SPDX-License-Identifier: Apache-2.0
"""Where dmi.collect() finds what a block computed: the runs of this command, open while the program goes on."""
from __future__ import annotations

import json
import os
import pathlib
import tempfile
import time
from dataclasses import dataclass, field
from typing import Iterable, Iterator

from .run.growing import Due, spans_of, step_of
from .run.reading import ReadError, Request, Run, Tensor
from .torch import names

IDLE_S = 2.0              # the library writes steps without records after a second
SLACK_NS = 1_000_000_000  # two threads may begin steps in another order than that of their times
MOST_NAMED = 8            # parts of a sentence

_abouts: dict[pathlib.Path, tuple[str | None, int | None]] = {}  # runs that were seen: (job, pid)
_open: dict[tuple, "Source"] = {}                                # (pid, path, the runs in it)
_past: set[pathlib.Path] = set()                                 # runs that ended before any block that has not
active: list[int] = []                                           # when those blocks began


@dataclass
class Found:
    """sources: with what Source.begun() says of the block; settled: is all that was launched before now in
    the runs?; any: is there a run?"""
    sources: list[tuple["Source", list[tuple[Request, dict]]]] = field(default_factory=list)
    settled: bool = True
    any: bool = False

    def __len__(self) -> int:
        return sum(len(begun) for _, begun in self.sources)


def out() -> pathlib.Path:
    return pathlib.Path(os.environ.get("DMI_OUT") or "dmi-out").absolute()


def _about(path: pathlib.Path) -> tuple[str | None, int | None]:
    if path not in _abouts:
        try:
            about = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None, None
        _abouts[path] = about.get("job"), about.get("pid")
    return _abouts[path]


def _runs() -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """([this process's own], those of the command's other processes)."""
    job, own, others = os.environ.get("DMI_JOB"), [], []
    try:
        found = sorted(path for path in out().iterdir() if not path.name.startswith(".") and not path.is_symlink())
    except OSError:
        return [], []
    for path in found:
        of, pid = _about(path)
        if pid == os.getpid() and of == job:
            own = [path]  # the latest: it may have executed itself anew
        elif job and of == job:
            others.append(path)
    return own, others


def _source(path: pathlib.Path, *of: pathlib.Path) -> "Source":
    """With what was written since. @of: runs in the folder @path. They are read as one, without what other commands left there."""
    key = os.getpid(), path, *of
    if key in _open:
        try:
            if _open[key].run.state == "running":
                _open[key].run.refresh()
            return _open[key]
        except ReadError:
            del _open[key]
    _open[key] = Source(path, of)
    return _open[key]


def wait(since_ns: int, is_late: bool, end_s: float) -> Found:
    """The requests of a block that has ended, once what was launched for them is in the runs; after @end_s what there is. @is_late: what the process
    itself launched is not in its run."""
    own, others = _runs()
    mine = [_source(path) for path in own]
    begun = [(source, source.begun(since_ns)) for source in mine]
    if any(requests for _, requests in begun) or not others:
        return Found(begun, not is_late, bool(own))
    due: dict[Source, Due] = {}
    first_s, pause_s = time.monotonic(), 0.01
    while True:
        sources, is_running = _theirs(_runs()[1])
        found = Found([*begun, *((source, source.begun(since_ns)) for source in sources)], any=True)
        found.settled = not is_late and all([due.setdefault(source, Due(source.run)).is_met(source.run) for source in sources])
        now = time.monotonic()
        if is_late or found.settled and (len(found) or not is_running or now - first_s > IDLE_S) or now > end_s:
            return found
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.2)


def _theirs(paths: list[pathlib.Path]) -> tuple[list["Source"], bool]:
    """(those that have steps, as one where they are of ranks; does one of all of them go on?)."""
    found, oldest = [], min(active, default=0)
    for path in paths:
        if path in _past:
            continue
        source = _source(path)
        if source.run.state == "running" or source.has_step_since(oldest):
            found.append(source)
        else:
            _past.add(path)
            del _open[os.getpid(), path]
    some = [source for source in found if source.run.n_steps]
    if len(some) > 1 and any(size > 1 for source in some for size in step_of(source.run, 0).ranks[1::2]):
        some = [_source(out(), *(source.path for source in some))]
    return some, any(source.run.state == "running" for source in found)


class Source:
    """A run that is open, or those of a command's ranks. layers: {site: those that any request has}, None among them: it has none."""

    def __init__(self, path: pathlib.Path, of: Iterable[pathlib.Path] = ()) -> None:
        self.path = path
        self._links = tempfile.TemporaryDirectory(prefix="dmi-ranks-") if of else None  # pylint: disable=consider-using-with
        for run in of:
            (pathlib.Path(self._links.name) / run.name).symlink_to(run)
        self.run = Run(self._links.name if self._links else path)
        self.layers: dict[str, set] = {}
        self.note(self.run.values())

    def note(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.layers.setdefault(tensor.site.name, set()).add(tensor.layer)

    def begun(self, since_ns: int) -> list[tuple[Request, dict]]:
        """[(Request, {what a row is: positions that have one})] of those whose every step began from then on, in the order of their first rows."""
        rows: dict[str, dict] = {}
        n_steps: dict[str, int] = {}
        for spans in self._steps_since(since_ns):
            for name, first, n in reversed(spans):
                rows[name] = of = rows.pop(name, None) or {"token": set(), "request": set()}
                of["token"].update(range(first, first + n))
                of["request"].add(first + n - 1)
            for name in {name for name, _, _ in spans}:
                n_steps[name] = n_steps.get(name, 0) + 1
        requests = self.run._requests_called(set(n_steps))
        return [(requests[name], {row: {p for p in there if p < requests[name].end_position} for row, there in rows[name].items()})
                for name in reversed(rows) if name in requests and requests[name].n_steps == n_steps[name]]

    def has_step_since(self, since_ns: int) -> bool:
        return any(True for _ in self._steps_since(since_ns))

    def _steps_since(self, since_ns: int) -> Iterator[list[tuple[str, int, int]]]:
        """Spans (request, first position, rows) of each step that began from then on, the latest first."""
        run = self.run
        for i in range(run.n_steps - 1, -1, -1):
            step = step_of(run, i)
            if step.time_ns < since_ns - SLACK_NS and run.n_runs == 1:
                break
            if step.time_ns >= since_ns:
                yield [(name, span.first_position, span.n_tokens) for name, span in spans_of(run, i, step.n_spans)]

    # ---- what is not there

    def _parts(self, begun: list, wanted: dict, sites: set, layers: set | None, late: set) -> Iterator[tuple[Request, str, str, set]]:
        """(request, site, the tensor's name, positions that it computed and that are not there), of sites that do not have all records. @late: layers of
        which there may be nothing yet."""
        layered = {site.name for site in self.run.sites if site.has_layer} - set(names.ONCE)
        row_of = {site.name: site.row for site, account in zip(self.run.sites, self.run.accounts) if not account or account.expected > account.captured}
        for request, computed in begun:
            have = {(t.site.name, t.layer): t for t in wanted[request.id]}
            for site in sorted(sites & set(row_of)):
                for layer in sorted(self.layers.get(site, set()) | (late if site in layered else set()) or {None}, key=lambda one: -1 if one is None else one):
                    if layer is not None and layers is not None and layer not in layers:
                        continue
                    tensor = have.get((site, layer))
                    if lacks := computed.get(row_of[site], set()) - set(tensor.positions if tensor else ()):
                        yield request, site, tensor.name if tensor else site if layer is None else f"{site}.{layer}", lacks

    def missing(self, begun: list, wanted: dict, sites: set, layers: set | None, late: set) -> list[str]:
        """Sentences' parts: "request france, resid_post.3, positions 5-9"."""
        return [f"request {request.id}, {name}, positions {_ranges(lacks)}" for request, _, name, lacks in self._parts(begun, wanted, sites, layers, late)]

    def reasons(self, sites: set) -> dict[str, dict[str, int]]:
        """{site: {reason: records}} of those of @sites that dropped any."""
        found: dict[str, dict[str, int]] = {}
        for site, account in zip(self.run.sites, self.run.accounts):
            if account and site.name in sites:
                lost = {"lost": account.missing} if self.run.state == "killed" and account.missing else {}
                for reason, n in (account.dropped_by | lost).items():
                    of = found.setdefault(site.name, {})
                    of[reason] = of.get(reason, 0) + n
        return found

    def on_their_way(self) -> list[str]:
        return [f"{account.missing} records of {site.name}" for site, account in zip(self.run.sites, self.run.accounts) if account and account.missing] or ["none"]

    def dropped(self, begun: list, wanted: dict, sites: set, layers: set | None) -> list[str]:
        """As missing(), of sites that dropped records, with the reasons."""
        of_site = self.reasons(sites)
        why = {site: ", ".join(f"{reason} {n}" for reason, n in of.items()) for site, of in of_site.items()}
        return [f"request {request.id}, {name}, positions {_ranges(lacks)} (records that {site} dropped in the run: {why[site]})"
                for request, site, name, lacks in self._parts(begun, wanted, set(of_site), layers, set())]


def some(parts: list[str]) -> str:
    """A sentence's parts, the first of them."""
    return "; ".join(parts[:MOST_NAMED]) + (f"; and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else "")


def _ranges(positions: set) -> str:
    """{1, 2, 3, 7} as "1-3, 7"."""
    parts: list[list[int]] = []
    for p in sorted(positions):
        if parts and parts[-1][1] == p - 1:
            parts[-1][1] = p
        else:
            parts.append([p, p])
    said = [str(first) if first == last else f"{first}-{last}" for first, last in parts]
    return ", ".join(said[:MOST_NAMED]) + (", ..." if len(said) > MOST_NAMED else "")
