# SPDX-License-Identifier: Apache-2.0
"""The pack, as a person uses it who has a GPU for ten minutes, but on the stand-in: it is built, unpacked in an empty folder and
run with nothing but a Python, and its table has every entry of the queue, answered wherever that is possible without a GPU.

Then the ways in which a row can say that something is wrong. LD_LIBRARY_PATH leads to the stand-in.
"""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

import asking
import cases
import contact
import entries
import pack
import questions
import table
from harness import BUILD, DMI_RUN, PRELOAD, STANDIN

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.built(DMI_RUN, PRELOAD, cases.WITNESS, STANDIN / "libcuda.so.1")

# What cannot be answered without a GPU or PyTorch; the stand-in's own gaps are in test_facts.py.
NO_PYTORCH = {entry.name for entry in entries.queue() if entry.needs}
LACKS = re.compile("not implemented here|this driver has no ")
BY_THE_CLOCK = re.compile("facts (waits_for_kernel|others_wait)")


def bare(**more):
    """What is left of the environment: nothing of the project's but the stand-in."""
    return {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LD_LIBRARY_PATH": str(STANDIN), "DMI_STANDIN_SM": "90",
            "DMI_STANDIN_CACHE": os.environ.get("DMI_STANDIN_CACHE", str(STANDIN / "cache")), "DMI_GPU_PYTHON": sys.executable, **more}


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """The folder into which the pack was unpacked; its own tree is not the one that it was built from."""
    folder = tmp_path_factory.mktemp("there")
    tinygrad = importlib.util.find_spec("tinygrad")
    words = ["--tinygrad", pathlib.Path(tinygrad.origin).parent] if tinygrad else []
    subprocess.run([sys.executable, HERE / "pack.py", BUILD, folder / "pack.tgz", *map(str, words)], check=True)
    assert (folder / "pack.tgz").stat().st_size < 64 << 20
    subprocess.run(["tar", "xzf", "pack.tgz"], cwd=folder, check=True)
    return folder


class Done:
    def __init__(self, folder, *words, **env):
        start = time.monotonic()
        self.ended = subprocess.run([folder / "dmi-gpu" / "run", "--out", folder / "back.jsonl", *words], cwd=folder, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=bare(**env))
        self.seconds, self.status = time.monotonic() - start, self.ended.returncode
        self.back = folder / "back.jsonl"
        self.said = self.ended.stdout

    def found(self):
        return table.read(self.back)

    def rows(self):
        return table.rows_of(self.found())


@pytest.fixture(scope="module")
def done(there):
    return Done(there, DMI_STANDIN_DEVICES="8")


def test_every_entry_is_there(check, done):
    found = done.found()
    ends = [value for kind, value in found if kind == "end"]
    check(len(ends) == len({end.entry for end in ends}), "each once", len(ends))
    check({end.entry for end in ends} == {entry.name for entry in entries.queue()}, "every entry of the queue", len(ends))
    rows = done.rows()
    witnessed = {name for name, case in cases.CASES.items() if case.witness} - NO_PYTORCH
    check({row.entry for row in rows if row.question == "called, and not hooked"} == witnessed, "the witness", witnessed)
    machine = next(value for kind, value in found if kind == "machine")
    check(machine["device"].startswith("DMI stand-in") and machine["visible"] == "0", "one device of eight", machine["visible"])
    check(done.back.stat().st_size < table.FILE_BYTES, "the file is not too large", done.back.stat().st_size)
    check(table.show(done.back).count("\n") > len(rows), "and reads as text")


