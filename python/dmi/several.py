# SPDX-License-Identifier: Apache-2.0
"""Several runs read as one: dmi.open(["MONDAY", "TUESDAY"])."""
from __future__ import annotations

import collections.abc
import os
import re
from typing import Any, Callable, Iterable, Iterator

from .run import growing
from .run.reading import Names, Request, Run, Tensor, _names, _near
from .spelling import chooses

NUMBERED = re.compile(r"(.+)~([1-9]\d{0,8})", re.S)


class Runs(collections.abc.Mapping):
    """{key: Tensor} of several runs, in their order; runs: each one, a dmi.reading.Run.

    A request whose id an earlier run has is ID~2 here, as is an id that comes again within a run; Request.run and Tensor.run are the run that it is
    from, where it has its own id and key. A name stays while its run has that id. One thread at a time, as Run.
    """

    def __init__(self, paths: Iterable[str | os.PathLike | Run]) -> None:
        self.runs: list[Run] = []
        self._names: dict[tuple, str] = {}  # (index of the run, id there): name here
        self._taken: set[str] = set()
        self._seen: tuple | None = None     # the state of the runs that the next two are of
        self._requests: list[Request] = []
        self._tensors: dict[str, Tensor] = {}
        try:
            for path in paths:
                self.runs.append(path if isinstance(path, Run) else Run(path))
        except OSError:
            self.close()
            raise
        if not self.runs:
            raise ValueError("dmi.open(): no runs are named")

    def __repr__(self) -> str:
        return f"<dmi.several.Runs {', '.join(str(run.path) for run in self.runs)}: {len(self)} tensors, {len(self.requests)} requests>"

    def __reduce__(self) -> tuple:
        return Runs, (self.runs,)

    def __enter__(self) -> "Runs":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """As Run.close(), of each."""
        for run in self.runs:
            run.close()

    # ---- names

    def _name(self, i: int, own: str) -> str:
        if (i, own) not in self._names:
            self._names[i, own] = _free(own, self._taken)
            self._taken.add(self._names[i, own])
        return self._names[i, own]

    def _named(self, i: int, request: Request) -> Request:
        own, fields = request.id, dict(request.__dict__)
        named = object.__new__(Request)
        named.__dict__.update(fields, id=self._name(i, own), _own_id=own)
        return named

    def _fill(self) -> None:
        state = tuple(run._generation for run in self.runs)
        if state == self._seen:
            return
        self._requests = [self._named(i, request) for i, run in enumerate(self.runs) for request in run.requests]
        self._tensors = {}
        for i, run in enumerate(self.runs):
            for tensor in run.values():
                name = tensor.request if tensor.request is None else self._name(i, tensor.request)
                key = tensor.key if name == tensor.request else f"{name}/{tensor.name}"
                self._tensors[_free(key, self._tensors)] = tensor
        self._seen = state

    # ---- what there is

    @property
    def requests(self) -> list[Request]:
        """Of all runs, in their order."""
        self._fill()
        return self._requests

    def __getitem__(self, key: str) -> Tensor:
        self._fill()
        if key in self._tensors:
            return self._tensors[key]
        raise KeyError(f"no tensor is called {key!r}{_near(key, self._tensors)}")

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return iter(self._tensors)

    def __len__(self) -> int:
        self._fill()
        return len(self._tensors)

    def _owners(self, requests: Names) -> list[tuple[Run, list[str] | None]]:
        """Runs, and what requests of these names are called there."""
        if requests is None:
            return [(run, None) for run in self.runs]
        _names("requests", requests)  # ValueError: it is no name, or none is in it
        owners: dict[int, list[str]] = {}
        where = {self._name(i, one.id): (i, one.id) for i, run in enumerate(self.runs) for one in run.requests}
        for name in [requests] if isinstance(requests, str) else requests:
            if name not in where:
                raise KeyError(f"the runs have no request {name!r}{_near(name, where)}")
            i, own = where[name]
            owners.setdefault(i, []).append(own)
        return [(self.runs[i], owners[i]) for i in sorted(owners)]

    def _each(self, requests: Names, call: Callable) -> list:
        """Of runs that have the requests @call(run, their own ids). KeyError: none has what is asked for."""
        found, wrong, owners = [], [], self._owners(requests)
        for run, own in owners:
            try:
                found.append(call(run, own))
            except KeyError as error:
                wrong.append(error)
        if len(wrong) == len(owners):
            raise wrong[0]
        return found

    @chooses
    def tensors(self, sites: Names = None, layers: Any = None, requests: Names = None) -> list[Tensor]:
        """As Run.tensors(), of all runs; @requests: by their names here. KeyError where no run has what is asked for."""
        return [tensor for some in self._each(requests, lambda run, own: run.tensors(sites, layers, own)) for tensor in some]

    @chooses
    def load(self, sites: Names = None, layers: Any = None, requests: Names = None, float32: bool = False) -> dict[str, Any]:
        """As Run.load(), by the keys of this mapping."""
        keys, found = {id(tensor): key for key, tensor in self.items()}, {}
        wanted = self.tensors(sites, layers, requests)
        for run in self.runs:
            for tensor, data in run._several([tensor for tensor in wanted if tensor.run is run]):
                found[keys[id(tensor)]] = run._array(tensor, data, float32)
        return found

    @chooses
    def select(self, requests: Names = None, **chosen: Any) -> "Runs":
        """As Run.select(), a view of those that have what is chosen; @requests: by their names here. Names stay. Rows of cached tokens come from requests of the
        same run. KeyError where no run has what is asked for."""
        self._fill()
        places = {id(run): i for i, run in enumerate(self.runs)}
        found = self._each(requests, lambda run, own: (places[id(run)], run.select(own, **chosen)))
        view = Runs([run for _, run in found])
        view._names = {(i, own): name for i, (at, _) in enumerate(found) for (run, own), name in self._names.items() if run == at}
        view._taken = set(self._taken)
        return view

    @chooses
    def edits(self, requests: str | None = None) -> list:
        """As Run.edits(); @requests: by its name here. None: in rows of no request, of all runs."""
        return [edit for run, own in self._owners(requests) for edit in run.edits(own[0] if own else None)]

    # ---- runs that grow

    def refresh(self) -> bool:
        """As Run.refresh(): whether one of them has more."""
        return any([run.refresh() for run in self.runs])

    def finished(self, poll_s: float = 0.5, timeout_s: float | None = None) -> Iterator[Request]:
        """As Run.finished(), of all runs, until the last of them ends."""
        for i, request in growing.finished(self.runs, poll_s, timeout_s):
            yield self._named(i, request)


def _free(name: str, taken: Any) -> str:
    """@name, or where it is taken the first of NAME~2, NAME~3 ... that is not. NAME~2 itself goes on from there."""
    if name not in taken:
        return name
    numbered = NUMBERED.fullmatch(name)
    base, number = (numbered[1], int(numbered[2])) if numbered else (name, 1)
    while f"{base}~{number}" in taken or number == 1:
        number += 1
    return f"{base}~{number}"
