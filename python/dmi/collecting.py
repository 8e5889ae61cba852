# SPDX-License-Identifier: Apache-2.0
"""dmi.collect(): what the requests of a block computed, as arrays in the program that computed it, once the block ends.

    with dmi.collect(sites=["resid_post"], layers="0,3-7,last") as got:
        model.generate(**batch)
    got["france"].resid_post[3]        # [rows, width] of the request that the adapter calls so
    got[0].resid_post[3]               # of the request that began first

It reads the run that the library writes anyway, through dmi.reading: the process's own, or where that has no requests those of the command's
other processes (vLLM computes in one of its own). It changes nothing of what is captured.
"""
from __future__ import annotations

import collections.abc
import fnmatch
import json
import os
import pathlib
import sys
import threading
import time
import warnings
from typing import Any, Iterable, Iterator

import dmi

from .growing import Due, spans_of, step_of
from .reading import IN_TORCH, ReadError, Request, Run, Tensor, _near
from .torch import names

IDLE_S = 2.0              # the library writes steps without records after a second
SLACK_NS = 1_000_000_000  # two threads may begin steps in another order than that of their times
FAR = 1 << 16             # layers that no model has
MOST_NAMED = 8           # parts of a sentence


class NotCaptured(KeyError, AttributeError):
    """No site or layer of that name was captured; its text has the nearest names."""


# ------------------------------------------------------------------------- what a block gives


class Layers(collections.abc.Mapping):
    """{layer: array [rows, ...]} of one site and one request."""

    def __init__(self, what: str) -> None:
        self._what, self._arrays = what, {}

    def __getitem__(self, layer: int) -> Any:
        if layer in self._arrays:
            return self._arrays[layer]
        raise NotCaptured(f"{self._what} has no layer {layer!r}; there are {', '.join(map(str, self._arrays)) or 'none'}")

    def __iter__(self) -> Iterator[int]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<dmi.collecting.Layers {self._what}: {', '.join(map(str, self._arrays))}>"


class Collected(collections.abc.Mapping):
    """{site: {layer: array}} of one request; of a site without layers the array itself. A site is an attribute, too: got["france"].q[3].

    request  dmi.reading.Request, as it was when the block ended; id: its id
    """

    def __init__(self, request: Request, tensors: Iterable[Tensor], arrays: dict[str, Any]) -> None:
        self.request, self.id = request, request.id
        self._sites: dict[str, Any] = {}
        self._positions: dict[tuple, list] = {}
        for tensor in tensors:
            if tensor.key not in arrays:
                continue
            site = tensor.site.name if (tensor.site.name, tensor.layer) not in self._positions else tensor.name
            self._positions[site, tensor.layer] = tensor.positions
            if tensor.layer is None:
                self._sites[site] = arrays[tensor.key]
            else:
                layers = self._sites.setdefault(site, Layers(f"{request.id}/{site}"))
                layers._arrays[tensor.layer] = arrays[tensor.key]

    def positions(self, site: str, layer: int | None = None) -> list:
        """The position of each row's token in the request, as dmi.reading.Tensor.positions."""
        found = self[site] if layer is None else self[site][layer]
        if isinstance(found, Layers):
            raise NotCaptured(f"{self.id}/{site} has layers: {', '.join(map(str, found))}")
        return self._positions[site, layer]

    def __getitem__(self, site: str) -> Any:
        if site in self._sites:
            return self._sites[site]
        raise NotCaptured(f"of request {self.id} no site {site!r} was collected{_near(site, self._sites) or _there_are(self._sites)}")

    def __getattr__(self, site: str) -> Any:
        if site.startswith("_"):
            raise AttributeError(site)
        return self[site]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._sites]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)

    def __repr__(self) -> str:
        return f"<dmi.collecting.Collected {self.id}: {', '.join(self._sites) or 'nothing'}>"


def _there_are(known: Iterable) -> str:
    return f"; there are {', '.join(map(str, known)) or 'none'}"


