# SPDX-License-Identifier: Apache-2.0
"""dmi-replay --to clickhouse://...?cluster=: two real servers hold a part each, once, whichever of them or of us is killed."""
import json
import random
import time

import pytest

from clickhouse_server import PROGRAM, Server
from replay_kit import BUILT, make, replay, schedule, stream
from test_replay_clickhouse import MAKE_RUN, complete, paced, start

pytestmark = [pytest.mark.built(*BUILT), pytest.mark.skipif(not PROGRAM, reason="there is no clickhouse-server: ./bootstrap test has Debian's in build/clickhouse")]


@pytest.fixture(name="lab", scope="module")
def fixture_lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    servers = [Server(folder / name) for name in ("one", "two")]
    for server in servers:
        server.configure(servers)
        server.start()
    yield servers
    for server in servers:
        server.kill()


def address(lab, database, more=""):
    return lab[0].address(database, more=f"?cluster=lab&server=127.0.0.1:{lab[1].port}{more}")


def parts(lab, database):
    """How many records each server has."""
    return [int(server.one(f"SELECT uniq(run, chunk, record) FROM {database}.dmi_records_local")) for server in lab]


def test_a_part_each(lab, tmp_path, check):
    run = paced(tmp_path / "run", 100)
    replay(run, "--to", address(lab, "each"))
    found = parts(lab, "each")
    check(sum(found) == 200 and min(found) > 0, "both have some, none has all", found)
    for server in lab:
        complete(server, "each", run, check)
        check(int(server.one("SELECT uniq(type, xxh3) FROM each.dmi_records_facts FINAL")) > 100, "and what has no rows")
        check(int(server.one("SELECT sum(elements) FROM each.dmi_records_norms")) == 100 * 2 * 64, "and the views")
    chunks = [{row[0] for row in server.ask("SELECT DISTINCT chunk FROM each.dmi_records_local")} for server in lab]
    check(not chunks[0] & chunks[1], "a chunk is on one of them", chunks)


def test_again_is_once(lab, tmp_path, check):
    run = make(MAKE_RUN, tmp_path / "run")
    for _ in range(3):
        replay(run, "--to", address(lab, "again"))
    complete(lab[0], "again", run, check)
    complete(lab[1], "again", run, check)


def test_a_server_is_killed(lab, tmp_path, check):
    """Whichever it is, the batch is not taken: it waits, and goes on."""
    run, cursor, dice = paced(tmp_path / "run"), tmp_path / "cursor", random.Random(5)
    process = start(run, "--to", address(lab, "killed"), "--cursor", cursor, "--speed", "0.5")
    kills = []
    for i in range(4):
        time.sleep(dice.uniform(0.4, 0.9))
        kills.append(process.poll() is None)
        lab[i % 2].kill()
        time.sleep(0.3)
        lab[i % 2].start()
    said = process.communicate(timeout=90)[1]
    check(process.returncode == 0 and all(kills), "the replay ends well", said)
    complete(lab[0], "killed", run, check)


def test_the_tool_is_killed(lab, tmp_path, check):
    run, cursor, dice = paced(tmp_path / "run"), tmp_path / "cursor", random.Random(6)
    words, begun = (run, "--to", address(lab, "tool"), "--cursor", cursor), []
    for _ in range(6):
        process = start(*words, "--speed", "0.5")
        time.sleep(dice.uniform(0.5, 1.0))
        process.kill()
        process.communicate()
        begun.append(json.loads(cursor.read_text())["runs"][0]["records"] if cursor.exists() else 0)
    check(begun == sorted(begun) and begun[-1] > 0, "each went on where the one before was", begun)
    replay(*words)
    complete(lab[1], "tool", run, check)


@pytest.mark.parametrize("more, said", [("?cluster=elsewhere", "has no cluster elsewhere"), ("?server=127.0.0.1:1", "server= is for cluster=NAME"),
                                        ("?cluster=lab&layout=dmilib", "does not go with layout=dmilib"), ("?cluster=a-b", "only letters, digits and _"),
                                        ("?cluster=lab&server=a%20b", "is no HOST[:PORT]")])
def test_addresses(lab, tmp_path, more, said, check):
    done = replay(schedule(tmp_path / "run", ["step 0 1 r:0:1:0:2:0:0", "rec 2 0 0 4 1"]), "--to", lab[0].address("words", more=more), status=2)
    check(said in done.stderr.decode(), "is refused", done.stderr)
    check(stream(tmp_path / "run"), "and the run is as it was")
