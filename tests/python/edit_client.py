#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that edits what it, or a process of its own, computes: edit_client.py WHAT. Each function below is a WHAT; it prints lines of JSON: [holds, what, detail]."""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np

import dmi
import vector_files
from collect_client import check, raised
from dmi import taps
from model_runners import Device

WIDTH, LAYERS = 4, 3


class Engine:
    """Requests of zeros: what a row holds in the end is what was written into it."""

    def __init__(self, passes=1):
        self.device, self.n_steps, self.lock, self.passes = Device(), 0, threading.Lock(), passes

    def written(self, layer, n):
        """@n rows at resid_post, as a later module would read them."""
        cuda, at, rows = self.device.cuda, ctypes.c_uint64(), np.zeros((n, WIDTH), np.float32)
        cuda.cuCtxSetCurrent(self.device.context)
        assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(rows.nbytes)) == 0
        assert cuda.cuMemcpyHtoD_v2(at, ctypes.c_void_p(rows.ctypes.data), ctypes.c_size_t(rows.nbytes)) == 0
        status = taps.send("resid_post", at.value, 0, taps.DTYPES["float32"], rows.shape, (WIDTH, 1), 4, 1, layer, LAYERS, taps.WRITABLE)
        assert status == 0 and cuda.cuCtxSynchronize() == 0, status
        assert cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(rows.ctypes.data), at, ctypes.c_size_t(rows.nbytes)) == 0
        cuda.cuMemFree_v2(at)
        return rows

    def generate(self, name, n=3, tags=None, caches=False):
        """{layer: what each row has in its first element}, of a prompt of two tokens and @n more."""
        found = {layer: [] for layer in range(LAYERS)}
        with self.lock:
            for first, rows in [(0, 2), *((2 + i, 1) for i in range(n))]:
                assert dmi.step_begin(self.n_steps, [dmi.Span(name, first, rows, n_prompt=2, tags=tags)], caches=caches) == 0
                self.n_steps += 1
                for layer in list(found) * self.passes:
                    found[layer] += self.written(layer, rows)[:, 0].tolist()
                dmi.step_end()
            dmi.request_end(name, dmi.End.LENGTH)
        return found


def vector(name="ones", layers=None):
    """One of ones, or of the layer's number + 1 in each layer."""
    path = pathlib.Path(f"{name}.npy").absolute()
    np.save(path, np.ones(WIDTH, np.float32) if layers is None else np.repeat(np.arange(1, layers + 1, dtype=np.float32)[:, None], WIDTH, 1))
    return path


NOTHING = [0.0] * 5


def block():
    engine = Engine()
    check(engine.generate("before") == dict.fromkeys(range(LAYERS), NOTHING), "before a block nothing is written")
    with dmi.edit(vector(), times=2, layers="1-2") as done:
        check(engine.generate("a") == {0: NOTHING, 1: [2.0] * 5, 2: [2.0] * 5}, "in it the edit is in force, in its layers")
    check(str(done.rows["ones"]) == "ones at resid_post: 10 rows written of 10 due", "what was written is known", done.rows)
    check(engine.generate("after") == dict.fromkeys(range(LAYERS), NOTHING), "after it no more")
    said = raised(ValueError, dmi.edit(vector("each", layers=2)).__enter__)
    check("does not say whose layers these are" in said, "a row a layer, and of which site is not said", said)
    with dmi.edit(vector("each", layers=2), times={0: 4, 2: 0}, tokens="generated", layer_is="resid_post"), dmi.edit(vector(), requests="b*", sites="resid_post"), dmi.edit(vector()) as third:
        found = engine.generate("b"), engine.generate("c")
    check(list(third.rows) == ["ones-2"], "names that are taken get a number", third.rows)
    check(found[0] == {0: [2, 2, 6, 4, 2], 1: [2, 2, 10, 6, 2], 2: [2] * 5} and found[1][2] == [1] * 5, "blocks in blocks; a row a layer; by generated token", found)

    def body():
        with dmi.edit(vector(), layers=0):
            engine.generate("d")
            raise ZeroDivisionError("the body's own")
    check(raised(ZeroDivisionError, body) == "the body's own" and engine.generate("e")[0] == NOTHING, "what a block raises goes on, and the edit ends with it")
    said = raised(RuntimeError, lambda: dmi.edits._ask(dmi.edits._runs()[0], "edit remove none"))
    check("no edit is called" in said, "a refusal has the process's words", said)
    with dmi.edit(vector(), times="tag:much"):
        check(engine.generate("f", tags='{"much": 3}')[0] == [3.0] * 5 and engine.generate("g")[0] == NOTHING, "by tag")
        salts = [dmi.edits.salt("f", tags) for tags in ({"much": 3}, '{"much": 3}', {"much": 4})]
    check(salts[0] == salts[1] != salts[2] and dmi.edits.salt("f") is None, "salts; without edits there is none", salts)