class collect(collections.abc.Mapping):
    """A block; after it a mapping {id: Collected} of the requests that began in it, in the order of their first rows. An int takes one by its place: got[0].

    sites      names, patterns (resid_*) of what is captured: a text with commas, or a list; None: all of it
    layers     "0,3-7,last", a number, or several: of sites with layers; None: all. last: the highest one captured
    timeout_s  how long the end of the block may wait for rows on their way to the run

    Arrays hold true values, float32 for floats of fewer bits: torch tensors on the CPU if the program has imported torch, else numpy's.
    Requests of other threads that begin meanwhile are there, too. Records that were dropped are not waited for: a RuntimeWarning names them, and
    `dropped` has its sentences. Raises RuntimeError at the block's beginning if the library is not in the process, and at its end KeyError (no such
    site or layer is captured), TimeoutError (it names what is missing; what is there can be had all the same).
    """

    def __init__(self, sites: str | Iterable[str] | None = None, layers: Any = None, timeout_s: float = 10.0) -> None:
        self.sites, self.layers, self.timeout_s = sites, layers, timeout_s
        self.dropped: list[str] = []
        self._found: dict[str, Collected] | None = None

    def __enter__(self) -> "collect":
        if not dmi.loaded():
            raise RuntimeError(f"libdmi_preload.so is not in this process, so nothing is captured: start the program with `{self._command()}`")
        self._found, self.dropped, self._since_ns = None, [], time.time_ns()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._found = {}
        if kind is None:
            with _lock:
                self._end(time.monotonic() + self.timeout_s)

    def _command(self) -> str:
        words = self.sites.split(",") if isinstance(self.sites, str) else list(self.sites or ["residuals"])
        known = all(word in names.NAMES or word in names.PRESETS or names.PATTERN.search(word) for word in words)
        layers = "" if self.layers is None else f" --layers {self.layers if isinstance(self.layers, (str, int)) else ','.join(map(str, self.layers))}"
        program = sys.argv[0] if sys.argv[0] not in ("", "-c", "-m") else "prog.py"
        return f"dmi-run --{'attach' if known else 'tap'} {','.join(words)}{layers} --out RUN -- python {program}"

    # ---- the mapping

    def _all(self) -> dict[str, Collected]:
        if self._found is None:
            raise RuntimeError("what a block of dmi.collect() collects is there once the block has ended")
        return self._found

    def __getitem__(self, request: str | int) -> Collected:
        found = self._all()
        if isinstance(request, int):
            if not -len(found) <= request < len(found):
                raise IndexError(f"{len(found)} requests began in the block{_there_are(found)}")
            return list(found.values())[request]
        if request in found:
            return found[request]
        raise KeyError(f"no request {request!r} began in the block{_near(request, found) or _there_are(found)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return f"<dmi.collect: {'its block has not ended' if self._found is None else ', '.join(self._found) or 'no requests'}>"

    # ---- the end of a block

    def _end(self, end_s: float) -> None:
        status = dmi.flush(max(self.timeout_s, 0))
        source, begun, is_settled = _wait(self._since_ns, status == dmi.TIMEOUT, end_s)
        if source is None:
            raise RuntimeError(f"nothing was captured in the block: {_out()} has no run of this program; stderr says why the library writes none")
        tensors = {request.id: [*source.run._of(request.id).values()] for request, _ in begun}
        source.note(tensor for of in tensors.values() for tensor in of)
        if not begun and not is_settled:
            raise TimeoutError(f"after {self.timeout_s:g} s the run says of no request that it began in the block, and lacks {_some(source.on_their_way())}")
        if not begun:
            self._warn(f"no request began in the block, so it collects nothing ({source.run.n_records} records are in the run). An adapter says whose "
                       "rows are whose: dmi.huggingface.attach(model), dmi.huggingface.batch() for a forward without generate()")
            return
        sites, layers = source.choose(self.sites, self.layers, [tensor for of in tensors.values() for tensor in of])
        wanted = {name: [t for t in of if t.site.name in sites and (t.layer is None or layers is None or t.layer in layers)]
                  for name, of in tensors.items()}
        arrays = _arrays(source.run, [tensor for of in wanted.values() for tensor in of])
        self._found = {request.id: Collected(request, wanted[request.id], arrays) for request, _ in begun}
        if not is_settled and (missing := source.missing(begun, wanted, sites, layers)):
            raise TimeoutError(f"after {self.timeout_s:g} s the run lacks {_some(missing)}")
        self.dropped = source.dropped(begun, wanted, sites, layers)
        if status < 0:
            self.dropped.append(f"the run cannot be written: {os.strerror(-status)}")
        if self.dropped:
            self._warn(f"not all of the block was captured: {_some(self.dropped)}")

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(f"dmi.collect: {text}", RuntimeWarning, stacklevel=4)


def _some(parts: list[str]) -> str:
    return "; ".join(parts[:MOST_NAMED]) + (f"; and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else "")


# ------------------------------------------------------------------------- arrays


def _arrays(run: Run, tensors: list[Tensor]) -> dict[str, Any]:
    """{key: array} of true values, each record decoded once."""
    torch = sys.modules.get("torch")
    return {t.key: _as_torch(torch, t, data) if torch else _as_numpy(t, data) for t, data in run._several(tensors)}


def _as_numpy(tensor: Tensor, data: bytearray) -> Any:
    return Run._array(tensor, data, tensor.dtype.startswith(("f", "bf")) and tensor.dtype != "f64" or tensor.scale not in (0, 1))


def _as_torch(torch: Any, tensor: Tensor, data: bytearray) -> Any:
    kind = getattr(torch, IN_TORCH[tensor.dtype])
    values = (torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)).reshape(tensor.shape)
    if tensor.scale not in (0, 1) or values.is_floating_point() and kind != torch.float64:
        values = values.to(torch.float32)
    if tensor.scale in (0, 1):
        return values
    return values / (torch.tensor(tensor.scales, dtype=torch.float64).reshape(-1, *[1] * (values.dim() - 1)) if tensor.scale is None else tensor.scale)


# ------------------------------------------------------------------------- the runs of this program


_lock = threading.Lock()
_abouts: dict[pathlib.Path, tuple[str | None, int | None]] = {}  # runs that were seen: (job, pid)
_have_steps: set[pathlib.Path] = set()                           # runs in which a step was seen
_sources: dict[tuple, "_Source"] = {}                            # the latest ones, which stay open


def _out() -> pathlib.Path:
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
        found = sorted(path for path in _out().iterdir() if not path.name.startswith("."))
    except OSError:
        return [], []
    for path in found:
        of, pid = _about(path)
        if pid == os.getpid() and of == job:
            own = [path]  # the latest: it may have executed itself anew
        elif job and of == job:
            others.append(path)
    return own, others


def _wait(since_ns: int, is_late: bool, end_s: float) -> tuple["_Source | None", list, bool]:
    """(where the block's requests are, [(Request, positions that it computed)], is all that was launched before now in the run?).
    @is_late: what the process itself launched is not."""
    own, others = _runs()
    mine, begun = None, []
    if own:
        mine = _source(own)
        begun = mine.begun(since_ns)
    if begun or not others:
        return mine, begun, not is_late
    theirs, due, begun, first_s, pause_s = None, None, [], time.monotonic(), 0.01
    while True:
        theirs = _source(others)
        due = due or Due(theirs.run)
        begun = theirs.begun(since_ns)
        settled, now = due.is_met(theirs.run), time.monotonic()
        if settled and (begun or theirs.run.state != "running" or now - first_s > IDLE_S) or now > end_s:
            return theirs, begun, settled
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.2)


