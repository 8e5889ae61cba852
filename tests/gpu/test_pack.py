# SPDX-License-Identifier: Apache-2.0
"""The pack, as whoever has a GPU for ten minutes uses it, but on the stand-in: it is built, unpacked in an empty folder and
run with nothing but a Python, and its table has every row, answered wherever that is possible without a GPU.

Then the ways in which a row can say that something is wrong. LD_LIBRARY_PATH leads to the stand-in.
"""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time

import pytest

import cases
import contact
import hugging_face
import pack
import table
from harness import BUILD, DMI_RUN, PRELOAD, STANDIN

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.built(DMI_RUN, PRELOAD, cases.WITNESS, STANDIN / "libcuda.so.1")

# What cannot be answered without a GPU or PyTorch; the stand-in's own gaps are in test_facts.py.
NO_PYTORCH = {case.name for case in cases.CASES if case.program == cases.TORCH} | {"smoke.py torch"} | set(hugging_face.names())
# What the library is known not to do yet, and says in its log: more than 640 copies in a graph, a tensor across pieces of
# mapped memory. Whoever changes that takes the program off this list.
NOT_YET = set()
LACKS = re.compile("not implemented here|this driver has no ")
BY_THE_CLOCK = re.compile("waits_for_kernel|others_wait")


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
        self.ended = subprocess.run([folder / "dmi-gpu" / "run", "--out", folder / "back.tgz", *words], cwd=folder, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=bare(**env))
        self.seconds, self.status = time.monotonic() - start, self.ended.returncode
        self.back = folder / "back.tgz"
        self.said = self.ended.stdout

    def member(self, name):
        with tarfile.open(self.back) as archive:
            return archive.extractfile(f"dmi-gpu/{name}").read().decode()

    def rows(self):
        return [table.Row(**row) for row in json.loads(self.member("table.json"))["rows"]]


@pytest.fixture(scope="module")
def done(there):
    return Done(there, DMI_STANDIN_DEVICES="8")


def cases_of(rows, group):
    return {row.case for row in rows if row.group == group}


