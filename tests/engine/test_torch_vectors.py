# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save(): torch reads them, in a process with limits, in the Python that the command names. Numbers, refusals, hostile files, and what a signal ends."""
import json
import os
import pathlib
import pickle
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

import harness
import torch_env
from adapter_runs import HERE, MARKS
from harness import DMI_RUN, ROOT

sys.path.append(str(ROOT / "tests" / "python"))
import foreign_files  # noqa: E402
from vector_files import tensor, torch_file  # noqa: E402

FILES = ROOT / "tests" / "reference" / "vectors"
LOAD = ROOT / "python" / "dmi" / "vectors" / "torch_load.py"
SAID = json.loads((FILES / "numbers.json").read_text())
LAYERS = {int(layer): np.array(numbers, np.float32) for layer, numbers in SAID["layers"].items()}
ONE = np.ones(4, "<f4").tobytes()
NAN = np.array([1, np.nan], "<f4").tobytes()
pytestmark = MARKS


@pytest.fixture(name="torch", scope="module")
def fixture_torch():
    """(its Python, its environment)"""
    return torch_env.python_with_torch()


def bf16(x):
    """Rounded to nearest, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000).view(np.float32)


def calls(module, name, *given):
    return f"\x80\x02c{module}\n{name}\n(".encode("latin1") + b"".join(pickle.dumps(x, 2)[2:-1] for x in given) + b"tR."


def pairs():
    """{layer: {"dir", "avg_proj"}} of two layers, which have storages of their own."""
    def one(layer, key):
        return tensor((2,), (1,), 2, key=key)[2:-1].join([b"X\x03\x00\x00\x00dir", b"X\x08\x00\x00\x00avg_projG" + struct.pack(">d", layer + 0.5)])
    entry = b"".join(b"K" + bytes([layer]) + b"}(" + one(layer, str(layer)) + b"us" for layer in (4, 7))
    return torch_file(b"\x80\x02}" + entry + b".", {"4": np.ones(2, "<f4").tobytes(), "7": np.zeros(2, "<f4").tobytes()})


def doubling(levels=60):
    """A pickle of a few hundred bytes whose key takes 2^levels steps to hash: a tuple of a tuple twice, and so on."""
    steps = b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(levels))
    return torch_file(b"\x80\x02}K\x01" + steps + b"K\x02s.")


BAD = {
    "a.pt, no zip": (b"\x80\x02" + b"x" * 60, "UnpicklingError"),
    "b.pt, cut": (torch_file(tensor((4,), (1,), 4), {"0": ONE})[:-30], "torch.load() cannot read it (RuntimeError: "),
    "c.pt, another zip": (torch_file(b"", byteorder=b"little").replace(b"data.pkl", b"data.abc"), "torch.load() cannot read it (RuntimeError: "),
    "d.pt, code": (torch_file(calls("os", "system", "touch /tmp/executed")), "it wants os.system; only tensors"),
    "e.pt, eval": (torch_file(calls("builtins", "eval", "1")), "it wants eval; only tensors"),
    "f.pt, a load of torch": (torch_file(calls("torch.storage", "_load_from_bytes", b"")), "it wants torch.storage._load_from_bytes"),
    "g.pt, an attribute": (torch_file(pickle.dumps(pathlib.PurePosixPath("x"), 4)), "only tensors, numbers, texts and containers"),
    "h.pt, numbers alone": (torch_file(pickle.dumps(5, 2)), "it is neither a tensor nor a dict"),
    "i.pt, an operation": (torch_file(b"\x80\x02\x82\x01."), "UnpicklingError"),
    "j.pt, cut in its pickle": (torch_file(tensor((4,), (1,), 4)[:-9], {"0": ONE}), "it wants collections.Ordered"),
    "k.pt, an empty stack": (torch_file(b"\x80\x02tR."), "(IndexError)"),
    "l.pt, integers": (torch_file(tensor((4,), (1,), 4, kind="LongStorage"), {"0": ONE * 2}), "a tensor of torch.int64"),
    "m.pt, beyond its storage": (torch_file(tensor((4,), (2,), 4), {"0": ONE}), "(RuntimeError: "),
    "n.pt, first beyond": (torch_file(tensor((4,), (1,), 4, first=1), {"0": ONE}), "(RuntimeError: "),
    "o.pt, 10^9 of one number": (torch_file(tensor((10**9,), (0,), 4), {"0": ONE}), "it repeats one number"),
    "p.pt, one number again": (torch_file(tensor((4,), (0,), 4), {"0": ONE}), "it repeats one number"),
    "q.pt, a storage that lies": (torch_file(tensor((4,), (1,), 1 << 40), {"0": ONE}), "(RuntimeError: "),
    "r.pt, no storage": (torch_file(tensor((4,), (1,), 4)), "(RuntimeError: "),
    "s.pt, NaN": (torch_file(tensor((2,), (1,), 2), {"0": NAN}), "the numbers of it are not all finite"),
    "t.pt, three dimensions": (torch_file(tensor((1, 1, 4), (4, 4, 1), 4), {"0": ONE}), "it has the shape [1, 1, 4]"),
    "w.pt, no layer": (torch_file(pickle.dumps({"a": 1}, 2)), "its entry 'a' has no number of a layer"),
    "y.pt, a list in itself": (torch_file(b"\x80\x02]q\0h\0a."), "is neither a tensor nor a dict"),
    "0.pt, a large pickle": (torch_file(bytes(2 << 20)), "UnpicklingError"),
    "key_digits.pt": (torch_file(pickle.dumps({"9" * 5000: 1}, 2)), "its entry 'a str' has no number of a layer"),
    "key_types.pt": (torch_file(pickle.dumps({("x" * 5000,): 1}, 2)), "its entry 'a tuple' has no number of a layer"),
    "values.pt": (torch_file(pickle.dumps({1: "x" * 5000}, 2)), "entry '1' is neither a tensor nor a dict with \"dir\", but a str"),
    "unpacked.pt": (torch_file(tensor((1 << 20,), (1,), 1 << 20), {"0": bytes(4 << 20)}, zipfile.ZIP_DEFLATED), "more numbers than its size allows"),
    "numpy.pt": ((FILES / "numpy.pt").read_bytes(), "it wants numpy._core.multiarray._reconstruct"),
}

# file: {layer, None: of each: (numbers, what it is to have along it)}
GOOD = {
    "one": {None: (LAYERS[1], None)},
    "rows": {layer - 1: (v, None) for layer, v in LAYERS.items()},
    "columns": {layer - 1: (v, None) for layer, v in LAYERS.items()},
    "views": {layer: (bf16(v), None) for layer, v in LAYERS.items()},
    "named": {layer: (v, None) for layer, v in LAYERS.items()},
    "adjust": {None: (LAYERS[2], 12.5)},
    "pairs": {4: (np.ones(2), 4.5), 7: (np.zeros(2), 7.5)},
    "big-endian": {None: (np.ones(4), None)},
    "nothing": {},
}


def changed(seed):
    """A file with bytes of it exchanged, cut or doubled."""
    some = random.Random(seed)
    data = bytearray((FILES / some.choice(("rows.pt", "named.pt", "adjust.pt"))).read_bytes())
    for _ in range(some.randint(1, 4)):
        at = some.randrange(len(data))
        data[at:at + some.choice((1, 1, 4, 8))] = some.choice((some.randbytes(1), b"\xff" * 8, b"\0" * 4, data[:some.randrange(40)], b""))
    return bytes(data)


def test_what_torch_makes_of_files(check, seeds, torch, tmp_path):
    """All in one process, as torch takes a second to import. Numbers are those that were saved; others are refused by a sentence, and nothing is executed."""
    for name in GOOD:
        if (FILES / f"{name}.pt").exists():
            (tmp_path / f"{name}.pt").write_bytes((FILES / f"{name}.pt").read_bytes())
    (tmp_path / "pairs.pt").write_bytes(pairs())
    (tmp_path / "big-endian.pt").write_bytes(torch_file(tensor((4,), (1,), 4), {"0": np.ones(4, ">f4").tobytes()}, byteorder=b"big"))
    (tmp_path / "nothing.pt").write_bytes(torch_file(pickle.dumps({}, 2)))
    for name, (data, _) in BAD.items():
        (tmp_path / name.partition(",")[0]).write_bytes(data)
    files = {f"file-{seed}": foreign_files.of_torch(random.Random(f"torch {seed}")) for seed in range(seeds(40, 200))}
    for name, file in files.items():
        (tmp_path / f"{name}.pt").write_bytes(file.data)
    n = seeds(150, 6000)
    for seed in range(n):
        (tmp_path / f"seed-{seed}.pt").write_bytes(changed(seed))
    done = harness.run([torch[0], HERE / "torch_vectors_client.py", LOAD, tmp_path], env=torch[1])
    found = {one["name"].removesuffix(".pt"): one for one in map(json.loads, done.stdout.splitlines())}
    for name, wanted in GOOD.items():
        layers = {layer: (numbers, to) for layer, numbers, to in found[name]["layers"]}
        check(layers.keys() == wanted.keys() and all(np.array_equal(np.float32(layers[layer][0]), v) and layers[layer][1] == to for layer, (v, to) in wanted.items()),
              name, found[name])
    check(found["adjust"]["unused"] == [["note", "of it"]], "what is not read is named", found["adjust"])
    for name, file in files.items():
        layers = None if "error" in found[name] else {layer: numbers for layer, numbers, _ in found[name]["layers"]}
        check(layers is file.rows is None or (layers is not None and file.rows is not None and layers.keys() == file.rows.keys() and
                                              all(np.array_equal(np.float32(layers[layer]), v) for layer, v in file.rows.items())),
              f"{name}: {file.why or 'is clear'}", (found[name], file.rows))
    for name, (_, said) in BAD.items():
        one = found[name.partition(",")[0].removesuffix(".pt")]
        check(said in one.get("error", "") and len(one.get("error", "")) < 400, name, one)
    check(not pathlib.Path("/tmp/executed").exists(), "a pickle was executed")
    taken = [found[f"seed-{seed}"] for seed in range(n) if "error" not in found[f"seed-{seed}"]]
    check(all(one["whole"] and np.isfinite(numbers).all() for one in taken for _, numbers, _ in one["layers"]), "numbers are finite")
    check(n / 50 < len(taken) < n, "some are taken, some refused", (len(taken), n))


# ------------------------------------------------------------------------- in dmi-run

SPEC = """hookspec: 1
sites:
  - {name: resid_post, kernel: k, pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 4}, {count: 6}], layer: occ, write: {}, capture: none}
