# SPDX-License-Identifier: Apache-2.0
"""dmi.edit(): what is written into tensors while a block runs (docs/edits.md).

    with dmi.edit("calm.safetensors", times=2, layers="11-26"):
        model.generate(**batch)
    # dmi.edit: calm at resid_post: 640 rows written of 640 due

The program is started with places, such as `dmi-run --write resid_post -- python your_script.py`. All processes of the command that capture are
asked, through the control sockets of their runs (vLLM computes in a process of its own). dmi-ctl, a process, reads the vectors, those of others by this program's Python.
"""
from __future__ import annotations

import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import adapters, calls, sources
from .saying import say
from .spelling import chooses

WAIT_S = 10.0  # for an answer, and for rows that are written yet
TEXTS = (".yaml", ".yml", ".json")


@dataclass
class Rows:
    """What became of the rows that an edit wanted: due = written + missed, by reason. unwritten: of how many processes all were missed. lacks: which layer, or
    pass of one, it is for, and no forward had. unseen: no tensor came to its place."""
    name: str
    site: str
    due: int = 0
    written: int = 0
    missed: dict[str, int] = field(default_factory=dict)
    lacks: str = ""
    unwritten: int = 0
    unseen: bool = True

    @property
    def pending(self) -> int:
        """Rows of which nothing is known yet."""
        return self.due - self.written - sum(self.missed.values())

    def __str__(self) -> str:
        text = f"{self.name} at {self.site}: {self.written} rows written of {self.due} due"
        if self.missed:
            text += "; missed: " + ", ".join(f"{n} {reason}" for reason, n in self.missed.items())
        if self.pending:
            text += f"; {self.pending} not written yet"
        if self.unwritten and self.written:
            text += f"; {self.unwritten} of the processes wrote none"
        if self.lacks:
            text += f"; {self.lacks}"
        if self.due or self.lacks:
            return text
        return text + (f": no tensor was tapped as {self.site}, and no kernel of it ran" if self.unseen else ": no request began in the block, or its layers or its pass are others")


class NotDone(RuntimeError):
    """The block ended, and an edit of it was not done; its text says which, and why. `rows` of the block has the numbers."""