def rows():
    """Those of hidden_states: one more than there are layers, the first of which enters the first layer. The other way, a row too many is said."""
    engine = Engine()
    path = vector("hidden", layers=LAYERS + 1)
    with dmi.edit(path, layer_is="resid_pre") as done:
        found = engine.generate("a")
    check(found == {0: [2.0] * 5, 1: [3.0] * 5, 2: [4.0] * 5} and "has no layer" not in str(done.rows["hidden"]), "row k is what layer k - 1 returns", (found, done.rows))
    said = raised(ValueError, dmi.edit(path, layer_is="resid_post").__enter__)
    check("has no layer 3: forwards had it in layers up to 2" in said, "once a step is over, it is known which layers there are", said)


def passes():
    """Each layer runs three times a step: an edit of one pass, of each, and of one that never comes."""
    engine = Engine(passes=3)
    with dmi.edit(vector(), layers=1, pass_=1) as done:
        found = engine.generate("a")
    check(found == {0: NOTHING * 3, 1: [0, 0, 1, 1, 0, 0] + [0, 1, 0] * 3, 2: NOTHING * 3}, "in that pass alone", found)
    check(str(done.rows["ones"]) == "ones at resid_post: 5 rows written of 5 due", "rows of that pass are due", done.rows)
    done, found = dmi.edit(vector(), layers=1, pass_=3), {}
    raised(dmi.edits.NotDone, lambda: entered(done, lambda: found.update(engine.generate("b"))))
    check(found[1] == NOTHING * 3 and str(done.rows["ones"]).startswith("ones at resid_post: 0 rows written of 0 due; layer 1 of resid_post has no pass 3: it ran 3 times"),
          "a pass that never came", str(done.rows["ones"]))
    said = raised(ValueError, dmi.edit(vector(), pass_="last").__enter__)
    check("found \"last\"; expected how often the layer has run before in the forward, 0 to 61" in said, "no word", said)


def surplus():
    """Before the first step nobody can tell: it is said as the block ends, and as the run does."""
    engine = Engine()
    done = dmi.edit(vector("hidden", layers=LAYERS + 1), layer_is="resid_post")

    def block():
        with done:
            engine.generate("a")
    said = raised(dmi.edits.NotDone, block)
    check(said.endswith("resid_post has no layer 3: forwards had it in layers up to 2"), "a layer that nothing has is not done", said)
    check(str(done.rows["hidden"]).endswith("15 rows written of 15 due; resid_post has no layer 3: forwards had it in layers up to 2"), "a row too many", str(done.rows["hidden"]))


def foreign():
    """A GGUF control vector: direction.N is for layer N, counted from 0, and other layers have none."""
    engine = Engine()
    pathlib.Path("calm.gguf").write_bytes(vector_files.gguf({1: [2] * WIDTH, 2: [3] * WIDTH}))
    with dmi.edit("calm.gguf", times=2):
        found = engine.generate("steered")
    check(found == {0: NOTHING, 1: [4.0] * 5, 2: [6.0] * 5}, "each layer has its own", found)


def busy():
    """A thread computes while blocks begin and end: nobody waits for the other for ever."""
    engine, stop, seen = Engine(), threading.Event(), []

    def serve():
        while not stop.is_set():
            found = engine.generate(f"request-{len(seen)}")
            seen.append({tuple(rows) for rows in found.values()})
    thread = threading.Thread(target=serve)
    thread.start()
    for i in range(4):
        with dmi.edit(vector(), times=i + 1):
            rows = engine.generate(f"mine-{i}")[0]
        check(rows == [i + 1.0] * 5, "the block's own request has its edit", rows)
    stop.set()
    thread.join()
    check(len(seen) > 2 and all(len(one) == 1 for one in seen), "each other request has one version from its first row to its last", seen[:4])


def serve():
    engine = Engine(*map(int, sys.argv[2:]))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.generate(line.strip())), flush=True)