def _source(paths: list[pathlib.Path]) -> "_Source":
    """Those of them that have steps, read as one, with what was written since."""
    _have_steps.update(path for path in paths if path not in _have_steps and Run(path).n_steps)
    used = [path for path in paths if path in _have_steps] or paths[-1:]
    key = (os.getpid(), *used)
    if key in _sources:
        try:
            _sources[key].run.refresh()
            return _sources[key]
        except ReadError:
            del _sources[key]
    for old in list(_sources)[:-1]:
        del _sources[old]
    _sources[key] = _Source(used[0] if len(used) == 1 else _out())
    return _sources[key]


class _Source:
    """A run that is open, or those of a command's ranks. layers: {site: those that any request has}, None among them: it has none."""

    def __init__(self, path: pathlib.Path) -> None:
        self.run = Run(path)
        self.layers: dict[str, set] = {}
        self.note(self.run.values())

    def note(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.layers.setdefault(tensor.site.name, set()).add(tensor.layer)

    def begun(self, since_ns: int) -> list[tuple[Request, set]]:
        """[(Request, positions that it computed)] of those whose every step began from then on, in the order of their first rows."""
        positions: dict[str, set] = {}
        n_steps: dict[str, int] = {}
        for spans in self._steps_since(since_ns):
            for name, first, n in reversed(spans):
                where = positions.pop(name, set())
                positions[name] = where | set(range(first, first + n))
            for name in {name for name, _, _ in spans}:
                n_steps[name] = n_steps.get(name, 0) + 1
        requests = self.run._requests_called(set(n_steps))
        return [(requests[name], {p for p in positions[name] if p < requests[name].end_position})
                for name in reversed(positions) if name in requests and requests[name].n_steps == n_steps[name]]

    def _steps_since(self, since_ns: int) -> Iterator[list[tuple[str, int, int]]]:
        """Spans (request, first position, rows) of each step that began from then on, the latest first."""
        run = self.run
        for i in range(run.n_steps - 1, -1, -1):
            step = step_of(run, i)
            if step.time_ns < since_ns - SLACK_NS and run.n_runs == 1:
                break
            if step.time_ns >= since_ns:
                yield [(name, span.first_position, span.n_tokens) for name, span in spans_of(run, i, step.n_spans)]

    # ---- what is asked for

    def choose(self, sites: Any, layers: Any, tensors: list[Tensor]) -> tuple[set, set | None]:
        """(names of sites, layers or None: all). NotCaptured: one of them is captured by none. @tensors: of the block's requests; their model's last
        layer is the highest of these, unless records were dropped: then the highest that any request has."""
        known = {site.name for site in self.run.sites} | set(self.layers)
        chosen: set = set()
        words = known if sites is None else sites.split(",") if isinstance(sites, str) else sites
        for word in map(str.strip, words):
            found = [word] if word in known else fnmatch.filter(known, word)
            if not found:
                raise NotCaptured(f"the run has no site {word!r}{_near(word, known) or _there_are(sorted(known))}")
            chosen.update(found)
        if layers is None:
            return chosen, None
        there = {layer for site in chosen for layer in self.layers.get(site, ())} - {None}
        own = {t.layer for t in tensors if t.site.name in chosen} - {None}
        return chosen, _layers(layers, there, max(own if own and not self._reasons(chosen) else there, default=-1))

    def _parts(self, begun: list, wanted: dict, sites: set, layers: set | None) -> Iterator[tuple[Request, str, str, set]]:
        """(request, site, the tensor's name, positions that it computed and that are not there)."""
        is_row = {site.name: site.row for site in self.run.sites}
        for request, computed in begun:
            have = {(t.site.name, t.layer): t for t in wanted[request.id]}
            for site in sorted(sites):
                for layer in sorted(self.layers.get(site, ()), key=lambda one: -1 if one is None else one):
                    if is_row.get(site, "token") != "token" or layer is not None and layers is not None and layer not in layers:
                        continue
                    tensor = have.get((site, layer))
                    if lacks := computed - set(tensor.positions if tensor else ()):
                        yield request, site, tensor.name if tensor else site if layer is None else f"{site}.{layer}", lacks

    def missing(self, begun: list, wanted: dict, sites: set, layers: set | None) -> list[str]:
        """Sentences' parts: "request france, resid_post.3, positions 5-9"."""
        return [f"request {request.id}, {name}, positions {_ranges(lacks)}" for request, _, name, lacks in self._parts(begun, wanted, sites, layers)]

    def _reasons(self, sites: set) -> dict[str, dict[str, int]]:
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
        reasons = self._reasons(sites)
        why = {site: ", ".join(f"{reason} {n}" for reason, n in of.items()) for site, of in reasons.items()}
        return [f"request {request.id}, {name}, positions {_ranges(lacks)} (records that {site} dropped in the run: {why[site]})"
                for request, site, name, lacks in self._parts(begun, wanted, set(reasons), layers)]


def _layers(text: Any, there: set, highest: int) -> set:
    """What "0,3-7,last" means among layers that are @there, of a model whose last one is @highest; NotCaptured: one is not there."""
    chosen: set = set()
    for part in text.split(",") if isinstance(text, str) else [text] if isinstance(text, int) else text:
        try:
            means = names.parse_layers(part, highest + 1)
        except ValueError:
            names.parse_layers(part, FAR)  # which raises where it means no layers of any model
            means = None
        if not means or means - there:
            raise NotCaptured(f"layers {str(part).strip()!r} are not all captured{_there_are(sorted(there))}")
        chosen |= means
    return chosen


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
