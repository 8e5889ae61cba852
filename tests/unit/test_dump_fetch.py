# SPDX-License-Identifier: Apache-2.0
"""dmi-dump --from clickhouse://: what a real server has is what the run has, request by request, row by row, bit by bit."""
import json
import subprocess

import pytest

from clickhouse_server import PROGRAM, PASSWORD, Server
from harness import DMI_DUMP
from replay_kit import BUILT, MAKE_ODD_RUN, MAKE_RUN, make, replay, schedule, steps, wait_for
from test_dmi_dump import read_safetensors

pytestmark = [pytest.mark.built(*BUILT), pytest.mark.skipif(not PROGRAM, reason="there is no clickhouse-server: ./bootstrap test has Debian's in build/clickhouse")]


@pytest.fixture(name="server", scope="module")
def fixture_server(tmp_path_factory):
    if "without libcurl" in dump("list", "--from", "clickhouse://127.0.0.1:1/").stderr:
        pytest.skip("dmi-dump was built without libcurl")
    server = Server(tmp_path_factory.mktemp("fetch") / "server").start()
    yield server
    server.kill()


def dump(*words, **env):
    return subprocess.run([str(word) for word in (DMI_DUMP, *words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
                          env={"PATH": "/usr/bin:/bin", "DMI_CLICKHOUSE_PASSWORD": PASSWORD} | env)


def tensors(*words):
    """{name: (dtype, shape, bytes)} of an export"""
    path = words[-1]
    done = dump("export", "-o", path, *words[:-1])
    assert done.returncode == 0, done.stderr
    return read_safetensors(path)[0]


def address(server, database, more=""):
    return f"clickhouse://127.0.0.1:{server.port}/{database}{more}"


def changed(server, database, what, where):
    server.ask(f"ALTER TABLE {database}.dmi_records UPDATE {what} WHERE {where}")
    wait_for(lambda: server.one(f"SELECT min(is_done) FROM system.mutations WHERE database = '{database}'") == "1")


@pytest.mark.parametrize("what, said", [("shape = [rows, 4294967295, 4294967295]", "has not the bytes that its shape says"),
                                        ("payload = concat(payload, '12')", "has not the bytes that its shape says"),
                                        ("dtype = 'f7'", "is of no site of the run")])
def test_a_table_that_contradicts_itself(server, tmp_path, check, what, said):
    database = "wrong" + str(abs(hash(what)))
    replay(make(MAKE_RUN, tmp_path / "run"), "--to", server.address(database))
    changed(server, database, what, "record % 2 = 0")
    done = dump("list", "--from", address(server, database), TMPDIR=str(tmp_path))
    check(done.returncode == 2 and said in done.stderr and "dmi-dump: " in done.stderr, "is refused by name", (done.returncode, done.stderr))
    check([p.name for p in tmp_path.iterdir()] == ["run"], "and leaves nothing", list(tmp_path.iterdir()))


RUNS = {
    "requests": lambda folder: make(MAKE_RUN, folder),
    "computed again": lambda folder: make(MAKE_ODD_RUN, folder, "again"),
    "odd names": lambda folder: make(MAKE_ODD_RUN, folder, "names"),
    "a crowd": lambda folder: make(MAKE_ODD_RUN, folder, "crowd"),
    "drafts": lambda folder: make(MAKE_ODD_RUN, folder, "drafts"),
    "many steps": lambda folder: schedule(folder, [line for i in range(40) for line in (f"step {i} 2 r{i % 3}:0:1:{i // 3}:2:0:0 s:1:1:{i}:2:0:0", "rec 2 0 0 64 1",
                                                                                        "rec 3 -1 0 8 1")] + ["end s 2"]),
    "no steps": lambda folder: make(MAKE_RUN, folder, "anonymous"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] if name in ("requests", "odd names", "a crowd") else []) for name in RUNS])
def test_the_same_tensors(server, tmp_path, check, name):
    folder, database = RUNS[name](tmp_path / "run"), "t" + "".join(c for c in name if c.isalpha())
    replay(folder, "--to", server.address(database), *(["--rejected", "--superseded"] if name in ("drafts", "computed again") else []))
    run = next(path for path in folder.iterdir() if path.is_dir())
    want, got = tensors(run, tmp_path / "want"), tensors("--from", address(server, database), tmp_path / "got")
    check(got == want and want, "every tensor, each bit", [key for key in {**want, **got} if got.get(key) != want.get(key)][:5])
    check(dump("diff", "--from", address(server, database), run).returncode == 0, "diff finds none", dump("diff", "--from", address(server, database), run).stdout[-600:])
    done = dump("verify", "--from", address(server, database))
    check(done.returncode == 0, "nothing of what was fetched is damaged", done.stdout + done.stderr)
    done = dump("recover", "--from", address(server, database), "-o", tmp_path / "kept")
    check(done.returncode == 0 and tensors(tmp_path / "kept", tmp_path / "again") == want, "recover keeps it as a run on disk", done.stdout + done.stderr)
    requests = [[(r["request"], r["computed"], r["prompt"]) for r in json.loads(dump("list", "--requests", "--json", *words).stdout)["requests"]]
                for words in ([run], ["--from", address(server, database)])]
    check(name == "drafts" or requests[0] == requests[1], "requests are the same", requests)


def test_a_choice_of_it(server, tmp_path, check):
    run = schedule(tmp_path / "run", steps(6))
    replay(run, "--to", server.address("choice"))
    words = "--layer", "1", "--tokens", "2:5"
    check(tensors("--from", address(server, "choice"), *words, tmp_path / "a") == tensors(run, *words, tmp_path / "b"), "as of a run's folder")


def test_several_runs(server, tmp_path, check):
    runs = [schedule(tmp_path / name, steps(n)) for name, n in (("one", 2), ("two", 3))]
    for run in runs:
        replay(run, "--to", server.address("several"))
    said = dump("list", "--from", address(server, "several"))
    check(said.returncode == 2 and "name one of them with ?run=" in said.stderr, "they are named", said.stderr)
    for run in runs:
        folder = next(path for path in run.iterdir() if path.is_dir())
        uuid = json.loads((folder / "manifest.json").read_text())["uuid"]
        check(uuid in said.stderr, "this one, too", said.stderr)
        check(tensors("--from", address(server, "several", f"?run={uuid}"), tmp_path / "a") == tensors(folder, tmp_path / "b"), "and chosen by its id")
        (tmp_path / "a").unlink()
        (tmp_path / "b").unlink()


@pytest.mark.parametrize("words, said", [
    (("file:x",), "write clickhouse://HOST/DATABASE"), (("clickhouse://127.0.0.1:1/x",), "onnect"), (("{}?run=abc",), "is no UUID"),
    (("{}?run=00000000-0000-0000-0000-000000000000",), "there is no run 0000"), (("{}?layout=dmilib",), "has no records")])
def test_what_cannot_be(server, tmp_path, check, words, said):
    replay(schedule(tmp_path / "run", steps(1)), "--to", server.address("errors"))
    (tmp_path / "tmp").mkdir()
    done = dump("list", "--from", words[0].format(address(server, "errors")), TMPDIR=str(tmp_path / "tmp"))
    check(done.returncode == 2 and said in done.stderr, "is said", done.stderr)
    check(not list((tmp_path / "tmp").iterdir()), "and nothing is left")