"""


def command(folder, vector, *words):
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "edits.json").write_text(json.dumps({"editspec": 1, "vectors": {"v": vector}, "edits": [{"name": "e", "site": "resid_post", "do": [{"add": "v"}]}]}))
    return list(map(str, [DMI_RUN, "--spec", folder / "spec.yaml", "--edits", folder / "edits.json", "--out", folder / "out", "--lenient", "--", *words]))


def test_in_the_python_that_the_command_names(torch, tmp_path):
    """Its rows enter each layer, so they are what the layer before returns; what torch prints while it is imported is nobody's."""
    python, env = torch
    cat = "import os, sys; sys.stdout.buffer.write(open(os.environ['DMI_EDITS'], 'rb').read())"
    done = subprocess.run(command(tmp_path, {"file": str(FILES / "rows.pt"), "layer_is": "resid_pre"}, "env", "NOISE=1", python, "-c", cat),
                          env=dict(env, TMPDIR=str(tmp_path), DMI_LOG="none"), capture_output=True, timeout=100, check=True)
    n_tensors, _, n_numbers = struct.unpack_from("<IIQ", done.stdout, 8)
    numbers = np.frombuffer(done.stdout, np.float32, n_numbers, 24 + 24 * n_tensors)
    layers = {layer: numbers[first:first + n] for _, layer, first, n in struct.iter_unpack("<IiQQ", done.stdout[24:24 + 24 * n_tensors])}
    assert layers.keys() == {0, 1} and all((layers[i] == LAYERS[i + 2]).all() for i in layers), layers
    line, = (line for line in done.stderr.splitlines() if not line.startswith(b"dmi-run: "))
    assert b"left out: layer 0, which enters the first layer" in line, done.stderr
    assert not list(tmp_path.glob("dmi-*"))


