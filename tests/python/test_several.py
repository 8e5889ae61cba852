# SPDX-License-Identifier: Apache-2.0
"""dmi.open() of several runs: each tensor is that of its own run, whatever ids they share."""
import pickle
import subprocess
import time
import warnings

import numpy as np
import pytest

import dmi
from dmi import collecting, sources
from harness import BUILD

MAKE_SCHEDULE, LIBRARY = BUILD / "tests" / "unit" / "make_schedule", BUILD / "read" / "libdmi_read.so.1"
pytestmark = pytest.mark.built(MAKE_SCHEDULE, LIBRARY)


@pytest.fixture(autouse=True)
def fixture_library(monkeypatch):
    monkeypatch.setenv("DMI_READ_LIBRARY", str(LIBRARY))


def made(folder, lines, *ranks):
    subprocess.run([MAKE_SCHEDULE, folder, "job", *(ranks or ("0", "1")), "0", "1"], input="\n".join(lines) + "\n", text=True, check=True, stdout=subprocess.PIPE,
                   timeout=60)
    return folder


def make(folder, requests, value):
    """A run of requests of 2 tokens, whose every element is @value + their place; each ends."""
    lines = []
    for i, name in enumerate(requests):
        put = " ".join([str(value + i)] * 4)
        lines += [f"step {i} 2 {name}:0:2:0:1:2:0", f"put 2 0 2 i32 {put}", f"put 2 1 2 i32 {put}", f"end {name} 1"]
    return made(folder, lines)


@pytest.fixture(name="paths")
def fixture_paths(tmp_path):
    """Ids that occur in both, within one, and as another's number."""
    return [make(tmp_path / "a", ["r", "s", "r~3"], 10), make(tmp_path / "b", ["r", "r", "t"], 20), make(tmp_path / "c", ["r"], 30)]


NAMES = ["r", "s", "r~3", "r~2", "r~4", "t", "r~5"]
VALUES = [10, 11, 12, 20, 21, 22, 30]


def test_ids_stay_apart(check, paths):
    with dmi.open(paths) as runs:
        check([request.id for request in runs.requests] == NAMES, "each request has a name of its own", runs.requests)
        check([request.run for request in runs.requests] == [*runs.runs[:1] * 3, *runs.runs[1:2] * 3, runs.runs[2]], "and knows its run")
        check([int(request.tensors["h.1"][0][0]) for request in runs.requests] == VALUES, "and its tensors")
        check(list(runs) == [f"{name}/h.{layer}" for name in ("r", "r~3", "s", "r~2", "r~4", "t", "r~5") for layer in range(2)], "keys", [*runs])
        check(all(np.all(runs[f"{name}/h.1"].numpy() == value) for name, value in zip(NAMES, VALUES)), "values by key")
        loaded = runs.load(sites="h", layers=0)
        check({key: int(rows[0][0]) for key, rows in loaded.items()} == {f"{name}/h.0": value for name, value in zip(NAMES, VALUES)}, "all of them at once", loaded)
        one, = runs.tensors("h", 1, requests="r~4")
        check((one.run, one.key, int(one[0][0])) == (runs.runs[1], "r~2/h.1", 21), "by its name here; it has its own in its run", one)
        found = runs.tensors("h", 1, requests=["t", "r~4", "s"])
        check([int(tensor[0][0]) for tensor in found] == [11, 21, 22], "several, in the order of the runs", found)
        view = runs.select(tokens=(1, 2))
        check({key: tensor.positions for key, tensor in view.items()} == {key: [1] for key in runs}, "rows are selected in all")
        check({len(tensor.positions) for tensor in runs.values()} == {2}, "and these are as they were", runs["t/h.0"].positions)
        again = pickle.loads(pickle.dumps(view))
        check(list(again) == list(view) and again["t/h.0"].positions == [1], "in another process", [*again])
        some = runs.select(["t", "r~4", "r~3"], layers=1)
        check({key: int(tensor[0][0]) for key, tensor in some.items()} == {"r~3/h.1": 12, "r~4/h.1": 21, "t/h.1": 22}, "requests by their names here", [*some])
        check([int(tensor[0][0]) for tensor in some.select("t").values()] == [22], "and in a view of a view")