def other_process():
    """One that computes for this one, which has no run; another of the same command has ended."""
    def started():
        process = subprocess.Popen([sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        return process
    killed, process = started(), started()
    killed.kill()
    killed.wait()

    def generate(name):
        process.stdin.write(name + "\n")
        process.stdin.flush()
        return {int(layer): rows for layer, rows in json.loads(process.stdout.readline()).items()}
    with dmi.edit(vector(), layers=1) as done:
        check(generate("a") == {0: NOTHING, 1: [1.0] * 5, 2: NOTHING}, "the other process's request has the edit")
    check(done.rows["ones"].written == 5 and generate("b")[1] == NOTHING, "and it ends with the block", done.rows)
    process.stdin.close()
    process.wait()


def several_places():
    Engine()
    said = raised(ValueError, dmi.edit(vector()).__enter__)
    check("added at one place: expected sites= with one of resid_post, mlp_out" in said, "which place is asked", said)
    done = dmi.edit(vector(), sites="mlp_out")
    raised(dmi.edits.NotDone, lambda: entered(done))
    check([rows.site for rows in done.rows.values()] == ["mlp_out"], "the one that is named", done.rows)


def entered(block, body=lambda: None):
    with block:
        body()


def not_done():
    """The program learns of an edit that wrote no row; of one whose request does, and of a block that failed, it does not."""
    engine = Engine()
    said = raised(dmi.edits.NotDone, lambda: entered(dmi.edit(vector())))
    check(said == "ones at resid_post: 0 rows written of 0 due: no tensor was tapped as resid_post, and no kernel of it ran", "nothing came to its place", said)
    nothing = dmi.edit(vector(), requests="b*")
    said = raised(dmi.edits.NotDone, lambda: entered(nothing, lambda: engine.generate("a")))
    check(said == "ones at resid_post: 0 rows written of 0 due: no request began in the block, or its layers or its pass are others" and nothing.rows["ones"].due == 0, "no request of it", said)
    said = raised(dmi.edits.NotDone, lambda: entered(dmi.edit(vector(), times=2), lambda: engine.generate("a", caches=None)))
    check("0 rows written of 15 due; missed: 15 cache_shared" in said, "rows that were due, and all missed", said)
    pathlib.Path("two.json").write_text(json.dumps({"editspec": 1, "vectors": {"v": {"file": "ones.npy"}}, "edits": [
        {"name": name, "site": "resid_post", "requests": name + "*", "do": [{"add": "v"}]} for name in ("a", "b")]}))
    check(raised(dmi.edits.NotDone, lambda: entered(dmi.edit("two.json"), lambda: engine.generate("a"))) == "", "of several one may find no request")
    check("two.json" not in raised(dmi.edits.NotDone, lambda: entered(dmi.edit("two.json"))) and
          raised(dmi.edits.NotDone, lambda: entered(dmi.edit("two.json"))).count("0 rows written") == 2, "but not all of them")
    check(raised(ZeroDivisionError, lambda: entered(dmi.edit(vector()), lambda: 1 / 0)) != "", "what the block raises goes on")
    said = raised(ValueError, dmi.edit(vector(), tokens="nonsense").__enter__)
    check("dmi.edit('" in said and "ones.npy')" in said and "dmi-edit-" not in said and "nonsense" in said, "an error names the edit that the program gave", said)


def early():
    """Nothing has used CUDA, and nothing was tapped: the block begins the run, where one is wanted."""
    if not (child := os.fork()):
        for name in [name for name in os.environ if name.startswith("DMI_TAP")]:
            del os.environ[name]
        said = raised(RuntimeError, dmi.edit(vector()).__enter__)
        check("no run of this program yet" in said and "dmi-run --write" in said, "no taps, no CUDA, no run", said)
        os._exit(0)
    check(os.waitpid(child, 0)[1] == 0, "the child has ended")
    rows = np.zeros((3, WIDTH), np.float32)
    with dmi.edit(vector()) as done:
        dmi.step_begin(0, [dmi.Span("a", 0, 3)], caches=False)
        taps.send("resid_post", rows.ctypes.data, 0, taps.DTYPES["float32"], rows.shape, (WIDTH, 1), 4, 1, 0, LAYERS, taps.WRITABLE | taps.HOST)
        dmi.step_end()
    check((rows == 1).all() and done.rows["ones"].written == 3, "what the CPU computed is edited", done.rows)


def no_places():
    Engine()
    said = raised(RuntimeError, dmi.edit(vector()).__enter__)
    check("has no control socket: start the program with `dmi-run --write resid_post -- python " in said, "no place", said)


def no_library():
    said = raised(RuntimeError, dmi.edit(vector()).__enter__)
    check("libdmi_preload.so is not in this process" in said, "without the library the command is named", said)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
