#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that reads what it computes: collect_client.py WHAT. Each function below is a WHAT; it prints lines of JSON: [holds, what, detail]."""
import ctypes
import json
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time
import types
import warnings

import numpy as np

import dmi
from dmi import taps
from model_runners import Device

WIDTH, LAYERS = 4, 4


def check(holds, what, detail=""):
    print(json.dumps([bool(holds), what, str(detail)]), flush=True)


def rows_of(number, layer, first, n):
    """Values that say whose they are: [row, WIDTH]"""
    return np.repeat(np.arange(first, first + n, dtype=np.float32)[:, None] + 100 * number + layer / 8, WIDTH, 1)


class Engine:
    """Requests whose rows are rows_of(); each generate() is a batch of them."""

    def __init__(self):
        self.device, self.n_steps, self.n_requests = Device(), 0, 0

    def step(self, batch, position, n, layers=LAYERS):
        """@batch: {id: number}. @n rows of each, from @position on."""
        spans = [dmi.Span(name, position, n, i * n, n_prompt=3) for i, name in enumerate(batch)]
        assert dmi.step_begin(self.n_steps, spans) == 0
        self.n_steps += 1
        for layer in range(layers):
            self.device.tap("resid_post", np.concatenate([rows_of(number, layer, position, n) for number in batch.values()]), layer)
        self.device.tap("resid_final", np.concatenate([rows_of(number, LAYERS, position, n) for number in batch.values()]))
        dmi.step_end()

    def generate(self, *ids, n=3):
        batch = {name: self.n_requests + i for i, name in enumerate(ids)}
        self.n_requests += len(ids)
        self.step(batch, 0, 3)
        for position in range(3, 3 + n):
            self.step(batch, position, 1)
        for name in ids:
            dmi.request_end(name, dmi.End.LENGTH)
        return batch


def same(got, name, number, layer, first=0, n=6):
    return np.array_equal(np.asarray(got[name].resid_post[layer]), rows_of(number, layer, first, n))


def raised(kinds, body):
    try:
        body()
    except kinds as error:
        return str(error)
    return ""


def plain():
    engine = Engine()
    engine.generate("before")
    with dmi.collect(sites=["resid_post"], layers="0,2-3") as got:
        inside = raised(RuntimeError, lambda: got["france"])
        engine.generate("france", "spain")
        engine.generate("italy", n=1)
    check("has ended" in inside, "within the block nothing is there yet", inside)
    check(list(got) == ["france", "spain", "italy"] and len(got) == 3, "the requests that began in the block, in their order", list(got))
    check(got[0] is got["france"] and got[-1].id == "italy", "a request is taken by its place, too", got)
    check(got[types.SimpleNamespace(request_id="spain")] is got["spain"], "an engine's output stands for its request", got)
    check(list(got["france"].resid_post) == [0, 2, 3] and list(got["france"]) == ["resid_post"], "sites and layers are those asked for", dict(got["france"]))
    check(all(same(got, name, i + 1, layer) for i, name in enumerate(("france", "spain")) for layer in (0, 2, 3)), "each row is its request's")
    check(same(got, "italy", 3, 3, n=4) and got["italy"].positions("resid_post", 3) == [0, 1, 2, 3], "and stands at its position", got["italy"].resid_post[3])
    check(isinstance(got[0].resid_post[0], np.ndarray) and got[0].resid_post[0].dtype == np.float32, "numpy's, without torch")
    check(got["france"].request.n_generated == 3 and got["france"].request.reason == "length", "what the engine said of it", got["france"].request)
    with dmi.collect() as everything:
        engine.generate("france")
    check(list(everything) == ["france~2"] and list(everything[0]) == ["resid_post", "resid_final"], "an id that comes again is another request",
          (list(everything), list(everything[0])))
    check(np.array_equal(everything[0].resid_final, rows_of(4, LAYERS, 0, 6)), "a site without layers is an array")
    check(same(got, "france", 1, 0), "arrays of an earlier block stay")


