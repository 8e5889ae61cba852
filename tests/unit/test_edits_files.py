# SPDX-License-Identifier: Apache-2.0
"""Files of vectors, as dmi-run takes them: what edits get of them, and what is wrong with those that are refused."""
import json
import os
import resource
import struct

import numpy as np
import pytest

from harness import DMI_RUN, environment, run
from vector_files import gguf

from dmi import vectors

pytestmark = pytest.mark.built(DMI_RUN)

SPEC = """hookspec: 1
sites:
  - {name: m, kernel: k, pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 4}, {count: 'arg[1].i32'}], layer: occ, write: {}, capture: none}
"""


def npy(shape, descr="<f4", data=b"", fortran="False", version=1, head=None, **more):
    """An npy file of a head that says this; @head: the whole of it."""
    text = head if head is not None else "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }" % (descr, fortran, shape)
    text = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", more.get("n_head", len(text)))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def safetensors(header, data=b"", n_header=None):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text) if n_header is None else n_header) + text + data


def entry(shape, first, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


def floats(*v):
    return np.asarray(v, np.float32).tobytes()


def bf16(*v):
    return (np.asarray(v, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()


class Files:
    def __init__(self, folder):
        self.folder = folder
        (folder / "spec.yaml").write_text(SPEC)
        self.env = environment()

    def edits(self, site="m", layers="all", **vector):
        vector.setdefault("file", "v.npy")
        (self.folder / "spec.yaml").write_text(SPEC.replace("name: m", f"name: {site}"))
        (self.folder / "edits.json").write_text(json.dumps({"editspec": 1, "vectors": {"v": vector}, "edits": [
            {"name": "e", "site": site, "do": [{"add": "v"}], "layers": layers}]}))
        return ["--spec", self.folder / "spec.yaml", "--edits", self.folder / "edits.json"]

    def refused(self, **vector):
        """What dmi-run --check says of it."""
        done = run([DMI_RUN, *self.edits(**vector), "--check"], env=self.env, check=False)
        assert done.returncode == 2 and "no error" not in done.stdout.splitlines()[-1:], done
        return [line for line in done.stderr.splitlines() if ": warning: " not in line]  # of the HookSpec

    def taken(self, **vector):
        """{layer, -1 for each: numbers}"""
        done = run(["sh", "-c", '"$@" >packed', "sh", DMI_RUN, "--lenient", *self.edits(**vector), "--out", self.folder / "out", "--", "sh", "-c", 'cat "$DMI_EDITS"'],
                   env=self.env, cwd=self.folder)
        data = (self.folder / "packed").read_bytes()
        magic, n_tensors, _, n_numbers = struct.unpack_from("<8sIIQ", data)
        assert magic == b"DMIEDIT1", (magic, done.stderr)
        at = 24 + 24 * n_tensors
        numbers = np.frombuffer(data, np.float32, n_numbers, at)
        return {layer: numbers[first:first + n].tolist() for _, layer, first, n in struct.iter_unpack("<IiQQ", data[24:at])}


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


LAYERED = {0: [1.0, 2.0], 1: [3.0, 4.0]}
TWO = {"l.0.v": entry([2], 0, 8), "l.1.v": entry([2], 8, 16)}
GOOD = {
    "a vector": (npy("(3,)", data=floats(1, -2, 0.5)), {}, {-1: [1, -2, 0.5]}),
    "of half precision": (npy("(2,)", "<f2", np.asarray([1.5, -2], np.float16).tobytes()), {}, {-1: [1.5, -2]}),
    "a row a layer": (npy("(2, 2)", data=floats(1, 2, 3, 4)), {"layer_is": "m"}, LAYERED),
    "of double precision": (npy("(2,)", "<f8", np.asarray([1.5, -2e-300], "<f8").tobytes()), {}, {-1: [1.5, 0]}),
    "a row a layer of double precision": (npy("(2, 2)", "<f8", np.asarray([1, 2, 3, 4], "<f8").tobytes()), {"layer_is": "m"}, LAYERED),
    "a tensor of double precision": (safetensors({"x": entry([2], 0, 16, "F64")}, np.asarray([0.1, 2], "<f8").tobytes()), {}, {-1: [float(np.float32(0.1)), 2]}),
    "layers of another site": (npy("(3, 2)", data=floats(9, 9, 1, 2, 3, 4)), {"layer_is": "resid_pre", "site": "resid_post"}, LAYERED),
    "the layers of an edit": (npy("(4, 1)", data=floats(1, 2, 3, float("nan"))), {"layer_is": "m", "layers": "1-2"}, {1: [2], 2: [3]}),
    "metadata that changes nothing": (safetensors({"__metadata__": {"format": "pt", "author": "x", "scale": "1.0"}, "x": entry([2], 0, 8)}, floats(1, 2)), {}, {-1: [1, 2]}),
    "one row": (npy("(1, 2)", data=floats(1, 2)), {}, {-1: [1, 2]}),
    "version 2": (npy("(1,)", data=floats(7), version=2), {}, {-1: [7]}),
    "version 3": (npy("(1,)", data=floats(7), version=3), {}, {-1: [7]}),
    "more than the head says": (npy("(1,)", data=floats(7, 8)), {}, {-1: [7]}),
    "one tensor": (safetensors({"x": entry([2], 0, 8)}, floats(1, 2)), {}, {-1: [1, 2]}),
    "one of several": (safetensors({"x": entry([2], 0, 8), "y": entry([1], 8, 12)}, floats(1, 2, 3)), {"tensor": "y"}, {-1: [3]}),
    "bfloat16 a layer": (safetensors({"x": entry([2, 2], 0, 8, "BF16")}, bf16(1, 2, 3, 4)), {"layer_is": "m"}, LAYERED),
    "tensors whose names differ in a number": (safetensors(TWO, floats(1, 2, 3, 4)), {"layer_is": "m"}, LAYERED),
    "a name of one layer": (safetensors({"layers.3": entry([2], 0, 8)}, floats(1, 2)), {"layer_is": "m"}, {3: [1, 2]}),
    "layers by name": (safetensors(dict(TWO, other=entry([1], 16, 20)), floats(1, 2, 3, 4, 5)), {"tensor": "l.{layer}.v"}, LAYERED),
    "layers from ten on": (safetensors({f"l{i}": entry([1], 4 * k, 4 * k + 4) for k, i in enumerate((10, 9))}, floats(10, 9)), {"tensor": "l{layer}"},
                           {9: [9], 10: [10]}),
    "an odd address": (safetensors(b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}', b"\0" + floats(7)), {}, {-1: [7]}),
}


@pytest.mark.parametrize("name", GOOD)
def test_vectors_of_a_file(files, name):
    data, vector, wanted = GOOD[name]
    path = "v.npy" if data.startswith(b"\x93") else "v.safetensors"
    (files.folder / path).write_bytes(data)
    assert files.taken(file=path, **vector) == wanted


HUGE = {f"l{i}": entry([1 << 18], 0, 1 << 20) for i in range(1000)}
BAD = {
    "empty": (b"", {}, "v.npy is empty"),
    "another file": (b"PK\3\4" + b"x" * 100, {}, "it is no npy file"),
    "version 0": (npy("(1,)", data=floats(1), version=0), {}, "it is no npy file"),
    "version 4": (npy("(1,)", data=floats(1), version=4), {}, "it is no npy file"),
    "a head beyond the file": (npy("(1,)", n_head=60000), {}, "it is no npy file"),
    "a head of 4 GB": (npy("(1,)", version=2, n_head=0xffffffff), {}, "it is no npy file"),
    "a head of 128 KB": (npy("(1,)" + " " * 131072, data=floats(1), version=2), {}, "it is no npy file"),
    "a head that says nothing": (npy("", head="{}"), {}, "its elements are of no type"),
    "no shape": (npy("", head="{'descr': '<f4', 'fortran_order': False}"), {}, "expected one dimension, or two"),
    "no order": (npy("", head="{'descr': '<f4', 'shape': (1,)}", data=floats(1)), {}, "Fortran's order"),
    "a head of keys alone": (npy("", head="'descr'"), {}, "its elements are of no type"),
    "a head that ends in the type": (npy("", head="{'descr': '<f"), {}, "its elements are of no type"),
    "a head that ends in the shape": (npy("", head="{'descr': '<f4', 'fortran_order': False, 'shape': (1"), {}, "expected one dimension, or two"),
    "Fortran's order": (npy("(1,)", data=floats(1), fortran="True"), {}, "Fortran's order"),
    "float64 beyond float32": (npy("(1,)", "<f8", struct.pack("<d", 1e39)), {}, "its numbers are not all finite"),
    "integers": (npy("(1,)", "<i4", b"\0" * 4), {}, "of another type than f64, f32, f16 and bf16"),
    "whose layers": (npy("(2, 2)", data=floats(1, 2, 3, 4)), {}, "does not say whose layers these are; expected \"layer_is: SITE\" with the vector"),
    "whose layers, by name": (safetensors(TWO, floats(1, 2, 3, 4)), {}, "does not say whose layers these are"),
    "one tensor of a layer": (safetensors({"layer_14": entry([2], 0, 8)}, floats(1, 2)), {}, "does not say whose layers these are"),
    "one tensor of two numbers": (safetensors({"layers.14.v2": entry([2], 0, 8)}, floats(1, 2)), {}, "which of the numbers in its tensor's name is a layer"),
    "what no layer returns": (safetensors({"l0": entry([2], 0, 8)}, floats(1, 2)), {"layer_is": "resid_pre", "site": "resid_post"}, "enters the first layer"),
    "a scale": (safetensors({"__metadata__": {"scale": "2"}, "x": entry([2], 0, 8)}, floats(1, 2)), {}, "it says scale: 2, which is not read here"),
    "what is done with it": (safetensors({"__metadata__": {"operation": "project"}, "x": entry([2], 0, 8)}, floats(1, 2)), {}, "it says operation: project"),
    "big-endian": (npy("(1,)", ">f4", b"\0" * 4), {}, "its elements are of no type"),
    "objects": (npy("(1,)", "|O", b"\0" * 8), {}, "its elements are of no type"),
    "no dimension": (npy("()", data=floats(1)), {}, "expected one dimension, or two"),
    "three dimensions": (npy("(1, 1, 1)", data=floats(1)), {}, "expected one dimension, or two"),
    "below 0": (npy("(-1,)", data=floats(1)), {}, "expected one dimension, or two"),
    "nothing": (npy("(0,)"), {}, "it holds no number"),
    "layers of nothing": (npy("(1000, 0)"), {}, "it holds no number"),
    "nothing of something": (npy("(0, 5)"), {}, "it holds no number"),
    "2^62 elements": (npy("(4611686018427387904,)", data=floats(1)), {}, "fewer elements than its head says"),
    "2^64 elements": (npy("(4294967296, 4294967296)", data=floats(1)), {}, "fewer elements than its head says"),
    "more than 64 bits": (npy("(99999999999999999999,)", data=floats(1)), {}, "fewer elements than its head says"),
    "cut": (npy("(2,)", data=floats(1)), {}, "fewer elements than its head says"),
    "too many layers": (npy("(1023, 1)", data=floats(*[1] * 1023)), {}, "more layers than models have"),
    "NaN": (npy("(2,)", data=floats(1, float("nan"))), {}, "its numbers are not all finite"),
    "NaN in each layer": (npy("(3, 1)", data=floats(*[float("nan")] * 3)), {"layer_is": "m"}, "its numbers are not all finite"),
    "infinity of f16": (npy("(1,)", "<f2", b"\0\x7c"), {}, "its numbers are not all finite"),
    "no direction": (npy("(2,)", data=floats(0, 0)), {"norm": "unit"}, "are to have length 1 and are all 0"),
    "a header beyond the file": (safetensors({}, n_header=1 << 40), {}, "its header would be"),
    "no JSON": (safetensors(b"{x"), {}, "is no safetensors file"),
    "no tensor": (safetensors({}), {}, "which of its tensors is meant is not clear"),
    "which tensor": (safetensors({"x": entry([1], 0, 4), "y": entry([1], 4, 8)}, floats(1, 2)), {}, "which of its tensors is meant is not clear"),
    "no such tensor": (safetensors({"x": entry([1], 0, 4)}, floats(1)), {"tensor": "y"}, "no tensor of the name"),
    "no such layers": (safetensors(TWO, floats(1, 2, 3, 4)), {"tensor": "m.{layer}.v"}, "no tensor's name fits"),
    "a layer beyond": (safetensors({"l1022": entry([1], 0, 4)}, floats(1)), {"tensor": "l{layer}"}, "no tensor's name fits"),
    "a layer of 20 digits": (safetensors({"l" + "9" * 20: entry([1], 0, 4)}, floats(1)), {"tensor": "l{layer}"}, "no tensor's name fits"),
    "one layer twice": (safetensors({"l1": entry([1], 0, 4), "l01": entry([1], 4, 8)}, floats(1, 2)), {"tensor": "l{layer}"}, "two tensors have one layer"),
    "a scalar": (safetensors({"x": entry([], 0, 4)}, floats(1)), {}, "expected one dimension, or two"),
    "a tensor of integers": (safetensors({"x": entry([1], 0, 4, "I32")}, floats(1)), {}, "of another type than f64, f32"),
    "layers of integers": (safetensors({"l1": entry([1], 0, 4, "I32")}, floats(1)), {"tensor": "l{layer}"}, "of another type than f64, f32"),
    "layers of nothing by name": (safetensors({"l1": entry([0], 0, 0)}), {"tensor": "l{layer}"}, "it holds no number"),
    "beyond the file": (safetensors({"x": entry([2], 0, 8)}, floats(1)), {}, "lies outside the file"),
    "a product that wraps": (safetensors({"x": entry([1 << 32, 1 << 32], 0, 0)}), {}, "lies outside the file"),
    "1,000 layers on one another": (safetensors(HUGE, b"\0" * (1 << 20)), {"tensor": "l{layer}"}, "its tensors lie on one another"),
}


def confined(bytes_):
    """A limit of address space that a small file cannot reach."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (bytes_, bytes_))


def test_files_that_are_refused(files, check):
    """Each by one line that names the vector, its place in the text and its file."""
    for name, (data, vector, said) in BAD.items():
        path = "v.npy" if not vector.get("tensor") and not data[:9].endswith(b"{") else "v.safetensors"
        (files.folder / path).write_bytes(data)
        lines = files.refused(file=path, **vector)
        check(len(lines) == 1 and lines[0].startswith(f"{files.folder}/edits.json:1:1: the vector \"v\", {files.folder}/{path}: ") and said in lines[0],
              name, lines[:3])


@pytest.mark.parametrize("name, said", [("v.txt", "ends with .safetensors, .npy, .gguf, .pt or .pth"), ("missing.npy", "No such file"), ("missing.safetensors", "No such file"),
                                        ("folder.npy", "is a folder: a regular file is expected"), ("pipe.npy", "is a pipe: a regular file is expected"), ("pipe.safetensors", "is a pipe: a regular file is expected"),
                                        ("large.npy", "has more than")])
def test_what_is_no_file_of_vectors(files, name, said):
    (files.folder / "folder.npy").mkdir()
    (files.folder / "v.txt").write_text("x")
    for pipe in ("pipe.npy", "pipe.safetensors"):
        os.mkfifo(files.folder / pipe)
    with open(files.folder / "large.npy", "wb") as large:
        large.truncate(1 << 40)
    lines = files.refused(file=name)
    assert len(lines) == 1 and said in lines[0], lines


@pytest.mark.skipif(bool(os.environ.get("DMI_TEST_RUNTIME")), reason="a sanitizer reserves address space for its shadow")
@pytest.mark.parametrize("name", ["2^62 elements", "layers of nothing", "a head of 4 GB", "1,000 layers on one another"])
def test_a_small_file_asks_for_little_memory(files, name):
    data, vector, said = BAD[name]
    path = "v.safetensors" if vector else "v.npy"
    (files.folder / path).write_bytes(data)
    done = run([DMI_RUN, *files.edits(file=path, **vector), "--check"], env=files.env, check=False, preexec_fn=confined(100 << 20))
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_files_that_python_reads(files):
    """tests/python/test_vectors.py has the rest; here the tool is under AddressSanitizer, and what Python says may be long."""
    (files.folder / "v.gguf").write_bytes(gguf({0: [1, 2], 7: [3, 4]}))
    assert files.taken(file="v.gguf", layer_is="m") == {0: [1.0, 2.0], 7: [3.0, 4.0]}
    for data, said in [(gguf({0: [1]})[:40], "it ends in the middle of a value, at byte 32"), (gguf({}, infos=[("x" * 30000, (1,), 0, 0)], data=b"\0" * 4), "it has a tensor 'xxx")]:
        (files.folder / "v.gguf").write_bytes(data)
        lines = files.refused(file="v.gguf")
        assert len(lines) == 1 and f"the vector \"v\", {files.folder}/v.gguf: {said}" in lines[0], lines
    assert "No such file" in files.refused(file="missing.pt")[0]


def test_all_that_is_wrong_is_said_at_once(files):
    """Of two vectors each; of the edits' layers once the files can be read."""
    (files.folder / "good.npy").write_bytes(npy("(2, 2)", data=floats(1, 2, 3, 4)))
    (files.folder / "edits.json").write_text("editspec: 1\nvectors:\n  a: {file: a.npy}\n  b: {file: b.npy}\nedits: []\n")

    def said():
        done = run([DMI_RUN, "--spec", files.folder / "spec.yaml", "--edits", files.folder / "edits.json", "--check"], env=files.env, check=False)
        return [line for line in done.stderr.splitlines() if ": warning: " not in line]  # of the HookSpec

    lines = said()
    assert [line.split(": ")[0].rpartition("/")[2] for line in lines] == ["edits.json:3:1", "edits.json:4:1"], lines
    (files.folder / "edits.json").write_text("editspec: 1\nvectors: {a: {file: good.npy}}\nedits:\n- {name: e, site: m, layers: '0-2', do: [{add: a}]}\n".replace("good.npy", "good.npy, layer_is: m"))
    lines = said()
    assert len(lines) == 1 and "edits.json:4:1: found layer 2" in lines[0], lines


STEER = {
    "one vector": ((), [{"add": "steer", "times": 1}]),
    "times": (("--times", "-2.5"), [{"add": "steer", "times": -2.5}]),
    "points": (("--times", "{0: 2, 8: 0}"), [{"add": "steer", "times": {0: 2, 8: 0}}]),
    "layers": (("--layers", "0"), [{"add": "steer", "times": 1}]),
    "pass": (("--pass", "2"), [{"add": "steer", "times": 1}]),
}


@pytest.mark.parametrize("name", STEER)
def test_one_vector_at_one_place(files, name):
    """What --steer stands for: its text is in what the library gets. Of several places one is to be named."""
    yaml = pytest.importorskip("yaml")
    words, do = STEER[name]
    (files.folder / "spec.yaml").write_text(SPEC + SPEC.splitlines()[2].replace("name: m, kernel: k", "name: n, kernel: j") + "\n")
    (files.folder / "v.npy").write_bytes(npy("(2,)", data=floats(1, 2)))
    command = [DMI_RUN, "--lenient", "--spec", files.folder / "spec.yaml", "--steer", "v.npy", *words, "--out", files.folder / "out"]
    asked = run([*command[:1], *command[2:], "--", "echo", "ran"], env=files.env, cwd=files.folder, check=False)
    assert (asked.returncode, asked.stdout) == (2, "") and "expected --site with one of m, n: the vector is added at one place" in asked.stderr, asked
    run(["sh", "-c", '"$@" >packed', "sh", *command, "--site", "n", "--", "sh", "-c", 'cat "$DMI_EDITS"'], env=files.env, cwd=files.folder)
    packed = (files.folder / "packed").read_bytes()
    said = yaml.safe_load(packed[-struct.unpack_from("<8sII", packed)[2]:])
    assert said["vectors"] == {"steer": {"file": str(files.folder / "v.npy")}}
    assert [(e["site"], e["do"], e.get("layers"), e.get("pass")) for e in said["edits"]] == [("n", do, "0" if name == "layers" else None, "2" if name == "pass" else None)]


WRONG = [(("--edits", "e", "--steer", "v.npy"), "--edits beside --steer"), (("--edits", "e", "--times", "2"), "--times without --steer"),
         (("--edits", "e", "--pass", "2"), "--pass without --steer"), (("--steer", "v.npy", "--pass", "last"), "found \"last\"; expected how often the layer has run before in the forward"),
         (("--steer", "missing.npy"), "--steer missing.npy: No such file"), (("--steer", "v.npy", "--times", "x"), "found \"x\"; expected a decimal number"),
         (("--steer", "two.safetensors", "--layers", "2"), "found layer 2"), (("--edits", "missing"), "missing: No such file"), (("--edits", "."), ". is a folder: a regular file is expected")]


@pytest.mark.parametrize("words, said", WRONG, ids=range(len(WRONG)))
def test_options_that_do_not_fit(files, words, said):
    vectors.save(files.folder / "two.safetensors", {0: [1], 1: [2]}, "m")
    (files.folder / "v.npy").write_bytes(npy("(1,)", data=floats(1)))
    done = run([DMI_RUN, "--spec", files.folder / "spec.yaml", *words, "--check"], env=files.env, check=False, cwd=files.folder)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_hookspec_without_places(files):
    (files.folder / "spec.yaml").write_text(SPEC.replace(", write: {}, capture: none", ""))
    (files.folder / "v.npy").write_bytes(npy("(1,)", data=floats(1)))
    done = run([DMI_RUN, "--spec", files.folder / "spec.yaml", "--steer", "v.npy", "--check"], env=files.env, check=False, cwd=files.folder)
    assert done.returncode == 2 and "has no site with \"write\"" in done.stderr, done.stderr