def test_what_there_is_none_of(check, paths, tmp_path):
    with dmi.open(paths) as runs:
        for what, name in (({"requests": "s~2"}, "s"), ({"sites": "hh"}, "h"), ({"requests": "q"}, "q")):
            with pytest.raises(KeyError, match=name):
                runs.tensors(**what)
        with pytest.raises(KeyError, match="near it: .*r~2/h.1"):
            runs["r~2/hh.1"]
        with pytest.raises(ValueError, match="no name"):
            runs.tensors(requests=[])
    with pytest.raises(OSError, match="nowhere"):
        dmi.open([*paths, tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="no runs"):
        dmi.open([])


def test_requests_that_ended(check, paths):
    with dmi.open(paths) as runs:
        check([(request.id, int(request.tensors["h.0"][0][0])) for request in runs.finished()] == list(zip(NAMES, VALUES)), "of all runs, each once")
        check(not runs.refresh() and [request.id for request in runs.requests] == NAMES, "names stay")


@pytest.fixture(name="command")
def fixture_command(tmp_path, monkeypatch):
    """The folder of a command's runs, in a process that computes nothing itself."""
    monkeypatch.setenv("DMI_OUT", str(tmp_path))
    monkeypatch.setenv("DMI_JOB", "job")
    monkeypatch.setattr(dmi.calls, "loaded", lambda: True)
    return tmp_path


def test_a_block_over_ranks(check, command):
    """Columns of q are divided over two ranks."""
    lines = ["step 7 2 r:0:2:0:1:2:0", "rec 0 1 {} 4 1", "end r 1"]
    with dmi.collect() as got:
        for rank in range(2):
            made(command, [line.format(4 * rank) for line in lines], str(rank), "2")
    check(list(got) == ["r"] and got["r"].q[1].shape == (2, 8), "one request, its columns joined", got)
    check(np.array_equal(got[0].q[1][1] - got[0].q[1][1][0], np.arange(8)), "in their order", got[0].q[1])


def test_a_block_over_engines(check, command):
    """Two engines of one command, each with its own requests, some of which have one id; what another command left there does not count."""
    subprocess.run([MAKE_SCHEDULE, command, "another", "0", "1", "0", "1"], input="step 0 1 r:0:1:0:1:1:0\nput 2 0 1 i32 5\n", text=True, check=True, timeout=60)
    make(command, ["r"], 9)
    with dmi.collect("h", "last") as got:
        make(command, ["r", "s"], 10)
        make(command, ["r"], 20)
    check({name: int(one.h[1][0, 0]) for name, one in got.items()} == {"r": 10, "s": 11, "r~2": 20}, "those that began in the block", got)
    check(got["r~2"].h[1].dtype == np.int32 and got["r~2"].request.id == "r", "integers stay integers; the request has its own id", got["r~2"].request)
    with dmi.collect("h", "last") as got:
        make(command, ["t"], 30)
    check(list(got) == ["t"], "a later block has its own", got)


def test_true_values(check, command):
    """resid_mid of layer 0 has entries with scales of 4 and 2; f64 stays what it is."""
    lines = ["step 0 1 r:0:1:0:1:2:0", "put 7 0 2 f32 8 12", "step 1 1 r:0:1:1:2:2:0", "put 11 0 2 f32 8 12", "put 5 0 2 f64 0.1 3", "put 5 1 2 bf16 1.5 3", "end r 1"]
    with dmi.collect() as got:
        subprocess.run([MAKE_SCHEDULE, command, "job", "0", "1", "0", "1", "hidden"], input="\n".join(lines) + "\n", text=True, check=True, timeout=60)
    mid, pre = got[0].resid_mid[0], got[0].resid_pre
    check(mid.tolist() == [[2, 3], [4, 6]] and mid.dtype == np.float32, "each row by its own scale", mid)
    check(pre[0].tolist() == [[0.1, 3]] and pre[1].tolist() == [[1.5, 3]] and pre[1].dtype == np.float32, "types", dict(pre))


def test_layers_of_which_there_is_nothing_yet(check, command):
    since = time.time_ns()
    made(command, ["step 0 2 r:0:2:0:1:2:0", "drop 2 0 4", "drop 0 0 1", "end r 1"])
    source = sources.Source(command)
    begun = source.begun(since)
    check(source.missing(begun, {"r": []}, {"h", "head"}, {1, 3}, {1, 3}) == [f"request r, h.{layer}, positions 0-1" for layer in (1, 3)],
          "layers that are asked for; of a site without records none are missing", source.run.accounts)
    check([collecting._layers(text, there, highest, False) for text, there, highest in (("1,3", set(), -1), ("0-1,last", set(), -1), ("0,last", {0, 2}, 2))]
          == [{1, 3}, {0, 1}, {0, 2}], "they may come")
    for text, kind in (("9", KeyError), ("last-7", KeyError), ("x", ValueError)):
        with pytest.raises(kind):
            collecting._layers(text, {0, 2}, 2, True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with dmi.collect("h"):
            made(command, ["step 0 2 s:0:2:0:1:2:0", "drop 2 0 4", "end s 1"])
    check("request s, h, positions 0-1 (records that h dropped in the run: ring_full 4)" in str(said[0].message), "where none came, all are named", [*map(str, said)])


def test_ranks_beside_another_command(check, command):
    """One began before the block, one after the ranks: neither is read, though the folder's latest is another's."""
    def another(value):
        subprocess.run([MAKE_SCHEDULE, command, f"another-{value}", "0", "1", "0", "1"], input=f"step {value} 1 r:0:1:0:1:1:0\nput 2 0 1 i32 {value}\n", text=True, check=True,
                       stdout=subprocess.PIPE, timeout=60)
    another(5)
    with dmi.collect() as got:
        for rank in range(2):
            made(command, ["step 7 2 r:0:2:0:1:2:0", f"rec 0 1 {4 * rank} 4 1", "end r 1"], str(rank), "2")
        another(8)
    check(list(got) == ["r"] and got["r"].q[1].shape == (2, 8) and set(dict(got["r"])) == {"q"}, "the command's ranks, joined", {name: dict(one) for name, one in got.items()})