def names():
    engine = Engine()
    engine.generate("first")

    def collect(**more):
        with dmi.collect(**more) as got:
            engine.generate("france")
        return got
    said = raised(KeyError, lambda: collect(sites="resid_pots"))
    check("near it: resid_post" in said, "a site that is not captured has the nearest names", said)
    said = raised(KeyError, lambda: collect(sites="resid_post", layers="1,7-9"))
    check("'7-9'" in said and "there are 0, 1, 2, 3" in said, "a layer has those that there are", said)
    got = collect(sites="resid_p*, resid_final", layers=["last", 0])
    check(list(got[0].resid_post) == [0, 3] and list(got[0]) == ["resid_post", "resid_final"], "patterns, last, numbers", dict(got[0]))
    said = raised(KeyError, lambda: got["frence"]), raised(KeyError, lambda: got[0]["resid_pst"]), raised(KeyError, lambda: got[0].resid_post[2])
    check("began in the block" in said[0] and "resid_post" in said[1] and "there are 0, 3" in said[2], "what a block has not", said)
    check(not hasattr(got[0], "q") and raised(IndexError, lambda: got[1]), "an attribute that is no site is none")
    said = raised(ZeroDivisionError, lambda: collect_and(lambda: 1 // 0))
    check(said, "what a block raises goes on")


def collect_and(body):
    with dmi.collect():
        body()


def partly():
    """A request that began before the block is not of it, nor is one without steps."""
    engine = Engine()
    engine.step({"old": 0}, 0, 3)
    with dmi.collect() as got:
        engine.step({"old": 0, "new": 1}, 3, 1)
    check(list(got) == ["new"] and got["new"].positions("resid_post", 1) == [3], "requests that began in the block", list(got))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with dmi.collect() as got:
            engine.device.tap("resid_post", rows_of(0, 0, 0, 1), 0)
    check(list(got) == [] and len(said) == 1 and "no request began" in str(said[0].message) and "dmi.huggingface" in str(said[0].message) and
          said[0].filename == __file__, "rows that belong to no request are said", [str(one.message) for one in said])


    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with dmi.collect(sites="resid_post") as got:
            engine.step({"untapped": 2}, 0, 1, layers=0)
    check(list(got) == ["untapped"] and len(said) == 1 and "no rows of untapped were captured at resid_post" in str(said[0].message), "a request without rows",
          [str(one.message) for one in said])


def threads():
    engine, other, found = Engine(), threading.Barrier(2), {}

    def block(name):
        with dmi.collect(sites="resid_post") as got:
            other.wait()
            with lock:
                engine.device.cuda.cuCtxSetCurrent(engine.device.context)
                engine.generate(name)
        found[name] = got
    lock = threading.Lock()
    both = [threading.Thread(target=block, args=(name,)) for name in ("a", "b")]
    for one in both:
        one.start()
    for one in both:
        one.join()
    check(all(name in found[name] and len(found[name][name].resid_post) == LAYERS for name in "ab"), "blocks of several threads each have their own", found)


def many():
    """DMI_SEGMENT_BYTES is small: the run is in many segments."""
    engine, wrong = Engine(), []
    for i in range(30):
        with dmi.collect(sites="resid_post", layers="last") as got:
            engine.generate(f"r{i}")
        wrong += [] if list(got) == [f"r{i}"] and same(got, f"r{i}", i, 3) else [i]
    check(not wrong, "each block has its own request", wrong)


def late():
    """A copy of 250 rows to the host takes 0.4 s here, and the last one of a block begins when the block ends."""
    engine, found = Engine(), []

    def block():
        with dmi.collect(sites="resid_post,resid_final", layers=1, timeout_s=0.02) as got:
            found.append(got)
            engine.step({"france": 0}, 0, 3, layers=2)
            assert dmi.flush(60) == 0
            engine.step({"france": 0}, 3, 250, layers=0)
    said = raised(TimeoutError, block)
    check("request france, resid_final, positions 3-252" in said and "0.02 s" in said, "it names request, site and positions", said)
    check(same(found[0], "france", 0, 1, n=3) and found[0]["france"].positions("resid_final") == [0, 1, 2], "what is there can be had", found[0]["france"])


def dropped():
    """The ring is small, copies to the host are slow, and launches do not wait for them."""
    engine = Engine()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with dmi.collect(sites="resid_post", layers="0-1") as got:
            for i in range(8):
                engine.step({"france": 0}, 500 * i, 500)
    said, there = [str(one.message) for one in said], {layer: got["france"].positions("resid_post", layer) for layer in got["france"].resid_post}
    check(all(np.array_equal(got["france"].resid_post[layer], rows_of(0, layer, 0, 4000)[positions]) for layer, positions in there.items()), "what was captured is there", there)
    lacks = {layer for layer in (0, 1) if len(there.get(layer, ())) < 4000}
    check(lacks and len(said) == 1 and all((f"request france, resid_post.{layer}, positions " in said[0]) == (layer in lacks) for layer in (0, 1)) and
          "shed" in said[0], "what was dropped is named, with the reason", said)
    check(len(got.dropped) == len(lacks) and f"resid_post.{min(lacks)}" in got.dropped[0], "and can be had", got.dropped)


def put(cuda, name, values, layer, is_shared=False):
    """Tap a copy of @values [row, column]; @is_shared: in memory that another process may write."""
    address = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(values.nbytes)) == 0
    assert cuda.cuMemcpyHtoD_v2(address, ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes)) == 0
    assert not is_shared or cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), address) == 0
    assert taps.send(name, address.value, 0, taps.DTYPES[str(values.dtype)], values.shape, (values.shape[1], 1), values.itemsize, 1, layer, LAYERS) == 0