def test_what_can_be_answered_here_is(check, done):
    rows = done.rows()
    check(not [row for row in rows if row.verdict == "crashed"], "nothing crashes", [row for row in rows if row.verdict == "crashed"])
    differs = [row for row in rows if row.verdict == "differs" and (row.relied_on or not BY_THE_CLOCK.match(row.entry))]
    check(not differs, "nothing is otherwise", differs)
    skipped = {row.entry: row.reason for row in rows if row.verdict == "skipped"}
    own_gaps = {name: reason for name, reason in skipped.items() if name.startswith("facts ") and not LACKS.search(reason)}
    check(not own_gaps, "of the questions only what the stand-in lacks is skipped, by its name", own_gaps)
    others = {name: reason for name, reason in skipped.items() if not name.startswith("facts ") and not reason.startswith("not there yet")}
    check(others.keys() >= NO_PYTORCH or importlib.util.find_spec("torch"), "PyTorch's programs are skipped", others.keys() ^ NO_PYTORCH)
    check(others.keys() - NO_PYTORCH <= {"driver mapped_pieces"}, "and no other", others)
    check(all(skipped.values()), "each with its reason", skipped)
    failed = {row.entry for row in rows if row.relied_on and row.verdict in ("differs", "crashed")}
    check(done.status == (1 if failed else 0) and "The file to send back: " in done.said, "the status says whether any failed", done.said[-800:])
    check(len(done.said.rpartition("\ndevice: ")[2]) <= table.PRINTED, "the table that is printed fits", len(done.said))
    check(done.seconds < 200, "in time", f"{done.seconds:.0f} s")


def test_launches_that_the_library_sees(check, done):
    """For a person who finds no records: who called what, and what came of it."""
    rows = done.rows()
    launches = {row.entry: row for row in rows if row.question == "cuLaunchKernel" and not row.entry.startswith("facts ")}
    for name in sorted(launches):
        row = launches[name]
        check(row.answer == PRELOAD.name and int(re.search(r"called (\d+) times", row.reason).group(1)) > 0, name, row)
    check("driver libraries" in launches, "cuLaunchKernel was looked up", launches)
    matched = [row.answer for row in rows if row.question == "launches that the library matched" and row.entry == "driver libraries"]
    check(matched == ["mark 22, tapped 22"], "and those that are sites are counted", matched)


