# SPDX-License-Identifier: Apache-2.0
"""Runs in the files of others, where that takes Python's packages; the other formats are those of `dmi-dump export`.

    with dmi.open("RUN") as run:
        done = dmi.export.speculators(run, "OUT", layers="2,15,27,last")
        print(done.requests, done.left_out)

What is selected (Run.select()) is what is written. numpy and pyarrow are imported where they are asked for. One thread at a time, as Run.
"""
from __future__ import annotations

import ctypes
import json
import os
import pathlib
import shutil
import tempfile
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from ..dtypes import BYTES, IN_NUMPY, IN_SAFETENSORS
from ..spelling import chooses
from .structs import DAMAGED, INCOMPLETE, LACKS_ROWS, _Row
from ..torch.names import layer_words, layers_of

if TYPE_CHECKING:
    from .reading import Request, Run, Tensor

AT_A_TIME = 8 << 20  # bytes that are decoded together
IDS, HIDDEN, FINAL = "token_ids", "resid_pre", "resid_final"


class ExportError(ValueError):
    """What was asked for cannot be written; its text says why."""


@dataclass
class Exported:
    """Ids of the requests in the order of the samples, a sentence for each that is left out, how many were left out for what kind of reason,
    {request: those whose rows its cached tokens have}, how many of those written have no token in the loss (their loss_mask is 0 throughout), and
    {request: what edits wrote in it, in words}."""
    requests: list = field(default_factory=list)
    left_out: list = field(default_factory=list)
    reasons: dict = field(default_factory=dict)
    filled: dict = field(default_factory=dict)
    without_loss: int = 0
    edited: dict = field(default_factory=dict)

    def __str__(self) -> str:
        reasons = ", ".join(f"{n} {reason}" for reason, n in self.reasons.items())
        filled = f" ({len(self.filled)} with rows of other requests)" if self.filled else ""
        loss = f"; {self.without_loss} of those written without a token in the loss" if self.without_loss else ""
        edited = f"; edits wrote in {len(self.edited)} of those written" if self.edited else ""
        return f"samples: {len(self.requests)} written{filled}, {len(self.left_out)} left out" + (f" ({reasons})" if reasons else "") + loss + edited


class _Fault(Exception):
    """Why one request cannot be a sample. @kind: one of structs.SAMPLE_FAULTS."""

    def __init__(self, why: str, kind: str = INCOMPLETE) -> None:
        super().__init__(why)
        self.kind = kind


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("this needs the package pyarrow (pip install pyarrow)") from error
    return pyarrow


# ------------------------------------------------------------------------- where to


def outside(path: str | os.PathLike, run: Run) -> pathlib.Path:
    """@path, absolute. ExportError: it lies in the run."""
    path, source = pathlib.Path(path).resolve(), pathlib.Path(run.path).resolve()
    source = source if source.is_dir() or not (source.parent / "manifest.json").exists() else source.parent
    if path == source or source in path.parents:
        raise ExportError(f"{path} lies in the run itself: an export there would damage the capture")
    return path