def experts():
    """Layer 0 has ids and weights, layer 1 ids alone, layer 2 the router's logits; of layer 3 a weight's row is missing."""
    cuda = Device().cuda
    logits = np.array([[1, 3, 2, 3], [0, -1, 5, 4], [9, 9, 9, 9]], np.float32)
    ids, weights = np.array([[1, 3], [2, 3], [0, 1]]), np.array([[.5, .25], [.75, .125], [.5, .5]], np.float32)

    for first, n in ((0, 2), (2, 1)):
        dmi.step_begin(first, [dmi.Span("france", first, n, n_prompt=2)])
        rows = slice(first, first + n)
        put(cuda, "topk_ids", ids[rows].copy(), 0)
        put(cuda, "topk_weights", weights[rows].copy(), 0)
        put(cuda, "topk_ids", ids[rows].astype(np.int32), 1)
        put(cuda, "router_logits", logits[rows].copy(), 2)
        put(cuda, "topk_ids", ids[rows].copy(), 3)
        if not first:
            put(cuda, "topk_weights", weights[rows].copy(), 3)
        dmi.step_end()
    assert dmi.flush(10) == 0
    with dmi.open(os.environ["DMI_OUT"]) as run:
        request, = run.requests
        found = request.experts(0)
        check(np.array_equal(found.ids, ids) and np.array_equal(found.weights, weights) and found.weights.dtype == np.float32, "as captured", found)
        found_ids, found_weights = request.experts(1, k=2)
        check(np.array_equal(found_ids, ids) and found_ids.dtype == np.int64 and found_weights is None, "ids without weights", found_ids)
        found = request.experts(2, k=2)
        e = np.exp
        wanted = np.array([[.5, .5], [1 / (1 + e(-1)), 1 / (1 + e(1))], [.5, .5]])
        check(np.array_equal(found.ids, ids) and np.allclose(found.weights, wanted), "from the logits: of equal ones the first", found)
        whole = e(logits.astype(float)) / e(logits.astype(float)).sum(1, keepdims=True)
        check(np.allclose(request.experts(2, 2, normalize=False).weights, np.take_along_axis(whole, ids, 1)), "a softmax over all experts")
        said = [raised(ValueError, lambda: request.experts(2)), raised(ValueError, lambda: request.experts(2, k=5)), raised(ValueError, lambda: request.experts(0, k=3)),
                raised(ValueError, lambda: request.experts(3)), raised(KeyError, lambda: request.experts(9))]
        check([word in text for word, text in zip(("give k", "has 4 experts", "2 experts a token, not 3", "same positions: 2 and 3 rows", "there are layers 0, 1, 2, 3"), said)]
              == [True] * 5, "what cannot be", said)


def all_dropped():
    """The library does not copy memory that another process may write: nothing of the sites comes to the run."""
    cuda = Device().cuda
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with dmi.collect() as got:
            dmi.step_begin(0, [dmi.Span("france", 0, 8), dmi.Span("spain", 0, 8, 8)])
            put(cuda, "resid_post", np.zeros((16, 4), np.float32), 0, is_shared=True)
            put(cuda, "resid_final", np.zeros((2, 4), np.float32), taps.NO_LAYER, is_shared=True)
            dmi.step_end()
    said = "".join(str(one.message) for one in said)
    check(list(got) == ["france", "spain"] and not len(got[0]) and "unsupported 1" in said, "requests of which nothing came", (list(got), said))
    check(all(part in said for part in ("request spain, resid_post, positions 0-7", "request france, resid_final, positions 7")), "each site is named", said)


