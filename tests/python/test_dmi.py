# SPDX-License-Identifier: Apache-2.0
"""python/dmi: the public API from Python, and the adapter of tinygrad with a model that only counts."""
import errno
import pathlib
import re
import subprocess
import sys

import pytest

import dmi
import dmi.tinygrad
from dmi import spelling
from harness import DMI_DUMP, PRELOAD, ROOT, STANDIN, dump_json, environment, only_run, run

pytestmark = pytest.mark.built(PRELOAD, DMI_DUMP, STANDIN / "libcuda.so.1")

CLIENT = pathlib.Path(__file__).with_name("dmi_client.py")
SPEC = "hookspec: 1\nring: {bytes: 1M, slots: 512}\nsites:\n  - {name: out, kernel: '^block$', pointer: 'arg[0]', dtype: u32, dims: [{row: true, count: 1}]}\n"


def test_api(check, tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    words = [sys.executable, CLIENT]
    plain = run(words, env=environment()).stdout.splitlines()
    check(plain == [f"before cuInit False {dmi.OFF}", "cuInit 0", *(f"{what} {dmi.OFF}" for what in (
        "step", "a span without a request", "a row before the batch", "a span outside the batch")), f"off {dmi.OFF} unknown {dmi.OFF}",
        f"end {dmi.OFF} flush {dmi.OFF}"], "without the library every call does nothing and says so", plain)
    with_it = run(words, env=environment(LD_PRELOAD=PRELOAD, DMI_SPEC=tmp_path / "spec.yaml", DMI_OUT=tmp_path / "out")).stdout.splitlines()
    check(with_it == [f"before cuInit True {dmi.OFF}", "cuInit 0", "step 0", "a span without a request 0",
                      f"a row before the batch {-errno.EINVAL}", f"a span outside the batch {-errno.EINVAL}", f"off 0 unknown {-errno.ENOENT}", "end 0 flush 0"],
          "with it every call has the status of the C function", with_it)
    only_run(tmp_path / "out")
    told = {r["request"]: (r["cached"], r["computed"], r["prefill"], r["decode"], r["end_position"])
            for r in dump_json("list", tmp_path / "out", "--requests")["requests"]}
    check(told == {"a": (4, 3, 3, 0, 7), "b": (0, 1, 0, 1, 10)}, "spans arrive with position, phase and cached tokens", told)


def test_what_the_package_shows(check):
    check({"collect", "edit", "open", "tap", "requests"} <= set(dmi.__all__) <= set(dir(dmi)), "the functions that a program begins with", dmi.__all__)
    check(not {"ctypes", "struct", "importlib", "calls"} & set(dir(dmi)), "and nothing that it imports itself", dir(dmi))
    said = dict(re.findall(r"^    (\w+)  +(\S.*)", dmi.__doc__, re.M))
    check(set(said) == {"collect", "edit", "open", "tap", "requests"} and "with dmi.collect(" in said["collect"], "its docstring has a line for each", said)
    there = {name: getattr(dmi, name) for name in dir(dmi) if name not in ("torch", "vllm", "sglang", "tinygrad")}
    check(callable(there["requests"]) and there["reading"].Run.__name__ == "Run", "all that it lists is there", there)
    names = {}
    exec("from dmi import *", names)  # pylint: disable=exec-used
    check("range" not in names and names["tap"] is dmi.tap, "Python's range() stays", sorted(names))


def test_former_spellings(check):
    """Taken for one version, with a warning that names what takes their place."""
    @spelling.chooses
    def call(sites=None, layers=None, requests=None):
        return sites, layers, requests
    with pytest.warns(DeprecationWarning, match=r"call\(\): layer= is called layers= now") as said:
        check(call("q", layer=3) == ("q", 3, None), "it is the other argument")
    check(said[0].filename == __file__, "the caller's line is named", said[0].filename)
    with pytest.raises(TypeError, match="site= is what sites= was called before"):
        call(site="q", sites="k")
    with pytest.raises(TypeError, match="unexpected keyword argument 'where'"):
        call(where=1)  # pylint: disable=unexpected-keyword-arg
    with pytest.warns(DeprecationWarning, match="sites="):
        check(dmi.edit("v.npy", site="resid_pre").site == "resid_pre", "in the calls themselves")


# What becomes of a program's stderr before an adapter has something to say; `data` is what the program has open in its place.
SAYS = "import os, signal, sys\n%s\nfrom dmi import adapters\n%s\nfor i in range(3): adapters.Adapter('x').warn(f'text {i}')\nprint('done')"
STDERRS = {
    "no reader": ("signal.signal(signal.SIGPIPE, signal.SIG_DFL); r, w = os.pipe(); os.dup2(w, 2); os.close(r); os.close(w)", ""),
    "a reader that does not read": ("r, w = os.pipe(); os.set_blocking(w, False); os.write(w, bytes(65536)); os.set_blocking(w, True); os.dup2(w, 2)", ""),
    "none": ("os.close(2)", ""),
    "none at all": ("os.close(2); sys.stderr = None", ""),
    "a file of the program's": ("", "os.close(2); os.open('data', os.O_RDWR | os.O_CREAT)"),
}


@pytest.mark.parametrize("case", STDERRS)
def test_warnings_cost_the_program_nothing(check, tmp_path, case):
    r = subprocess.run([sys.executable, "-c", SAYS % STDERRS[case]], env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=20)
    check((r.returncode, r.stdout, r.stderr) == (0, "done\n", ""), "it goes on, its stdout and its status are its own", r)
    check(not (tmp_path / "data").exists() or (tmp_path / "data").read_bytes() == b"", "nothing lands in its file")


def test_a_warning_is_seen(check, tmp_path):
    r = subprocess.run([sys.executable, "-c", SAYS % ("", "")], env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=20)
    check(r.stderr == "x: text 0\nx: text 1\nx: text 2\n", "a line each", r)


class Bound:
    """As tinygrad's symbolic integers: not an int, and has a value."""

    def __init__(self, val):
        self.val = val


class Input:
    def __init__(self, length):
        self.shape = (1, length)


class Model:
    """generate() as tinygrad's: chunks of 4 of the prompt, from what it still has, then a token at a time."""

    def __init__(self):
        self.cached, self.calls, self.closed = [], [], 0

    def get_start_pos(self, tokens):
        n = 0
        while n < len(tokens) - 1 and n < len(self.cached) and tokens[n] == self.cached[n]:
            n += 1
        return n

    def __call__(self, tokens, start_pos, temperature):
        self.calls.append((tokens.shape[1], start_pos))
        return 0

    def generate(self, tokens, chunk=4):
        start, decoding = self.get_start_pos(tokens), False
        try:
            while True:
                n = min(chunk, len(tokens) - start)
                self(Input(1 if decoding else Bound(n)), Bound(start), 0.0)
                start += n
                if start < len(tokens):
                    continue
                tokens.append(100 + start)
                self.cached, decoding = tokens[:-1], True
                yield tokens[-1]
        finally:
            self.closed += 1


@pytest.fixture
def said(monkeypatch):
    """What the adapter announces, in order."""
    said = []
    monkeypatch.setattr(dmi, "loaded", lambda: True)
    monkeypatch.setattr(dmi, "step_begin", lambda step, spans, **_: said.append(
        [(s.request, s.first_position, s.n_tokens, s.cached_ids or s.n_cached, s.phase.name) for s in spans][0]))
    monkeypatch.setattr(dmi, "step_end", lambda: said.append("end"))
    return said


def test_adapter(check, said, monkeypatch):
    class Served(Model):
        pass
    dmi.tinygrad.attach(Served)
    dmi.tinygrad.attach(Served)
    model = Served()

    def forwards():
        found = [entry for entry in said if entry != "end"]
        said.clear()
        return found

    first = list(zip(range(3), model.generate([1, 2, 3, 4, 5, 6])))
    check([token for _, token in first] == [106, 107, 108], "generate() gives what it gave", first)
    check(said[-1] == "end", "after a forward its rows belong to nobody", said[-1:])
    check(forwards() == [("0", 0, 4, 0, "PREFILL"), ("0", 4, 2, 0, "PREFILL"), ("0", 6, 1, 0, "DECODE"), ("0", 7, 1, 0, "DECODE")],
          "a request's forwards, in chunks and then a token a step", said)
    next(model.generate([1, 2, 3, 9]))
    check(forwards() == [("1", 3, 1, [1, 2, 3], "PREFILL")], "a chunk of one token is prefill; cached tokens are said by their ids", said)
    one, two = model.generate([7, 7]), model.generate([8, 8])
    for generator in (one, two, one, two):
        next(generator)
    check(forwards() == [("2", 0, 2, 0, "PREFILL"), ("3", 0, 2, 0, "PREFILL"), ("2", 2, 1, 0, "DECODE"), ("3", 2, 1, 0, "DECODE")],
          "generators that take turns keep their requests", said)
    closed, ended = model.closed, []
    monkeypatch.setattr(dmi, "request_end", ended.append)
    one.close()
    check(model.closed == closed + 1 and ended == ["2"], "closing the generator closes the engine's own, and ends the request", ended)
    model.dmi_request = "mine"
    next(model.generate([5, 6]))
    check(forwards() == [("mine", 0, 2, 0, "PREFILL")], "the program may name a request", said)
    model(Input(1), 3, 0.0)
    check(not forwards() and model.calls[-1] == (1, 3), "a call of its own is passed on, and belongs to nobody")
    monkeypatch.setattr(dmi, "step_begin", lambda step, spans, **_: 1 // 0)
    check(next(model.generate([5, 5])) == 102, "an announcement that fails ends no program")


def test_what_attach_starts_stays_among_the_modules(tmp_path):
    """Where no other sitecustomize is found, as in a venv: Python looks for the module once it has run."""
    start = ROOT / "python" / "dmi" / "torch" / "start"
    (tmp_path / "sitecustomize.py").write_text("found = True\n")
    for others, found in (([], False), ([str(tmp_path)], True)):
        text = f"import os, sys\nsys.path[:] = {[str(start), *others]!r}\nimport sitecustomize\nprint(hasattr(sitecustomize, 'found'), 'sitecustomize' in sys.modules)"
        done = subprocess.run([sys.executable, "-S", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout.split(), done.stderr) == (0, [str(found), "True"], ""), done