def test_what_travels(check, there):
    """It needs a libc from 2021 and nothing else that it does not bring."""
    programs = [path for path in (there / "dmi-gpu").rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    check(len(programs) > len(pack.PROGRAMS), "programs and libraries", programs)
    brought = {path.name for path in (there / "dmi-gpu" / "lib").iterdir()}
    for path in programs:
        needs = [name for name in pack.needed(path) if not pack.OF_LIBC.fullmatch(name) and name not in brought]
        check(not needs, f"{path.name}: all that it needs is libc's or in the pack", needs)
        check(pack.newest_glibc(path) <= (2, 34), f"{path.name}: no symbol is newer than glibc 2.34", pack.newest_glibc(path))
    own = "LD_LIBRARY_PATH"
    done = subprocess.run([there / "dmi-gpu/build/meson/tools/dmi-dump", "--version"], env={own: str(there / "dmi-gpu" / "lib")},
                          stdout=subprocess.PIPE, text=True)
    check(done.returncode == 0, "dmi-dump runs with the libraries that came along", done)


def test_it_refuses_what_is_too_new(monkeypatch):
    monkeypatch.setattr(pack, "NEWEST_GLIBC", (2, 2))
    with pytest.raises(SystemExit, match=r"needs GLIBC_2\.\d+; the pack is for glibc 2\.2 and later"):
        pack.check_age(DMI_RUN)


def test_without_a_device_it_is_skipped(there):
    done = Done(there, DMI_STANDIN_DEVICES="0")
    assert done.status == 77 and done.said.endswith("skipped: no CUDA device: cuInit gave 100 (CUDA_ERROR_NO_DEVICE)\n"), done.said


def test_when_the_time_is_over_rows_say_so(check, there):
    done = Done(there, "--seconds", "3", "--only", "facts *,driver *")
    skipped = {row.entry for row in done.rows() if row.reason == asking.OVER}
    ends = [value for kind, value in done.found() if kind == "end"]
    check(skipped and all(not end.answered for end in ends if end.entry in skipped), "what is left is skipped by name", skipped)
    check({end.entry for end in ends} == {e.name for e in entries.queue() if e.name.startswith(("facts ", "driver "))}, "every entry has its end")
    check(done.seconds < 60, "and it ends", done.seconds)


def test_on_an_older_driver_the_rest_goes_on(check, there):
    done = Done(there, "--only", "driver libraries,facts device,torch unmodified", LD_LIBRARY_PATH=str(STANDIN / "11080"))
    rows = done.rows()
    check({row.entry for row in rows} == {"driver libraries", "facts device", "torch unmodified"}, "each entry has its rows", done.said)
    skipped = [row.reason for row in rows if row.entry == "torch unmodified"]
    check(importlib.util.find_spec("torch") or skipped and skipped[0].startswith("torch does not work here: "), "and PyTorch's its sentence", skipped)


# ---- a program under the library that is not as it should be

PROGRAM = """
import os, signal, sys, time
under = "libdmi_preload" in os.environ.get("LD_PRELOAD", "")
sys.path.insert(0, {here!r})
def crash(): os.kill(os.getpid(), signal.SIGSEGV)
def hang(): time.sleep(600)
def other(): print("another output")
def fail(): sys.exit("a sentence of its own")
if under: {name}()
print("an output")
open(sys.argv[2], "wb").close()
"""


def asked(tmp_path, case=None, seconds=20, name="driver libraries"):
    """An entry that runs @case; its table is asked.table."""
    machine = contact.Machine("DMI stand-in", sys.executable, tmp_path)
    entry = entries.Entry(name, seconds, 1, cases.ask(case or cases.CASES[name]))
    found = asking.Asked(entry, table.Table(), machine, time.monotonic() + 60)
    found.folder.mkdir(exist_ok=True)
    return found


@pytest.mark.parametrize("name, verdict, text", [
    pytest.param("crash", "crashed", "died of signal 11 (SIGSEGV)", id="a crash is an answer"),
    pytest.param("hang", "crashed", "did not end within 2 s", id="so is a hang"),
    pytest.param("other", "differs", "others", id="another output"),
    pytest.param("fail", "differs", "status 1", id="another status"),
])
def test_wrong_under_the_library(name, verdict, text, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(here=str(HERE), name=name))
    entry = asked(tmp_path, cases.Case(program), name="a program")
    if name == "hang":
        entry.limit = 2
    entry.ask()
    wrong = [row for row in entry.table.rows if row.verdict not in ("ok", "figure")]
    assert [(row.verdict, row.answer) for row in wrong[:1]] == [(verdict, text)], entry.table.text()
    assert entry.table.failures(), entry.table.text()
    if name == "crash":  # and where it was is in what is sent back
        assert "Fatal Python error: Segmentation fault" in entry.table.ends["a program"].log


def test_wrong_without_it_is_skipped(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('this machine is too old')")
    entry = asked(tmp_path, cases.Case(program), name="a program")
    entry.ask()
    assert [(row.verdict, row.reason) for row in entry.table.rows] == [("skipped", "without the library it status 1: this machine is too old")]


def test_missing_records_are_seen(check, tmp_path, monkeypatch):
    """A ticket that cannot be set, and a record whose bytes are others."""
    monkeypatch.setenv("DMI_STANDIN_FAIL", "cuGraphExecKernelNodeSetParams_v2:1:1")
    entry = asked(tmp_path, cases.CASES["driver libraries"]._replace(witness=False))
    entry.ask()
    wrong = {row.question: row.answer for row in entry.table.failures()}
    check("mark: captured + dropped = expected" in wrong, "the account says what is lost", wrong)
    check("rows of 176" in wrong.get("records of its marks, bit for bit", ""), "and the records", wrong)


def test_not_intercepted_is_told_from_another_place(check, tmp_path):
    """The witness without the library: the program called, and not the library."""
    seen = tmp_path / "witness.json"
    env = {**os.environ, "LD_PRELOAD": str(cases.WITNESS), "DMI_TEST_WITNESS": str(seen)}
    words = [sys.executable, HERE / "driver_cases.py", "libraries", tmp_path / "marks"]
    subprocess.run([str(word) for word in words], env=env, check=True, stdout=subprocess.DEVNULL)
    functions = cases.merged([f for line in seen.read_text().splitlines() for f in json.loads(line)["functions"]])
    entry = asked(tmp_path)
    cases.Run(entry, cases.CASES["driver libraries"]).entry_points(functions, cases.hooked())
    row = next(row for row in entry.table.failures() if row.question == "cuLaunchKernel")
    check(row.answer.startswith("libcuda.so") and row.expected == PRELOAD.name, "it was the driver's own", row)
    check("called 14 times" in row.reason, "and how often", row)


BINDINGS = """
from cuda.bindings import driver as cuda
assert all(cuda.cuInit(0)[0] == 0 for _ in range(3)) and cuda.cuDeviceGetCount()[1] == 1
"""


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="cuda.bindings is not installed")
def test_lookups_by_the_drivers_resolver(check, tmp_path):
    """As the CUDA runtime makes them: the resolver is looked up once, everything else by it."""
    seen = tmp_path / "witness.json"
    spec = tmp_path / "spec.yaml"
    spec.write_text(cases.SPEC.format(name="x", forward=""))
    env = {**os.environ, "DMI_TEST_WITNESS": str(seen), "DMI_SPEC": str(spec), "DMI_OUT": str(tmp_path / "out")}
    for preload, owner in ((f"{cases.WITNESS}:{PRELOAD}", PRELOAD.name), (cases.WITNESS, "libcuda.so.1")):
        subprocess.run([sys.executable, "-c", BINDINGS], env={**env, "LD_PRELOAD": str(preload)}, check=True)
        line = json.loads(seen.read_text().splitlines()[-1])
        functions = {f["name"]: f for f in line["functions"]}
        init, count = functions["cuInit"], functions["cuDeviceGetCount"]
        check((init["by_dlsym"], init["by_resolver"], init["of"], init["calls"]) == (0, 1, owner, 3), f"cuInit is {owner}'s", init)
        check((count["of"], count["calls"]) == ("libcuda.so.1", 1), "what is not hooked is the driver's", count)
        resolver = functions["cuGetProcAddress_v2"]
        check(resolver["by_dlsym"] == 1 and resolver["of"] == owner and resolver["calls"] > 400, "the resolver, and its calls", resolver)


# ---- facts

@pytest.mark.parametrize("kind, answer, expected, verdict, relied_on", [
    ("holds", "yes", None, "ok", True),
    ("breaks", "NO", None, "differs", True),
    ("says", "active", ("says", "active"), "ok", False),
    ("says", "invalidated", ("says", "active"), "differs", False),
    ("says", "anything", None, "figure", True),
    ("error", "died of signal 11", None, "crashed", True),
    ("error", "died of signal 11", ("error", "died of signal 11"), "ok", False),
    ("error", "took more than 20 s", ("says", "active"), "crashed", False),
    ("error", "CUDA_ERROR_INVALID_VALUE (1)", None, "differs", True),
    ("absent", "this driver has no such function", None, "skipped", True),
    ("skip", "needs compute capability 9.0", None, "skipped", True),
])
def test_a_fact(kind, answer, expected, verdict, relied_on, tmp_path):
    entry = asked(tmp_path)
    questions.fact(entry, kind, "what", answer, "", expected, False)
    row, = entry.table.rows
    assert (row.verdict, row.relied_on) == (verdict, relied_on), row


@pytest.mark.parametrize("answer, estimate, verdict", [
    ("3.6 us a node", 3.5, "figure"), ("5.3 us a node", 3.5, "off"), ("1.7 us a node", 3.5, "off"), ("5.2 us a node", 3.5, "figure"), ("9 us", None, "figure")])
def test_a_figure_off_its_estimate_is_marked(answer, estimate, verdict, tmp_path):
    entry = asked(tmp_path)
    entry.machine.is_standin = False
    questions.figure(entry, "what", answer, estimate)
    assert [row.verdict for row in entry.table.rows] == [verdict] and not entry.table.failures()