class edit:
    """A block: requests that begin in it are computed with the edit.

    file      .safetensors, .npy, .gguf or .pt: a vector, which is added; .yaml or .json: edits, which say all of the rest themselves
    times     a number, {generated token: number}, or "tag:NAME"; None: 1
    layers    "0,3-7" or a number; None: those that the file has
    sites     a place; None: the only one
    requests  a pattern of ids, or "tag:KEY=PATTERN"; None: all
    tokens    "all", "prompt", "generated", "last_prompt", "A:B", "prompt[A:B]"; None: all
    pass_     of layers that run several times in a forward: which time, from 0; None: each
    layer_is  whose layers a vector for each layer has, as "resid_post", where the file does not say it
    As the block ends stderr has what was written, and `rows` {name: Rows}. Raises RuntimeError where the process has no place for edits, and ValueError
    where the edits have errors: then nothing is in force. At the block's end NotDone, a RuntimeError, where an edit wrote no row or lacks a layer, and
    RuntimeError where one cannot be taken out. An exception of the block's own goes on instead.
    """

    @chooses
    def __init__(self, file: str | os.PathLike, times: Any = None, layers: str | int | None = None, sites: str | None = None, requests: str | None = None,
                 tokens: str | None = None, layer_is: str | None = None, pass_: int | None = None) -> None:
        self.file, self.site, self.layer_is = pathlib.Path(file).absolute(), sites, layer_is
        self._more = {"layers": None if layers is None else str(layers), "requests": requests, "tokens": tokens, "pass": pass_}
        self._times, self._runs, self.rows = times, {}, {}
        if self._is_text and [times, sites, layer_is, *self._more.values()] != [None] * 7:
            raise ValueError(f"{file}: a file of edits says times, layers, sites, requests, tokens, pass and layer_is itself")

    @property
    def _is_text(self) -> bool:
        return self.file.suffix in TEXTS

    def __enter__(self) -> "edit":
        self._runs, self.rows = {}, {}
        try:
            for run in _runs():
                self._runs[run] = []
                self._add(run)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            self._settle(time.monotonic() + (WAIT_S if kind is None else 0))
        except RuntimeError as error:
            say(f"dmi.edit: what was written is not known: {error}")
        for rows in self.rows.values():
            say(f"dmi.edit: {rows}{_in_models()}")
        left = self._remove()
        if kind is not None:
            return
        if left:
            raise RuntimeError(f"still in force is {left[0]}")
        if failed := [str(rows) for rows in self.rows.values() if not self._is_done(rows)]:
            raise NotDone("; ".join(failed))

    def _is_done(self, rows: Rows) -> bool:
        """Or is nothing known yet? Of several edits one that wants some requests or tokens alone may find none."""
        if rows.lacks or rows.unwritten:
            return False
        return bool(rows.written or rows.pending) or not rows.due and any(other.written for other in self.rows.values())

    def _add(self, run: pathlib.Path) -> None:
        before = _ask(run, "edit list")
        there = {one["name"] for one in before["edits"]}
        if self._is_text:
            _add_file(run, self.file)
            self._runs[run] = [one["name"] for one in _ask(run, "edit list")["edits"] if one["name"] not in there]
        else:
            given = self._text(there, before["places"])
            with tempfile.NamedTemporaryFile("w", prefix="dmi-edit-", suffix=".json", encoding="utf-8") as text:
                json.dump(given, text)
                text.flush()
                _add_file(run, pathlib.Path(text.name), f"dmi.edit({str(self.file)!r})")
            self._runs[run] = [one["name"] for one in given["edits"]]

    def _text(self, taken: set[str], places: list[str]) -> dict:
        """The edit that the arguments stand for, at one place: at several the vector would be there several times."""
        if self.site is None and len(places) > 1:
            raise ValueError(f"{self.file}: the vector is added at one place: expected sites= with one of {', '.join(places)}")
        stem = re.sub(r"[^\w.-]", "-", self.file.stem, flags=re.ASCII) or "edit"
        name = next(name for name in itertools.chain([stem], (f"{stem}-{n}" for n in itertools.count(2))) if name not in taken)
        operation = {"add": "vector"} | ({} if self._times is None else {"times": self._times})
        edits = [{"name": name, "site": self.site or "".join(places), "do": [operation]} | {key: value for key, value in self._more.items() if value is not None}]
        vector = {"file": str(self.file)} | ({} if self.layer_is is None else {"layer_is": self.layer_is})
        return {"editspec": 1, "vectors": {"vector": vector}, "edits": edits}

    def _settle(self, end_s: float) -> None:
        """The accounts, once the device has written what was launched; after @end_s as they are."""
        while True:
            self.rows = {}
            for run, names in self._runs.items():
                for one in _ask(run, "edit list")["edits"]:
                    if one["name"] in names:
                        self._count(one)
            if time.monotonic() >= end_s or not any(rows.pending for rows in self.rows.values()):
                return
            time.sleep(0.02)

    def _count(self, one: dict) -> None:
        rows = self.rows.setdefault(one["name"], Rows(one["name"], one["site"]))
        rows.due, rows.written = rows.due + one["due"], rows.written + one["written"]
        rows.unwritten += 0 < one["due"] == sum(one["missed"].values())
        rows.unseen = rows.unseen and one.get("unseen", False)
        rows.lacks = one.get("lacks", "").partition('": ')[2]
        for reason, n in one["missed"].items():
            rows.missed[reason] = rows.missed.get(reason, 0) + n

    def _remove(self) -> list[str]:
        """What could not be removed, with the reason."""
        left = []
        for run, names in self._runs.items():
            for name in names:
                try:
                    _ask(run, f"edit remove {name}")
                except RuntimeError as error:
                    left.append(f"the edit {name}: {error}")
        self._runs = {}
        return left


def salt(request: str, tags: Mapping | str | None = None) -> str | None:
    """What vLLM's `cache_salt`, or SGLang's `extra_key`, of a request is to hold: text that differs where edits in force do other things in it. None: they do
    nothing there.

    @tags: of the request, as its adapter gives them. Raises RuntimeError where no process has places for edits.
    """
    answers = {_ask(run, " ".join(["edit", "salt", request, *filter(None, [adapters.text_of_tags(tags)])]))["salt"] for run in _runs()}
    if len(answers) > 1:
        raise RuntimeError("the command's processes have different edits in force: a request has no salt that suits all")
    return answers.pop()


def _in_models() -> str:
    """Where this process computes several models into which edits may write: which these are."""
    config = sys.modules.get("dmi.torch.config")
    names = config.edited() if config else []
    return f", in {', '.join(names)}" if len(names) > 1 else ""