def children(pid):
    """Of a process, and theirs: {pid: command line}"""
    found, more = {}, [str(pid)]
    while more:
        of = more.pop()
        try:
            for child in pathlib.Path(f"/proc/{of}/task/{of}/children").read_text().split():
                found[int(child)] = pathlib.Path(f"/proc/{child}/cmdline").read_bytes()
                more.append(child)
        except OSError:
            pass
    return found


def gone(pids):
    """Within 5 s."""
    end = time.monotonic() + 5
    while time.monotonic() < end and any(pathlib.Path(f"/proc/{pid}").exists() and "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3] for pid in pids):
        time.sleep(0.01)
    return not any(pathlib.Path(f"/proc/{pid}").exists() and "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3] for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.long), pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_ends_it_while_a_file_is_read(torch, tmp_path, number):
    """794 bytes that take for ever: dmi-run ends at once, the processes that read end with it, and no file is left."""
    (tmp_path / "doubling.pt").write_bytes(doubling())
    assert os.path.getsize(tmp_path / "doubling.pt") < 900
    started = subprocess.Popen(command(tmp_path, {"file": "doubling.pt"}, torch[0], "-c", "print('never')"), env=dict(torch[1], TMPDIR=str(tmp_path)),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not any(b"torch_load.py" in line for line in children(started.pid).values()) and time.monotonic() < end:
        time.sleep(0.01)
    found = children(started.pid)
    assert len(found) == 2 and started.poll() is None, found
    began = time.monotonic()
    started.send_signal(number)
    out, err = started.communicate(timeout=20)
    assert started.returncode == -number and not out and not err and time.monotonic() - began < 5, (started.returncode, err)
    assert gone(found), found
    assert {path.name for path in tmp_path.iterdir()} == {"doubling.pt", "spec.yaml", "edits.json"}


def limited(folder, **limits):
    """A package in which python/dmi/vectors/torch_load.py has other limits."""
    package = folder / "package"
    if not package.exists():
        shutil.copytree(ROOT / "python" / "dmi", package / "dmi", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "include", package / "include")  # where the package finds its structs
    path = package / "dmi" / "vectors" / "torch_load.py"
    text = LOAD.read_text()
    for name, value in limits.items():
        text, n = re.subn(r"^(def import_torch)", rf"{name} = {value}\n\n\n\1", text, count=1, flags=re.MULTILINE)
        assert n
    path.write_text(text)
    return package


@pytest.mark.parametrize("what", ["time", pytest.param("memory", marks=pytest.mark.long)])
def test_limits(torch, tmp_path, what):
    """Smaller ones than the product's, as 30 s are too long for a test."""
    if what == "time":
        package, data, said = limited(tmp_path, CPU_S=1), doubling(), "reading it took longer than 1 s of a CPU"
    else:
        package = limited(tmp_path, MEMORY=48 << 20)
        data = torch_file(tensor((32 << 20,), (1,), 32 << 20), {"0": bytes(128 << 20)}, zipfile.ZIP_DEFLATED)
        said = "takes more than 48 MiB and 6 times its size of memory"
    (tmp_path / "v.pt").write_bytes(data)
    done = harness.run([torch[0], "-m", "dmi", "vectors", tmp_path / "v.pt", "-o", tmp_path / "o"], check=False, timeout=60,
                       env=dict(torch[1], PYTHONPATH=str(package)))
    assert done.returncode == 2 and done.stderr.startswith(f"dmi: {tmp_path}/v.pt: ") and said in done.stderr, done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.long
def test_what_the_conversion_says(torch, tmp_path):
    """`python -m dmi vectors` of a direction with its mean."""
    done = harness.run([torch[0], "-m", "dmi", "vectors", FILES / "adjust.pt", "-o", tmp_path / "v.safetensors", "--layer-is", "blk_out"],
                       env=dict(torch[1], PYTHONPATH=str(ROOT / "python")))
    assert "{adjust_rs: v, to: 12.5}" in done.stdout and "not used: note of it" in done.stdout, done.stdout
