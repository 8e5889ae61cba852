#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What storing costs a serving engine: storage.py DMI_RUN DMI_REPLAY [LAYERS [TOKENS]].

The engine and requests of serve.py, every site captured, and stored: nowhere (on a full disk, so every record is drained, encoded and dropped), on a tmpfs, on the disk by each durability, and on the disk while dmi-replay follows the run into a ClickHouse server on the same
machine. Rounds in turn; the median of the decode steps and its ratio to storing nowhere, what was stored and dropped, and how long after the
engine's end the server had all.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import serve

sys.path.insert(0, str(serve.ROOT / "tests" / "unit"))
import clickhouse_server  # noqa: E402

ROUNDS = 3
WAYS = {
    "nowhere: a full disk": {"full": True},
    "tmpfs": {"folder": "/dev/shm"},
    "disk, durability none": {"DMI_DURABILITY": "none"},
    "disk, durability interval": {"DMI_DURABILITY": "interval"},
    "disk, durability each": {"DMI_DURABILITY": "each"},
    "disk, then ClickHouse": {"server": True},
}


def follow(dmi_replay, out, server, database):
    """dmi-replay from the run that appears in @out, as soon as it does."""
    while not (out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir())):
        time.sleep(0.01)
    return subprocess.Popen([dmi_replay, out, "--follow", "--to", server.address(database)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def engine(folder, way, layers, dmi_run, out):
    """The engine, begun; its run comes into @out."""
    (folder / "spec.yaml").write_text(serve.spec())
    mount = f"mount -t tmpfs -o size=1m none {out} && \"$@\"; status=$?; cp -r {out} {folder}/seen; exit $status"
    full = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"] if "full" in way else []
    command = [*full, dmi_run, "--spec", folder / "spec.yaml", "--out", out, "--", *serve.command_of(folder, layers, "--steps")]
    env = os.environ | {key: value for key, value in way.items() if key.startswith("DMI_")}
    return subprocess.Popen([str(word) for word in command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def decodes(folder):
    return [clock for clock, _, _ in serve.decodes_of(folder)]


def tallies(dmi_replay, out):
    """(records captured, records dropped, bytes stored) of the run in @out"""
    dump = pathlib.Path(dmi_replay).with_name("dmi-dump")
    stats = json.loads(subprocess.run([dump, "stats", "--json", out], stdout=subprocess.PIPE, check=False).stdout or "{}").get("accounting", {})
    return stats.get("captured", 0), stats.get("dropped", 0), sum(path.stat().st_size for path in out.rglob("seg-*.dmi"))


def once(folder, name, layers, tokens, dmi_run, dmi_replay, server):
    """(seconds of decode steps, tallies, seconds from the engine's end to the server's)"""
    way = WAYS[name]
    requests = [{"id": f"r{k}", "prompt_tokens": [1, 504, 3575 + k, 282], "max_tokens": tokens, "ignore_stop": True} for k in range(8)]
    (folder / "requests").write_text(json.dumps({"requests": requests}))
    with tempfile.TemporaryDirectory(prefix="dmi-bench-storage-", dir=way.get("folder", folder)) as base:
        out, lag = pathlib.Path(base), 0.0
        process = engine(folder, way, layers, dmi_run, out)
        follower = follow(dmi_replay, out, server, f"bench{folder.name.replace('-', '_')}") if "server" in way else None
        if process.wait():
            raise SystemExit(f"{name}: the engine ended with {process.returncode}")
        if "full" in way:
            out = folder / "seen"
        if follower:
            ended = time.monotonic()
            follower.wait()
            lag = time.monotonic() - ended
        return decodes(folder), tallies(dmi_replay, out), lag


def may_mount():
    return not subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode


def main():
    dmi_run, dmi_replay, *more = sys.argv[1:]
    layers, tokens = (int(word) for word in (more + ["10", "16"][len(more):]))
    times, found = {name: [] for name in WAYS}, {}
    with tempfile.TemporaryDirectory(prefix="dmi-bench-storage-") as base:
        server = clickhouse_server.Server(pathlib.Path(base) / "server").start() if clickhouse_server.PROGRAM else None
        ways = [name for name, way in WAYS.items() if (server or "server" not in way) and (may_mount() or "full" not in way)]
        for i in range(ROUNDS):
            for n, name in enumerate(ways):
                folder = pathlib.Path(base) / f"{i}-{n}"
                folder.mkdir()
                seconds, *found[name] = once(folder, name, layers, tokens, dmi_run, dmi_replay, server)
                times[name] += seconds
        if server:
            server.kill()
    report(ways, times, found, layers)


def report(ways, times, found, layers):
    first = statistics.median(times[ways[0]])
    print(f"decode steps of 8 rows, {layers} layers, float32, in graphs, every site captured; median of {len(times[ways[0]])}")
    for name in ways:
        median, ((captured, dropped, size), lag) = statistics.median(times[name]), found[name]
        print(f"  {name:28} {median * 1e3:8.1f} ms  {median / first:5.2f}  {captured:6} records, {dropped} dropped, {size / 1e6:.1f} MB"
              + (f"; the server had all {lag:.1f} s after the engine's end" if lag else ""))
    for name in WAYS:
        if name not in ways:
            print(f"  {name:28} not tried: " + ("this process may mount nothing" if "full" in WAYS[name] else "there is no clickhouse-server"))


if __name__ == "__main__":
    main()
