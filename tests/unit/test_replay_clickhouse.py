# SPDX-License-Identifier: Apache-2.0
"""dmi-replay --to clickhouse://: what a real server holds in the end is what was recorded, once, whatever is killed."""
import itertools
import os
import json
import math
import random
import signal
import subprocess
import time

import pytest

from clickhouse_server import PASSWORD, PROGRAM, Server, free_port
from replay_kit import (BUILT, DMI_REPLAY, MAKE_ODD_RUN, MAKE_RUN, Growing, make, records, replay, schedule, steps, stream, wait_for)
from stream_reader import SIZES, values, xxh3

pytestmark = pytest.mark.built(*BUILT)
NAMES = itertools.count()


@pytest.fixture(name="server", scope="module")
def fixture_server(tmp_path_factory):
    if not PROGRAM:
        pytest.skip("there is no clickhouse-server: ./bootstrap test has Debian's in build/clickhouse")
    if "not in this build" in subprocess.run([DMI_REPLAY, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout:
        pytest.skip("dmi-replay was built without libcurl")
    server = Server(tmp_path_factory.mktemp("clickhouse") / "server").start()
    yield server
    server.kill()


@pytest.fixture(name="base")
def fixture_base(server):
    """A database of the test's own, which is not there yet."""
    del server
    return f"test{next(NAMES)}"


def held(server, base, table="dmi_records"):
    """{(run, chunk, record, part): the row} as FINAL has them, with payloads as bytes."""
    names = ("run chunk record part site layer request position rows dtype shape xxh3 norm mean greatest not_finite elements scale step forward launch "
             "first_row phase rejected superseded tp payload").split()
    columns = ", ".join({"payload": "hex(payload)", "request": "hex(request)"}.get(n, n) for n in names)
    rows = [dict(zip(names, row)) for row in server.ask(f"SELECT {columns} FROM {base}.{table} FINAL ORDER BY run, chunk, record, part")]
    for row in rows:
        row["payload"], row["shape"] = bytes.fromhex(row["payload"]), json.loads(row["shape"])
        row["request"] = bytes.fromhex(row["request"]).decode(errors="replace")
    found = {(r["run"], int(r["chunk"]), int(r["record"]), int(r["part"])): r for r in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def payloads(found):
    """{(run, chunk, record, request): all bytes} of what a server or a stream has."""
    out = {}
    for (run, chunk, record, _), row in sorted(found.items()):
        out[run, chunk, record, row["request"]] = out.get((run, chunk, record, row["request"]), b"") + row["payload"]
    return out


def payloads_of(frames):
    out = {}
    for f in records(frames):
        for entry, _, data in f.rows:
            place = f.facts["run"], f.facts["chunk"], f.facts["record"], entry["request"] or ""
            out[place] = out.get(place, b"") + data
    return out


def start(*words, **options):
    return subprocess.Popen([DMI_REPLAY, *map(str, words)], stderr=subprocess.PIPE, text=True, **options)


def complete(server, base, run, check, *words):
    """What the server has is what the run has."""
    found, frames = held(server, base), stream(run, *words)
    check(payloads(found) == payloads_of(frames), "every record, each once, with its bytes", (len(payloads(found)), len(payloads_of(frames))))
    check(all(int(r["xxh3"]) == xxh3(r["payload"]) for r in found.values()), "and its checksum")
    return found, frames


# ---------------------------------------------------------------------------------------------------- what is there


def test_every_row(server, base, tmp_path, check):
    run = make(MAKE_RUN, tmp_path / "run")
    replay(run, "--to", server.address(base))
    found, frames = complete(server, base, run, check)
    facts = {(f.facts["run"], f.facts["chunk"], f.facts["record"]): f.facts for f in records(frames)}
    wanted = [(e["request"] or "", e["position"], e["rows"], e["first_row"], e["phase"]) for f in records(frames) for e in f.facts["rows"]]
    check(sorted((r["request"], int(r["position"]), int(r["rows"]), int(r["first_row"]), r["phase"]) for r in found.values()) ==
          sorted((a, -1 if b is None else b, *c) for a, b, *c in wanted), "a row for each owner of rows", len(found))
    for place, row in found.items():
        f, v = facts[place[:3]], values(row["dtype"], row["payload"])
        layer = -1 if f["layer"] is None else f["layer"]
        if (f["site"], layer, f["dtype"], f["step"], f["forward"], f["launch"], f["scale"], f["rank"]["tp"]) != (
                row["site"], int(row["layer"]), row["dtype"], int(row["step"]), int(row["forward"]), int(row["launch"]), float(row["scale"]), int(row["tp"])):
            check(False, "what it is of", (f, row))
        if not (row["shape"][0] == int(row["rows"]) and math.prod(row["shape"]) == int(row["elements"]) == len(v)):
            check(False, "its shape", row)
        if not (math.isclose(float(row["norm"]), math.hypot(*v)) and math.isclose(float(row["mean"]), sum(v) / len(v), abs_tol=1e-12) and
                float(row["greatest"]) == max(map(abs, v)) and row["not_finite"] == "0"):
            check(False, "its statistics", row)


def test_what_is_no_number(server, base, tmp_path, check):
    run = schedule(tmp_path / "run", ["step 0 2 a:0:2:0:1:0:0", "put 0 0 3 f64 1 nan -4 inf -inf 2", "put 0 1 1 f64 nan nan"])
    replay(run, "--to", server.address(base))
    rows = {r["layer"]: r for r in held(server, base).values()}
    check((float(rows["0"]["norm"]), float(rows["0"]["mean"]), float(rows["0"]["greatest"]), rows["0"]["not_finite"]) ==
          (math.sqrt(21), -1 / 3, 4, "3"), "statistics are of the finite ones", rows["0"])
    check((rows["1"]["norm"], rows["1"]["mean"], rows["1"]["greatest"], rows["1"]["not_finite"]) == ("0", "0", "0", "2"), "or 0", rows["1"])


def test_parts(server, base, tmp_path, check):
    """Rows of 12 MB are cut, rows of 3 MB go two by two."""
    run = schedule(tmp_path / "run", ["step 0 2 a:0:2:0:1:0:0", "wide 0 3000000", "step 1 5 a:0:5:2:1:0:0", "wide 1 750000"])
    replay(run, "--to", server.address(base))
    found, _ = complete(server, base, run, check)
    parts = {layer: [(int(k[3]), r["shape"], int(r["position"]), int(r["rows"])) for k, r in found.items() if r["layer"] == layer] for layer in "01"}
    most = 2 << 20
    check(parts["0"] == [(0, [most], 0, 1), (most, [3000000 - most], 0, 1), (3000000, [most], 1, 1), (3000000 + most, [3000000 - most], 1, 1)], "elements of a row",
          parts["0"])
    batches = server.ask(f"SELECT rows, data_uncompressed_bytes FROM system.parts WHERE database = '{base}' AND table = 'dmi_records' AND level = 0")
    check(len(batches) >= 3 and all(int(n) < 16 << 20 for _, n in batches), "in batches of at most 16 MiB", batches)
    check(parts["1"] == [(0, [2, 750000], 2, 2), (1500000, [2, 750000], 4, 2), (3000000, [1, 750000], 6, 1)], "rows", parts["1"])


def test_odd_runs(server, base, tmp_path, check):
    for kind in ("names", "drafts", "again"):
        run = make(MAKE_ODD_RUN, tmp_path / kind, kind)
        replay(run, "--to", server.address(f"{base}{kind}"))
        if kind != "names":  # ids that are no UTF-8 look alike in the stream
            complete(server, f"{base}{kind}", run, check)
    ids = {bytes.fromhex(row[0]) for row in server.ask(f"SELECT DISTINCT hex(request) FROM {base}names.dmi_records")}
    check({b"\xff", b"\xfe", b"a\nDAMAGED: forged"} <= ids, "ids of any bytes", ids)
    facts = [json.loads(row[0]) for row in server.ask(f"SELECT facts FROM {base}drafts.dmi_records_facts WHERE type = 'outcome' FORMAT TabSeparatedRaw")]
    check(len(facts) == 5 and any(f.get("accepted") == [[0, 2]] for f in facts), "what became of drafts is in the other table", facts)
    run = make(MAKE_RUN, tmp_path / "anonymous", "anonymous")
    replay(run, "--to", server.address(f"{base}none"))
    found, _ = complete(server, f"{base}none", run, check)
    check({(r["request"], r["step"], r["tp"]) for r in found.values()} == {("", "-1", "-1")}, "without steps there is no request")


def test_twice_is_once(server, base, tmp_path, check):
    run = make(MAKE_RUN, tmp_path / "run")
    for _ in range(3):
        replay(run, "--to", server.address(base))
    n, n_final = (int(server.one(f"SELECT count() FROM {base}.dmi_records {final}")) for final in ("", "FINAL"))
    check(n == 3 * n_final, "sent three times", (n, n_final))
    complete(server, base, run, check)


# ---------------------------------------------------------------------------------------------------- views


def test_a_cursor_does_not_speak_for_an_emptied_table(server, base, tmp_path, check):
    run, cursor = schedule(tmp_path / "run", steps(3)), tmp_path / "cursor"
    words = (run, "--to", server.address(base), "--cursor", cursor)
    replay(*words)
    check("was replayed before" in replay(*words).stderr.decode(), "the rows are there")
    server.ask(f"DROP TABLE {base}.dmi_records")
    check("dmi_records" in replay(*words, status=2).stderr.decode(), "a table that is gone")
    replay(schedule(tmp_path / "other", steps(3)), "--to", server.address(base))
    check("has nothing of run" in replay(*words, status=2).stderr.decode(), "a table of another run")


def test_views(server, base, tmp_path, check):
    run = schedule(tmp_path / "run", steps(6, width=8, layers=2, request="r", tokens=2))
    for _ in range(2):
        replay(run, "--to", server.address(base))
    norms = server.ask(f"SELECT site, layer, elements, norm, not_finite FROM {base}.dmi_records_norms ORDER BY layer")
    v = {layer: [x for f in records(stream(run)) if f.facts["layer"] == layer for x in values("i32", f.payload)] for layer in (0, 1)}
    check([(s, int(k), int(n), int(o)) for s, k, n, _, o in norms] == [("h", 0, 96, 0), ("h", 1, 96, 0)] and
          all(math.isclose(float(row[3]), math.hypot(*v[int(row[1])])) for row in norms), "norms by layer, nothing twice", norms)
    tokens = server.ask(f"SELECT request, token, step, phase, tensors FROM {base}.dmi_records_tokens ORDER BY token")
    check(tokens == [["r", str(i), str(i // 2), "prefill", "2"] for i in range(12)], "tokens of a request", tokens)
    scaled = make(MAKE_RUN, tmp_path / "scaled")
    replay(scaled, "--to", server.address(base), "--site", "logits")
    got = float(server.one(f"SELECT norm FROM {base}.dmi_records_norms WHERE site = 'logits'"))
    wanted = math.hypot(*(x for f in records(stream(scaled, "--site", "logits")) for x in values("f32", f.payload))) / 4
    check(math.isclose(got, wanted), "of true values: divided by the scale", (got, wanted))


# ---------------------------------------------------------------------------------------------------- kills


def paced(folder, n=300):
    words = []
    for i in range(n):
        words += [f"at {10**12 + i * 10_000_000}", f"step {i} 1 r:0:1:{i}:2:0:0", "rec 2 0 0 64 1", "rec 2 1 0 64 1"]
    return schedule(folder, words)


def test_the_tool_is_killed(server, base, tmp_path, check):
    run, cursor, dice = paced(tmp_path / "run"), tmp_path / "cursor", random.Random(3)
    words, begun = (run, "--to", server.address(base), "--cursor", cursor), []
    for _ in range(10):
        process = start(*words, "--speed", "0.5")
        time.sleep(dice.uniform(0.3, 0.9))
        process.kill()
        process.communicate()
        begun.append(json.loads(cursor.read_text())["runs"][0]["records"])
    check(begun == sorted(begun) and len(set(begun)) > 4 and begun[-1] < 600, "each went on where the one before was", begun)
    replay(*words)
    complete(server, base, run, check)
    check("was replayed before" in replay(*words).stderr.decode(), "and then nothing is left")
    check(PASSWORD not in cursor.read_text() and "secret" not in cursor.read_text(), "the cursor has no password", cursor.read_text()[:300])


def test_the_server_is_killed(server, base, tmp_path, check):
    run, cursor, dice = paced(tmp_path / "run"), tmp_path / "cursor", random.Random(4)
    process = start(run, "--to", server.address(base), "--cursor", cursor, "--speed", "0.5")
    kills = 0
    for _ in range(4):
        time.sleep(dice.uniform(0.2, 0.8))
        kills += process.poll() is None
        server.kill()
        time.sleep(0.3)
        server.start()
    said = process.communicate(timeout=60)[1]
    check(process.returncode == 0 and kills == 4, "it waits, and goes on", said)
    check("it is asked again" in said and "answers again" in said, "and says so", said)
    complete(server, base, run, check)


def test_a_server_that_stands_still(server, base, tmp_path, check):
    run = paced(tmp_path / "run", 100)
    process = start(run, "--to", server.address(base), "--cursor", tmp_path / "cursor", "--speed", "1")
    time.sleep(0.3)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    held_back = process.poll() is None
    server.process.send_signal(signal.SIGCONT)
    said = process.communicate(timeout=60)[1]
    check(held_back and process.returncode == 0, "it is waited for", said)
    complete(server, base, run, check)


def test_a_full_disk(server, tmp_path, check):
    """Room for half of the run; then there is more."""
    del server
    if subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("a disk of a test's own: user namespaces are not allowed here")
    run = schedule(tmp_path / "run", [line for i in range(6) for line in (f"step {i} 4 a:0:4:{4 * i}:1:0:0", "wide 0 300000")])
    small = Server(tmp_path / "small", disk=100 << 20).start()
    try:
        ballast = small.on_disk("ballast")
        with open(ballast, "wb") as file:
            file.write(bytes(85 << 20))
        process = start(run, "--to", small.address("x"), "--cursor", tmp_path / "cursor")
        wait_for(lambda: "asked again" in process.stderr.readline())
        time.sleep(1)
        check(process.poll() is None, "it waits")
        ballast.unlink()
        said = process.communicate(timeout=60)[1]
        check(process.returncode == 0 and "answers again" in said, "until there is room", said)
        complete(small, "x", run, check)
    finally:
        small.kill()


def test_given_up_and_stopped(server, base, tmp_path, check):
    run, cursor = paced(tmp_path / "run"), tmp_path / "cursor"
    words = (run, "--to", server.address(base, more="?give_up=1"), "--cursor", cursor)
    process = start(*words, "--speed", "0.5")
    wait_for(lambda: cursor.exists() and json.loads(cursor.read_text())["runs"][0]["records"] > 20)
    server.kill()
    said = process.communicate(timeout=60)[1]
    check(process.returncode == 2 and "given up after 1 s" in said, "a server that stays away", said)
    server.start()
    process = start(*words, "--speed", "0.5")
    time.sleep(0.7)
    server.kill()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    check(process.returncode == 1 and "stopped by a signal" in said, "a signal ends the wait", (process.returncode, said))
    server.start()
    replay(*words)
    complete(server, base, run, check)


def test_follow(server, base, tmp_path, check):
    run = Growing(tmp_path / "run")
    process = start(run.folder, "--to", server.address(base), "--cursor", tmp_path / "cursor", "--follow")
    for i in range(1, 4):
        run.add(5)
        wait_for(lambda n=10 * i: server.one(f"EXISTS {base}.dmi_records") == "1" and int(server.one(f"SELECT count() FROM {base}.dmi_records")) >= n)
    server.kill()
    run.add(5)
    server.start()
    run.close()
    said = process.communicate(timeout=60)[1]
    check(process.returncode == 0, "to the end of the run", said)
    complete(server, base, run.folder, check)


# ---------------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("user, more, said", [
    ("default:wrong", "", "Code: 193, e.displayText() = DB::Exception: Wrong password"),
    ("nobody", "", "Unknown user nobody"),
    ("default", "?what=1", "'what' is not known"),
    ("default", "?table=a-b", "a table has only letters"),
    ("default", "?layout=x", "write dmi or dmilib"),
    ("default", "?give_up=soon", "is no number up to"),
    ("default", "?password_file=/nowhere", "cannot read a password from /nowhere"),
])
def test_addresses(server, base, tmp_path, user, more, said, check):
    run = schedule(tmp_path / "run", steps(2))
    done = replay(run, "--to", server.address(base, user=user, more=more), status=2)
    check(said in done.stderr.decode() and done.stderr.count(b"\n") == 1, "one sentence", done.stderr)
    check(server.one(f"SELECT count() FROM system.databases WHERE name = '{base}'") == "0", "and there is no database then")


def test_nobody_listens(server, tmp_path, check):
    del server
    run = schedule(tmp_path / "run", steps(2))
    begin = time.monotonic()
    done = replay(run, "--to", f"clickhouse://127.0.0.1:{free_port()}/", status=2)
    check(b"Couldn't connect" in done.stderr and time.monotonic() - begin < 5, "at once", done.stderr)


def test_without_libcurl(server, tmp_path, check):
    """Libraries of these names that are none: no other is looked for then."""
    del server
    run = schedule(tmp_path / "run", steps(2))
    for name in ("libcurl.so.4", "libcurl-gnutls.so.4"):
        (tmp_path / name).write_bytes(b"")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("LD_LIBRARY_PATH"))))
    done = replay(run, "--to", "clickhouse://127.0.0.1/", status=2, env={**os.environ, "LD_LIBRARY_PATH": path})
    check(b"needs libcurl: install it" in done.stderr and done.stderr.count(b"\n") == 1, "it says what to install", done.stderr)


def test_passwords(server, base, tmp_path, check, monkeypatch):
    run, file = schedule(tmp_path / "run", steps(2)), tmp_path / "password"
    file.write_text(PASSWORD + "\nmore\n")
    replay(run, "--to", server.address(base, user="default", more=f"?password_file={file}"))
    monkeypatch.setenv("DMI_CLICKHOUSE_PASSWORD", PASSWORD)
    replay(run, "--to", server.address(base, user="default"))
    complete(server, base, run, check)


def test_tables_of_others(server, base, tmp_path, check):
    run = schedule(tmp_path / "run", steps(2))
    server.ask(f"CREATE DATABASE {base}")
    server.ask(f"CREATE TABLE {base}.mine (a String) ENGINE = MergeTree ORDER BY a")
    done = replay(run, "--to", server.address(base, more="?table=mine"), status=2)
    check(b"is there already, and dmi_schema does not know it" in done.stderr, "is left alone", done.stderr)
    replay(run, "--to", server.address(base))
    server.ask(f"ALTER TABLE {base}.dmi_records DROP COLUMN norm")
    done = replay(run, "--to", server.address(base), status=2)
    check(b"has no column 'norm' of type Float64" in done.stderr, "a column that is gone", done.stderr)
    check("norm" not in [row[0] for row in server.ask(f"DESCRIBE TABLE {base}.dmi_records")], "is not put back")
    replay(run, "--to", server.address(base, more="?layout=dmilib&table=mine"), status=2)


def test_a_column_goes_meanwhile(server, base, tmp_path, check):
    run = paced(tmp_path / "run", 100)
    process = start(run, "--to", server.address(base), "--cursor", tmp_path / "cursor", "--speed", "0.5")
    wait_for(lambda: server.one(f"EXISTS {base}.dmi_records") == "1" and server.one(f"SELECT count() FROM {base}.dmi_records") != "0")
    server.ask(f"ALTER TABLE {base}.dmi_records DROP COLUMN greatest")
    said = process.communicate(timeout=30)[1]
    check(process.returncode == 2 and "greatest" in said and said.count("\n") == 1, "the server's own words, at once", said)


def test_versions(server, base, tmp_path, check):
    run = schedule(tmp_path / "run", steps(3))
    replay(run, "--to", server.address(base))
    later = ("elements scale step_sequence forward launch occurrence device first_row phase rejected superseded model job pid").split()
    for name in ("norms", "tokens"):
        server.ask(f"DROP TABLE {base}.dmi_records_{name}")
    server.ask(f"ALTER TABLE {base}.dmi_records " + ", ".join(f"DROP COLUMN {name}" for name in later))
    server.ask(f"DROP TABLE {base}.dmi_schema")
    server.ask(f"CREATE TABLE {base}.dmi_schema (name String, version UInt32) ENGINE = ReplacingMergeTree ORDER BY (name, version)")
    server.ask(f"INSERT INTO {base}.dmi_schema VALUES ('dmi_records', 1)")
    other = schedule(tmp_path / "other", steps(4))
    replay(other, "--to", server.address(base))
    found = held(server, base)
    check(payloads(found) == payloads_of(stream(run)) | payloads_of(stream(other)), "version 1 is migrated, and loses nothing", len(found))
    check(server.one(f"SELECT max(version) FROM {base}.dmi_schema") == "2" and server.ask(f"SELECT * FROM {base}.dmi_records_norms"), "and says so")
    server.ask(f"INSERT INTO {base}.dmi_schema VALUES ('dmi_records', 3)")
    done = replay(run, "--to", server.address(base), status=2)
    check(b"has schema version 3, of a newer dmi-replay" in done.stderr, "a newer one is refused", done.stderr)


def test_dmilib(server, base, tmp_path, check):
    run = make(MAKE_RUN, tmp_path / "run")
    done = replay(run, "--to", server.address(base, more="?layout=dmilib"))
    check(b"at least once" in done.stderr, "it says what it does not promise", done.stderr)
    rows = server.ask(f"SELECT model_id, request_id, act_name, layer_no, shard_rank, start_token_idx, end_token_idx, dtype, shape, hex(bytes) FROM {base}.activations")
    wanted = [("formula", f.facts["site"], SIZES[f.facts["dtype"]] * math.prod(f.facts["shape"])) for f in records(stream(run))]
    check(sum(len(row[9]) // 2 for row in rows) == sum(n for *_, n in wanted) and {row[2] for row in rows} == {site for _, site, _ in wanted}, "all bytes", len(rows))
    row = [r for r in rows if (r[1], r[2], r[3], r[5]) == ("france", "q", "1", "0")][0]
    f = [f for f in records(stream(run, "--request", "france", "--site", "q", "--layer", 1))][0]
    check(row[4:9] == ["0", "0", "3", "f32", json.dumps(f.facts["shape"]).replace(" ", "")] and bytes.fromhex(row[9]) == f.payload, "as DMI-Lib has it", row)
    types = server.ask(f"DESCRIBE TABLE {base}.activations")
    check([t[1] for t in types] == ["String"] * 3 + ["Int32"] * 4 + ["String", "Array(Int64)", "String"], "and its types", types)


def test_tls(server, tmp_path, check):
    del server
    run = schedule(tmp_path / "run", steps(2))
    secure = Server(tmp_path / "tls", tls=True).start()
    try:
        address = f"clickhouse://default@127.0.0.1:{secure.https}/x?secure=1&password_file={tmp_path}/password"
        (tmp_path / "password").write_text(PASSWORD)
        replay(run, "--to", f"{address}&ca={secure.folder}/cert.pem")
        complete(secure, "x", run, check)
        done = replay(run, "--to", address, status=2)
        check(b"certificate" in done.stderr, "a certificate that nobody knows is refused", done.stderr)
    finally:
        secure.kill()