# ------------------------------------------------------------------------- the processes that edit


def _runs() -> list[pathlib.Path]:
    """Runs that can be asked: this process's own, and those of the command's other processes. RuntimeError: there is none."""
    own, others = sources._runs()
    if not own and not others:
        calls.site_enable("", True)  # there is no such site; where a model is on the CPU, and was not tapped yet, the run begins
        own, others = sources._runs()
    if found := [run for run in [*own, *others] if _listens(run)]:
        return found
    program = sys.argv[0] if sys.argv[0] not in ("", "-c", "-m") else "prog.py"
    command = f"start the program with `dmi-run --write resid_post -- python {program}`"
    if not calls.loaded():
        raise RuntimeError(f"libdmi_preload.so is not in this process, so nothing can be edited: {command}")
    if own or others:
        raise RuntimeError(f"{(own or others)[0]} has no control socket: {command}")
    raise RuntimeError(f"{sources.out()} has no run of this program yet: a process has one once it uses CUDA, or where it has taps; bring the model to its device first, or {command}")


def _connected(run: pathlib.Path) -> socket.socket:
    folder, to = os.open(run, os.O_PATH | os.O_DIRECTORY), socket.socket(socket.AF_UNIX)
    try:
        to.settimeout(WAIT_S)
        to.connect(f"/proc/self/fd/{folder}/control")  # the path may be longer than an address has room for
        return to
    except BaseException:
        to.close()
        raise
    finally:
        os.close(folder)


def _listens(run: pathlib.Path) -> bool:
    """Not once the process has ended."""
    try:
        _connected(run).close()
        return True
    except OSError:
        return False


def _ask(run: pathlib.Path, line: str) -> dict:
    """The answer to a line; RuntimeError where it is a refusal."""
    if "\n" in line or "\r" in line:
        raise ValueError(f"{line!r}: a line of its own is expected")
    try:
        with _connected(run) as to:
            to.sendall(line.encode() + b"\n")
            with to.makefile(encoding="utf-8") as answers:
                answer = json.loads(answers.readline() or '{"error": "ended without an answer"}')
    except OSError as error:
        raise RuntimeError(f"{run}: its process cannot be asked: {error}") from error
    if not answer.get("ok"):
        raise RuntimeError(f"{run}: {answer.get('error')}")
    return answer


def _program() -> pathlib.Path:
    here = pathlib.Path(__file__).resolve().parent
    for folder in (here.parents[1] / "build" / "meson" / "tools", here.parents[3] / "bin", pathlib.Path(sys.prefix) / "bin"):  # as of libdmi_read.so.1
        if (folder / "dmi-ctl").exists():
            return folder / "dmi-ctl"
    if found := shutil.which("dmi-ctl"):
        return pathlib.Path(found)
    raise RuntimeError("dmi-ctl, which reads the files of vectors, is not in PATH")


def _reads_by(python: str, folder: str) -> dict[str, str]:
    """The environment in which the first python3 of PATH is @python, which is to read the files of others. Without the library."""
    beside, env = pathlib.Path(python).parent / "python3", {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if beside.exists() and os.path.samefile(beside, python):
        first = str(beside.parent)
    else:  # a link would lose the packages of its environment
        own = pathlib.Path(first := folder) / "python3"
        own.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n', encoding="utf-8")
        own.chmod(0o700)
    return env | {"PATH": f"{first}:{env.get('PATH', os.defpath)}"}


def _add_file(run: pathlib.Path, file: pathlib.Path, name: str | None = None) -> None:
    """`dmi-ctl RUN edit add FILE`. ValueError: with what it says. @name: takes the place of @file and of lines in it, which the program's author did not write."""
    def named(text: str) -> str:
        return re.sub(re.escape(str(file)) + r"(:\d+)*", lambda _: name, text) if name else text
    with tempfile.TemporaryDirectory(prefix="dmi-python-") as folder:
        env = _reads_by(sys.executable or "python3", folder)
        done = subprocess.run([_program(), "--json", run, "edit", "add", file], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        try:
            why = json.loads(done.stdout)["error"]
        except (ValueError, KeyError):
            why = done.stderr.strip() or f"dmi-ctl ended with {done.returncode}"
        raise ValueError(named(why))
    for line in named(done.stderr).splitlines():  # what the files say that is not used, layers that are left out
        if ": note: " in line:
            print(f"dmi.edit: {line.partition(': note: ')[2]}", file=sys.stderr)