class Folder:
    """A new folder, under a temporary name until all of it is there. It must be empty, and outside of the run."""

    def __init__(self, path: str | os.PathLike, run: Run) -> None:
        self.path = outside(path, run)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ExportError(f"{path} is no empty folder: its files would be taken for part of this export")

    def __enter__(self) -> pathlib.Path:
        self._temporary = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.path.name}.partial-", dir=self.path.parent))
        return self._temporary

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            os.replace(self._temporary, self.path)
        else:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _to_disk(folder: pathlib.Path) -> None:
    """All that was written below it, at once: syncfs(2). A flush of each file takes its disk as long."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)


# ------------------------------------------------------------------------- rows


def _blocks(tensor: Tensor) -> Iterator[tuple[int, bytearray]]:
    """(first row, rows as they were captured), a few MiB at a time. _Fault: some are damaged."""
    step = max(AT_A_TIME // max(tensor.row_bytes, 1), 1)
    for first in range(0, len(tensor), step):
        n = min(step, len(tensor) - first)
        data, rows = bytearray(n * tensor.row_bytes), (_Row * n)()
        tensor._read(first, n, data, rows)
        if any(row.flags & DAMAGED for row in rows):
            raise _Fault(f"{tensor.name} is damaged", LACKS_ROWS)
        yield first, data


def _positions(tensor: Tensor) -> list:
    """Of its rows, -1 where they are not known."""
    rows = (_Row * max(len(tensor), 1))()
    tensor._read(0, len(tensor), None, rows)
    return [row.position for row in rows[:len(tensor)]]


# ------------------------------------------------------------------------- layers


def choose_layers(text: str | Sequence | None, stock: Sequence[int], last: str | int | None) -> list:
    """Layers in the order in which they are named. @text: "2,7-12,last", a list, None: all that there are; @last: what "last" means. KeyError, ValueError."""
    if text is None:
        return [*stock, *(["last"] if last == "last" else [])]
    n_layers, chosen = (stock[-1] + 1 if stock else 0), []
    for word in layer_words(text):
        means = [last] if word == "last" and last is not None else [k for k in layers_of(word, n_layers) if k in stock] if word != "last" else []
        if not means:
            raise KeyError(f"layers: '{word}' was not captured: there are {', '.join(map(str, stock)) or 'none'}" + (", and last" if last is not None else ""))
        chosen += means
    if len(set(chosen)) < len(chosen):
        raise ExportError("layers: a layer is in the list twice")
    return chosen


# ------------------------------------------------------------------------- a sample


def _of_requests(run: Run) -> dict:
    """{request: {site: {layer: tensor}}}, requests in the order of their first steps."""
    found: dict = {request.id: {} for request in run.requests}
    for tensor in run.values():
        found.setdefault(tensor.request, {}).setdefault(tensor.site.name, {})[tensor.layer] = tensor
    return {request: sites for request, sites in found.items() if sites}


def _tensors(sites: dict, site: str, layers: Sequence) -> list[Tensor]:
    """The ids, then the layers; _Fault: they are no sample."""
    ids = next(iter(sites.get(IDS, {}).values()), None)
    if ids is None:
        raise _Fault(f"{IDS} is not there")
    found = [ids]
    for layer in layers:
        tensor = next(iter(sites.get(FINAL, {}).values()), None) if layer == "last" else sites.get(site, {}).get(layer)
        if tensor is None:
            raise _Fault(f"layer {layer} is not there")
        found.append(tensor)
    for tensor in found:
        _check(tensor, ids, found[1])
    return found


def _check(tensor: Tensor, ids: Tensor, like: Tensor) -> None:
    """_Fault: it cannot be the ids, or a layer beside @like."""
    fault = tensor.run.sample_fault(tensor)
    if fault:
        raise _Fault(f"{tensor.name} {fault[1]}", fault[0])
    if tensor is ids:
        if tensor.row_bytes != BYTES[tensor.dtype] or tensor.dtype[0] not in "iu":
            raise _Fault(f"{IDS} is no integer a token")
        return
    if tensor.dtype != like.dtype or tensor.row_bytes != like.row_bytes:
        raise _Fault(f"{tensor.name} has another element type or width than the layers before it")
    if tensor.site.scale not in (0, 1) and not tensor.dtype.startswith("f8"):
        raise _Fault(f"{tensor.name} was captured with a scale, which this layout cannot say")


def _mask(request: Request | None, positions: Sequence[int]) -> list[int]:
    """0 for tokens of the prompt, 1 for those generated; _Fault: it is not known which are which."""
    if request is None or (request.n_prompt is None and (request.n_other or not request.n_prefill)) or -1 in positions:
        raise _Fault("it is not known where its generation begins")
    return [0 if request.n_prompt is None or p < request.n_prompt else 1 for p in positions]


def _read_ids(tensor: Tensor) -> Any:
    from ..numeric import numpy
    parts = [numpy.frombuffer(data, IN_NUMPY[tensor.dtype]).astype("<i8") for _, data in _blocks(tensor)]
    return numpy.concatenate(parts) if parts else numpy.zeros(0, "<i8")


def _plain(request: str) -> str:
    return os.fsencode(request).decode(errors="replace")


def _about(run: Run, request: str | None, layers: Sequence[Tensor]) -> dict:
    """What speculators does not write: strings only."""
    filled = {tensor.name: [(first, n, _plain(donor)) for first, n, donor in tensor.donors] for tensor in layers if tensor.donors}
    about = {"format": "pt", "producer": "dmi", "run": run.uuid, "request": _plain(request or ""),
             "layers": json.dumps([tensor.name for tensor in layers])}
    if edits := run.edits(request):
        about["edits"] = json.dumps([edit.text for edit in edits])
    return {**about, "filled": json.dumps(filled)} if filled else about


def _scales(layers: Sequence[Tensor], n: int) -> Any:
    """What stored values are multiplied by, [tokens, 1 or layers, 1]: with 8-bit floats. None: with others, which have no scale."""
    from ..numeric import numpy
    if not layers[0].dtype.startswith("f8"):
        return None
    each = [1 / (tensor.site.scale or 1) for tensor in layers]
    return numpy.tile(numpy.array(each[:1] if len(set(each)) == 1 else each, "<f4")[None, :, None], (n, 1, 1))


def _header(about: dict, hidden: Tensor, n_layers: int, scales: Any) -> bytes:
    """Of a safetensors file with token_ids and hidden_states. Source: https://github.com/huggingface/safetensors, "Format"."""
    n = len(hidden)
    entries: dict = {"__metadata__": about, "token_ids": {"dtype": "I64", "shape": [n], "data_offsets": [0, 8 * n]}}
    first = 8 * n
    if scales is not None:
        entries["hidden_states_scales"] = {"dtype": "F32", "shape": list(scales.shape), "data_offsets": [first, first + scales.nbytes]}
        first += scales.nbytes
    entries["hidden_states"] = {"dtype": IN_SAFETENSORS[hidden.dtype],
                                "shape": [n, n_layers, hidden.row_bytes // BYTES[hidden.dtype]],
                                "data_offsets": [first, first + n_layers * n * hidden.row_bytes]}
    text = json.dumps(entries, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_sample(path: pathlib.Path, about: dict, ids: Any, layers: Sequence[Tensor]) -> None:
    """Rows go where they belong as they are decoded: the file is never in memory."""
    from ..numeric import numpy
    n, row_bytes, scales = len(ids), layers[0].row_bytes, _scales(layers, len(ids))
    with open(path, "xb") as file:
        file.write(_header(about, layers[0], len(layers), scales))
        file.write(ids.tobytes())
        file.write(b"" if scales is None else scales.tobytes())
        first = file.tell()
        file.truncate(first + n * len(layers) * row_bytes)
    if not n * row_bytes:
        return
    place = numpy.memmap(path, "u1", "r+", first, (n, len(layers), row_bytes))
    for k, tensor in enumerate(layers):
        for at, data in _blocks(tensor):
            rows = numpy.frombuffer(data, "u1").reshape(-1, row_bytes)
            place[at:at + len(rows), k] = rows


# ------------------------------------------------------------------------- speculators


def _survey(run: Run, site: str) -> tuple[list, str | int | None]:
    """(layers of the site, what "last" means)"""
    stock = sorted({t.layer for t in run.values() if t.layer is not None and t.site.name == site})
    has_final = any(t.site.name == FINAL for t in run.values())
    if not any(t.site.name == IDS for t in run.values()):
        raise ExportError(f"nothing of a site {IDS} is there: a sample has the tokens' ids beside their hidden states")
    last = ("last" if has_final else None) if site == HIDDEN else stock[-1] if stock else None
    if not stock and last is None:
        raise ExportError(f"nothing of a site {site} is there to be hidden_states")
    return stock, last


def _write_dataset(folder: pathlib.Path, samples: Sequence[tuple]) -> None:
    """What datasets.load_from_disk() reads, as torch tensors; the features follow from the Arrow schema."""
    arrow = _arrow()
    schema = arrow.schema([("input_ids", arrow.list_(arrow.int64())), ("loss_mask", arrow.list_(arrow.int64())), ("seq_len", arrow.int64())])
    name = "data-00000-of-00001.arrow"
    with arrow.OSFile(str(folder / name), "wb") as sink, arrow.ipc.new_stream(sink, schema) as writer:
        for ids, mask in samples:
            writer.write_batch(arrow.record_batch([arrow.array([ids], schema.types[0]), arrow.array([mask], schema.types[1]),
                                                   arrow.array([len(ids)], schema.types[2])], schema=schema))
    (folder / "dataset_info.json").write_text(json.dumps({"citation": "", "description": "", "homepage": "", "license": ""}))
    (folder / "state.json").write_text(json.dumps({
        "_data_files": [{"filename": name}], "_fingerprint": uuid.uuid4().hex[:16], "_format_columns": None, "_format_kwargs": {}, "_format_type": "torch",
        "_output_all_columns": False, "_split": None}))


@chooses
def speculators(run: Run, out: str | os.PathLike, layers: str | Sequence | None = None, sites: str = HIDDEN) -> Exported:
    """A folder that speculators' ArrowDataset takes: OUT/hidden_states/hs_{i}.safetensors beside a dataset of input_ids, loss_mask, seq_len.

    layers  as `dmi-dump export --format vllm --layers`; the last one named is the verifier's. None: all, "last" at the end
    sites   whose layers: a residual stream that enters layer k, whose "last" is resid_final; of another site the highest layer

    loss_mask is 0 for tokens of the prompt and 1 for those generated, as the engine said where generation begins, or by the first step that
    decodes; a request that only prefilled has 0 throughout, and the last line counts
    such samples. hidden_states keep the type that was captured; 8-bit floats have hidden_states_scales
    beside them, which speculators' FP8Transfer multiplies by. Requests that lack a layer, a token,
    or the knowledge where generation begins, and damaged ones, are left out by a sentence. ExportError, ImportError (no pyarrow).
    """
    _arrow()
    chosen = choose_layers(layers, *_survey(run, sites))
    done, samples, by_id = Exported(), [], {request.id: request for request in run.requests}
    with Folder(out, run) as folder:
        (folder / "hidden_states").mkdir()
        for name, there in _of_requests(run).items():
            if not {IDS, sites, FINAL} & set(there):
                continue
            path = folder / "hidden_states" / f"hs_{len(samples)}.safetensors"
            try:
                tensors = _tensors(there, sites, chosen)
                mask, ids = _mask(by_id.get(name), _positions(tensors[0])), _read_ids(tensors[0])
                _write_sample(path, _about(run, name, tensors[1:]), ids, tensors[1:])
            except _Fault as fault:
                path.unlink(missing_ok=True)
                done.left_out.append(f"request '{name}' is left out: {fault}" if name is not None else f"rows without a request are left out: {fault}")
                done.reasons[fault.kind] = done.reasons.get(fault.kind, 0) + 1
                continue
            samples.append((ids, mask))
            done.without_loss += 1 not in mask
            done.requests.append(name)
            if donors := list(dict.fromkeys(donor for tensor in tensors for _, _, donor in tensor.donors)):
                done.filled[name] = donors
            if edits := run.edits(name):
                done.edited[name] = [edit.text for edit in edits]
        if not samples:
            raise ExportError("; ".join(["no request has all that a sample needs", *done.left_out[:20]]))
        _write_dataset(folder, samples)
        _to_disk(folder)
    return done