class Elsewhere:
    """As vLLM's: the tensors are computed in another process, which this one only asks."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, __file__, "_serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def generate(self, *ids):
        self.process.stdin.write(" ".join(ids) + "\n")
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        self.generate("zero")
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def other_process():
    """This one has a run, too, but nothing of it in the block."""
    Engine().generate("mine")
    with Elsewhere() as engine:
        for ids in (["a", "b"], ["c"]):
            with dmi.collect(sites="resid_post") as got:
                numbers = engine.generate(*ids)
            check(list(got) == ids and all(same(got, name, numbers[name], layer) for name in ids for layer in range(LAYERS)),
                  "the requests of the other process, complete", list(got))


def late_elsewhere():
    """As late(), in the other process."""
    with Elsewhere() as engine:
        def block():
            with dmi.collect(sites="resid_final", timeout_s=0.02):
                engine.generate("late")
        said = raised(TimeoutError, block)
        check("records of resid_final" in said or "request late, resid_final, positions 0-249" in said, "it names what is missing", said)


def killed_elsewhere():
    with Elsewhere() as engine, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with dmi.collect(sites="resid_post", layers="last") as got:
            engine.generate("first")
            wait_for("first")
            engine.generate("france")
            engine.process.kill()
            engine.process.wait()
    said = "".join(str(one.message) for one in said)
    there = got["france"].resid_post if "france" in got and "resid_post" in got["france"] else {}
    check("first" in got and (len(there.get(3, ())) == 6 or "france" not in got or "request france, resid_post.3" in said and "lost" in said), "what a kill took is named", said)


def finished():
    """Ids come again, and segments are released: names of requests change meanwhile."""
    with Elsewhere() as engine:
        engine.generate("r")
        with dmi.open(os.environ["DMI_OUT"]) as run:
            ends, released = run.finished(poll_s=0.01, timeout_s=60), run.n_segments
            check([request.id for request in (next(ends), next(ends))] == ["zero", "r"], "those that ended before come first", run.requests)
            wrong, kept = [], None
            for i in range(12):
                numbers = engine.generate(*(["r"] if i % 2 else ["r", f"ra{i}"]))
                for name, number in numbers.items():
                    request = next(ends)
                    tensors = request.tensors
                    rows = [tensors[f"resid_post.{layer}"] for layer in range(LAYERS)]
                    wrong += [] if request.id.partition("~")[0] == name and all(
                        np.array_equal(t.numpy(), rows_of(number, layer, 0, 6)) for layer, t in enumerate(rows)) else [(request.id, name, number)]
                    kept = kept or request
            check(not wrong, "each request once, with its own rows", wrong)
            check(max(int(name[4:10]) for name in os.listdir(run.path) if name.startswith("seg-")) > 2 * len(list(pathlib.Path(run.path).glob("seg-*"))),
                  "segments were released meanwhile", (released, os.listdir(run.path)))
            check("was refreshed" in raised(OSError, lambda: kept.tensors), "an earlier request's name may be another one's now")
            quiet = run.finished(timeout_s=0.02, poll_s=0.01)
            check(raised(TimeoutError, lambda: [*quiet]), "waits are bounded")
            engine.process.stdin.close()
            check([request.id for request in ends] == [], "it ends when the run does")
    lazy = dmi.open(run.path)
    request = lazy.requests[-1]
    lazy.close()
    check(pickle.loads(pickle.dumps(request)) == request and raised(OSError, lambda: pickle.loads(pickle.dumps(request)).tensors), "a request can be pickled")


def released():
    """More is released between two looks than the run keeps."""
    with Elsewhere() as engine:
        engine.generate("r")
        with dmi.open(os.environ["DMI_OUT"]) as run, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ends = run.finished(poll_s=0.01)
            seen = [next(ends).id, next(ends).id]
            for i in range(12):
                engine.generate(f"r{i}")
            seen.append(next(ends).id)
        check(seen[:2] == ["zero", "r"] and seen[2] not in seen[:2] and len(said) == 1 and "steps were released before" in str(said[0].message),
              "what went unseen is said", (seen, [str(one.message) for one in said]))


def wait_for(name):
    """Until the run has the rows of a request."""
    while not any(name in path.read_bytes().decode("latin1") for path in pathlib.Path(os.environ["DMI_OUT"]).glob("*/seg-*")):
        time.sleep(0.01)


def _serve():
    engine = Engine()
    for line in sys.stdin:
        numbers = engine.step({"late": 0}, 0, 250, layers=0) if line == "late\n" else engine.generate(*line.split())
        assert not line.startswith("r") or dmi.flush(10) == 0
        print(json.dumps(numbers), flush=True)


def none():
    """No CUDA, no run."""
    said = raised(RuntimeError, lambda: collect_and(lambda: None))
    check("has no run of this program" in said, "a program that captures nothing", said)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