def test_every_row_is_there(check, done):
    rows = done.rows()
    listed = subprocess.run([contact.FACTS, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    questions = {f"{line.split()[0]} ({loading})" for line in listed for loading in ("lazy", "eager")}
    check(cases_of(rows, "facts") == questions, "every question, lazily and eagerly", cases_of(rows, "facts") ^ questions)
    smoke = {case.name for case in cases.CASES} | {"smoke.py plain", "smoke.py torch"}
    check(cases_of(rows, "smoke") == smoke, "every program", cases_of(rows, "smoke") ^ smoke)
    witnessed = {case.name for case in cases.CASES if case.witness} - NO_PYTORCH
    check(cases_of(rows, "entry points") >= witnessed, "the witness", cases_of(rows, "entry points"))
    check(cases_of(rows, "graph calls") == {f"seed {i}" for i in range(1, 9)}, "random graph calls", cases_of(rows, "graph calls"))
    check(cases_of(rows, hugging_face.GROUP) == set(hugging_face.names()), "every configuration", cases_of(rows, hugging_face.GROUP))
    check(cases_of(rows, "copy kernel") and cases_of(rows, "benchmarks") == {"launch", "graph", "tap", "execs", "copy", "link normal", "link noise", "drain"},
          "the copy kernel, and every benchmark", cases_of(rows, "benchmarks"))
    facts = json.loads(done.member("table.json"))
    check(facts["device"].startswith("DMI stand-in") and facts["visible"] == "0", "one device of eight", facts["visible"])
    check({row.verdict for row in rows} <= set(table.VERDICTS) and done.member("table.txt").count("\n") > len(rows), "text and JSON")


def test_what_can_be_answered_here_is(check, done):
    rows = done.rows()
    check(not [row for row in rows if row.verdict == "crashed"], "nothing crashes", [row for row in rows if row.verdict == "crashed"])
    differs = [row for row in rows if row.verdict == "differs" and row.case not in NOT_YET and (row.relied_on or not BY_THE_CLOCK.match(row.case))]
    check(not differs, "nothing is otherwise", differs)
    skipped = {row.case: row.reason for row in rows if row.verdict == "skipped"}
    own_gaps = {case: reason for case, reason in skipped.items() if case in cases_of(rows, "facts") and not LACKS.search(reason)}
    check(not own_gaps, "of the questions only what the stand-in lacks is skipped, by its name", own_gaps)
    smoke = {case for case in skipped if case not in cases_of(rows, "facts")}
    check(smoke >= NO_PYTORCH or importlib.util.find_spec("torch"), "PyTorch's programs are skipped", smoke ^ NO_PYTORCH)
    check(smoke - NO_PYTORCH <= {"driver mapped_pieces"}, "and no other", {case: skipped[case] for case in smoke - NO_PYTORCH})
    check(all(skipped.values()), "each with its reason", skipped)
    failed = {row.case for row in rows if row.relied_on and row.verdict in ("differs", "crashed")}
    check(done.status == (1 if failed else 0) and "The file to send back: " in done.said, "the status says whether any failed", done.said[-800:])
    check(done.seconds < 300, "in time", f"{done.seconds:.0f} s")


def test_launches_that_the_library_sees(check, done):
    """For whoever finds no records: who called what, and what came of it."""
    rows = [row for row in done.rows() if row.group == "entry points"]
    launches = {row.case: row for row in rows if row.question == "cuLaunchKernel"}
    for name in sorted(launches):
        row = launches[name]
        check(row.answer == PRELOAD.name and int(re.search(r"called (\d+) times", row.reason).group(1)) > 0, name, row)
    check("driver libraries" in launches, "cuLaunchKernel was looked up", launches)
    matched = [row.answer for row in rows if row.question == "launches that the library matched" and row.case == "driver libraries"]
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
    assert done.status == 77 and done.said.endswith("skipped: no CUDA device\n"), done.said


def test_when_the_time_is_over_rows_say_so(check, there):
    done = Done(there, "--seconds", "3", "--only", "facts,smoke")
    rows = done.rows()
    over = [row for row in rows if "the time" in row.reason or "are over" in row.answer]
    check(over and {case.name for case in cases.CASES} <= cases_of(rows, "smoke"), "every program has its row", rows[-5:])
    check(done.seconds < 60, "and it ends", done.seconds)


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


@pytest.mark.parametrize("name, verdict, text", [
    pytest.param("crash", "crashed", "died of signal 11 (SIGSEGV)", id="a crash is an answer"),
    pytest.param("hang", "crashed", "did not end within 2 s", id="so is a hang"),
    pytest.param("other", "differs", "others", id="another output"),
    pytest.param("fail", "differs", "status 1", id="another status"),
])
def test_wrong_under_the_library(name, verdict, text, tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "SECONDS", 2 if name == "hang" else 30)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(here=str(HERE), name=name))
    found = table.Table()
    runner = cases.Runner(found, tmp_path, sys.executable, time.monotonic() + 60)
    runner.run_case(cases.Case("a program", program))
    wrong = [row for row in found.rows if row.verdict not in ("ok", "figure")]
    assert [(row.verdict, row.answer) for row in wrong[:1]] == [(verdict, text)], found.text()
    assert found.failures(), found.text()
    if name == "crash":  # and where it was is in what is sent back
        assert "Fatal Python error: Segmentation fault" in (tmp_path / "a-program.log").read_text()


def test_wrong_without_it_is_skipped(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('this machine is too old')")
    found = table.Table()
    cases.Runner(found, tmp_path, sys.executable, time.monotonic() + 60).run_case(cases.Case("a program", program))
    assert [(row.verdict, row.reason) for row in found.rows] == [("skipped", "without the library it status 1: this machine is too old")]


def test_missing_records_are_seen(check, tmp_path, monkeypatch):
    """A ticket that cannot be set, and a record whose bytes are others."""
    monkeypatch.setenv("DMI_STANDIN_FAIL", "cuGraphExecKernelNodeSetParams_v2:1:1")
    found = table.Table()
    runner = cases.Runner(found, tmp_path, sys.executable, time.monotonic() + 60)
    runner.run_case(next(case for case in cases.CASES if case.name == "driver libraries")._replace(witness=False))
    wrong = {row.question: row.answer for row in found.failures()}
    check("mark: captured + dropped = expected" in wrong, "the account says what is lost", wrong)
    check("rows of 176" in wrong.get("records of its marks, bit for bit", ""), "and the records", wrong)


def test_not_intercepted_is_told_from_another_place(check, tmp_path):
    """The witness without the library: the program called, and not the library."""
    seen = tmp_path / "witness.json"
    env = {**os.environ, "LD_PRELOAD": str(cases.WITNESS), "DMI_TEST_WITNESS": str(seen)}
    words = [sys.executable, HERE / "driver_cases.py", "libraries", tmp_path / "marks"]
    subprocess.run([str(word) for word in words], env=env, check=True, stdout=subprocess.DEVNULL)
    functions = cases.merged([f for line in seen.read_text().splitlines() for f in json.loads(line)["functions"]])
    found = table.Table()
    runner = cases.Runner(found, tmp_path, sys.executable, time.monotonic() + 60)
    for function in functions:
        runner.entry_point(cases.Case("a program", "x"), function)
    row = next(row for row in found.failures() if row.question == "cuLaunchKernel")
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
    options = type("Options", (), {"python": sys.executable, "seconds": 10})
    asked = contact.Contact(options, tmp_path)
    asked.fact("a_question (lazy)", kind, "what", answer, "", expected, False)
    row, = asked.table.rows
    assert (row.verdict, row.relied_on) == (verdict, relied_on), row
