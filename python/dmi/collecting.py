# SPDX-License-Identifier: Apache-2.0
"""dmi.collect(): what the requests of a block computed, as arrays in the program that computed it, once the block ends.

    with dmi.collect(sites=["resid_post"], layers="0,3-7,last") as got:
        model.generate(**batch)
    got["france"].resid_post[3]        # [rows, width] of the request that the adapter calls so
    got[0].resid_post[3]               # of the request that began first
    got[out].resid_post[3]             # of the request whose output an engine returned: anything with a request_id, as vLLM's RequestOutput

It reads the run that the library writes anyway, through dmi.reading: the process's own, or where that has no requests those of the command's
other processes (vLLM computes in one of its own). It changes nothing of what is captured.
"""
from __future__ import annotations

import collections.abc
import fnmatch
import os
import sys
import threading
import time
import warnings
from typing import Any, Iterable, Iterator

from . import calls, sources
from .dtypes import IN_TORCH
from .run.reading import Request, Run, Tensor, _near
from .several import _free
from .torch import names

FAR = 1 << 16  # layers that no model has


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
    edits    what edits wrote in it: [dmi.reading.Edit]; all that is computed after an edit was computed with it
    """

    def __init__(self, request: Request, tensors: Iterable[Tensor], arrays: dict[str, Any]) -> None:
        self.request, self.id, self.edits = request, request.id, request.edits
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
    """A block; after it a mapping {id: Collected} of the requests that began in it, in the order of their first rows. An int takes one by its place: got[0]; what
    has a request_id, as outputs of vLLM's, stands for that id: got[out].

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
        if not calls.loaded():
            raise RuntimeError(f"libdmi_preload.so is not in this process, so nothing is captured: start the program with `{self._command()}`")
        self._found, self.dropped, self._since_ns = None, [], time.time_ns()
        sources.active.append(self._since_ns)
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._found = {}
        try:
            if kind is None:
                status = calls.flush(max(self.timeout_s, 0))
                with _lock:
                    self._end(status, time.monotonic() + self.timeout_s)
        finally:
            sources.active.remove(self._since_ns)

    def _command(self) -> str:
        words = _words(self.sites or "residuals")
        known = all(word in names.NAMES or word in names.PRESETS or names.PATTERN.search(word) for word in words)
        layers = "" if self.layers is None else f" --layers {self.layers if isinstance(self.layers, (str, int)) else ','.join(map(str, self.layers))}"
        program = sys.argv[0] if sys.argv[0] not in ("", "-c", "-m") else "prog.py"
        return f"dmi-run --{'attach' if known else 'tap'} {','.join(words)}{layers} --out RUN -- python {program}"

    # ---- the mapping

    def _all(self) -> dict[str, Collected]:
        if self._found is None:
            raise RuntimeError("what a block of dmi.collect() collects is there once the block has ended")
        return self._found

    def __getitem__(self, request: Any) -> Collected:
        found, request = self._all(), getattr(request, "request_id", request)
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

    def _end(self, status: int, end_s: float) -> None:
        found = sources.wait(self._since_ns, status == calls.TIMEOUT, end_s)
        if not found.any:
            raise RuntimeError(f"nothing was captured in the block: {sources.out()} has no run of this program; stderr says why the library writes none")
        if not len(found):
            self._warn(self._of_none(found))
            return
        tensors = {(source, request.id): [*source.run._of(request.id).values()] for source, begun in found.sources for request, _ in begun}
        for (source, _), of in tensors.items():
            source.note(of)
        sites, layers = self._choose([source for source, _ in found.sources], [tensor for of in tensors.values() for tensor in of], found.settled)
        wanted = {key: [t for t in of if t.site.name in sites and (t.layer is None or layers is None or t.layer in layers)] for key, of in tensors.items()}
        missing, self.dropped = [], [f"the run cannot be written: {os.strerror(-status)}"] if status < 0 else []
        for source, begun in found.sources:
            of = {request.id: wanted[source, request.id] for request, _ in begun}
            self._take(source.run, begun, of)
            missing += [] if found.settled else source.missing(begun, of, sites, layers, layers or set())
            self.dropped += source.dropped(begun, of, sites, layers)
        if missing:
            raise TimeoutError(f"after {self.timeout_s:g} s the run lacks {sources.some(missing)}")
        if not any(self._found.values()) and not self.dropped:
            self._warn(f"no rows of {', '.join(self._found)} were captured at {', '.join(sorted(sites)) or 'any site'}: the HookSpec takes none of these "
                       "requests, or what is tapped lies neither in a GPU's memory nor in the CPU's")
        if self.dropped:
            self._warn(f"not all of the block was captured: {sources.some(self.dropped)}")

    def _of_none(self, found: sources.Found) -> str:
        """What to say of a block in which no request began."""
        if not found.settled:
            lacks = [part for source, _ in found.sources for part in source.on_their_way()]
            raise TimeoutError(f"after {self.timeout_s:g} s the run says of no request that it began in the block, and lacks {sources.some(lacks)}")
        n_records = sum(source.run.n_records for source, _ in found.sources)
        return (f"no request began in the block, so it collects nothing ({n_records} records are in the run). An adapter says whose rows are whose: "
                "dmi.huggingface.attach(model), dmi.huggingface.batch() for a forward without generate()")

    def _choose(self, those: list[sources.Source], tensors: list[Tensor], is_settled: bool) -> tuple[set, set | None]:
        """(names of sites, layers or None: all). NotCaptured: one of them is captured by none; layers may come yet where not @is_settled. @tensors: of the
        block's requests; their model's last layer is the highest of these, unless records were dropped: then the highest that any request has."""
        known = {name for source in those for name in [*source.layers, *(site.name for site in source.run.sites)]}
        chosen: set = set()
        for word in sorted(known) if self.sites is None else _words(self.sites):
            found = [word] if word in known else fnmatch.filter(known, word)
            if not found:
                raise NotCaptured(f"the run has no site {word!r}{_near(word, known) or _there_are(sorted(known))}")
            chosen.update(found)
        if self.layers is None:
            return chosen, None
        there = {layer for source in those for site in chosen for layer in source.layers.get(site, ())} - {None}
        own = {t.layer for t in tensors if t.site.name in chosen} - {None}
        dropped = any(source.reasons(chosen) for source in those)
        return chosen, _layers(self.layers, there, max(own if own and not dropped else there, default=-1), is_settled)

    def _take(self, run: Run, begun: list, tensors: dict[str, list[Tensor]]) -> None:
        arrays = _arrays(run, [tensor for of in tensors.values() for tensor in of])
        for request, _ in begun:  # two engines may use one id
            self._found[_free(request.id, self._found)] = Collected(request, tensors[request.id], arrays)

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(f"dmi.collect: {text}", RuntimeWarning, stacklevel=4)


_lock = threading.Lock()  # of what sources keeps open


def _words(text: str | Iterable[str]) -> list[str]:
    return [word.strip() for part in ([text] if isinstance(text, str) else text) for word in part.split(",") if word.strip()]


def _layers(text: Any, there: set, highest: int, is_settled: bool) -> set:
    """What "0,3-7,last" means among layers that are @there, of a model whose last one is @highest; NotCaptured: one is not there, unless it may come."""
    chosen: set = set()
    for part in text.split(",") if isinstance(text, str) else [text] if isinstance(text, int) else text:
        far = names.parse_layers(part, FAR)  # ValueError: it means no layers of any model
        try:
            means = names.parse_layers(part, highest + 1)
        except ValueError:
            means = far if max(far) < FAR // 2 else set()  # numbers, or counted from a last layer that is not known
        if is_settled and (not means or means - there):
            raise NotCaptured(f"layers {str(part).strip()!r} are not all captured{_there_are(sorted(there))}")
        chosen |= means
    return chosen


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
    scale = torch.tensor(tensor.scales, dtype=torch.float32).reshape(-1, *[1] * (values.dim() - 1)) if tensor.scale is None else tensor.scale
    return values / scale
