# SPDX-License-Identifier: Apache-2.0
"""What a capturing process keeps on disk, by its environment: segments of a size and an age, the latest of them, synced in time."""
import json

import pytest

import harness
from kit import START, filled, site, spec

pytestmark = pytest.mark.built(harness.DMI_DUMP)
TEXT = spec(site())
LAUNCHES = 120


def script(pause=""):
    lines = [line for i in range(LAUNCHES) for line in (f"launch block 0 1 64 p 64 {i}", "flush 9000", *([pause] if pause and not i % 20 else []))]
    return [*START, *lines, "sync", "digest p 256"]


def alike(bench, what, lines, **env):
    """The program says the same without the library, but for what only the library answers. Return: the result with it"""
    without, result = bench.run(lines, preload=False), bench.run(lines, TEXT, **env)
    said = [[line for line in r.stdout.splitlines() if not line.startswith("flush ")] for r in (without, result)]
    bench.check(said[0] == said[1] and result.code == without.code, f"{what}: the program says the same without the library", said)
    return result


def dump(command, folder, *words):
    done = harness.run([harness.DMI_DUMP, command, folder, *words], check=False)
    return done.returncode, done.stdout


def test_the_latest_segments_are_kept(bench):
    r = alike(bench, "DMI_KEEP_BYTES", script(), DMI_SEGMENT_BYTES=4000, DMI_KEEP_BYTES="20K")
    folder = r.folders[0]
    kept = sum(path.stat().st_size for path in folder.glob("seg-*"))
    bench.check(kept <= 20 * 1024 + 4000, "at most a segment more is there", kept)
    bench.check(dump("verify", folder)[0] == 0, "dmi-dump verify", dump("verify", folder)[1])
    manifest = json.loads((folder / "manifest.json").read_text())
    released = [s["file"] for s in manifest["segments"] if s.get("released")]
    bench.check(released == [s["file"] for s in manifest["segments"]][:len(released)] and len(released) > 5, "the oldest are gone", released)
    bench.check(not any((folder / name).exists() for name in released), "their files, too", released)
    gone, = manifest["released"]
    found = json.loads(dump("list", folder, "--records", "--json")[1])["records"]
    bench.check(gone["records"] + len(found) == LAUNCHES, "the others are all there", f"{gone} {len(found)}")
    stats = json.loads(dump("stats", folder, "--json")[1])["accounting"]
    bench.check(stats == {"expected": LAUNCHES, "captured": LAUNCHES, "released": gone["records"], "dropped": 0, "lost": 0, "balances": True},
                "the accounting says so", stats)
    bench.check(f"captured {LAUNCHES} ({gone['records']} of them released)" in dump("verify", folder)[1], "and in words")
    bench.check([r["forward"] for r in found] == sorted(r["forward"] for r in found), "in order")


def test_segments_are_closed_by_time(bench):
    r = alike(bench, "DMI_SEGMENT_SECONDS", script("sleep 60"), DMI_SEGMENT_SECONDS="40ms")
    bench.captured("DMI_SEGMENT_SECONDS", r, [filled(seed, 64) for seed in range(LAUNCHES)])
    n = len(list(r.folders[0].glob("seg-*")))
    bench.check(n >= 4, "several segments in one run", n)


@pytest.mark.parametrize("name, value, said", [
    ("DMI_DURABILITY", "close", "DMI_DURABILITY=close is none of none, interval, each: interval is used"),
    ("DMI_KEEP_SECONDS", "1.5", "DMI_KEEP_SECONDS=1.5 is no time (seconds, or a number with ms): ignored"),
    ("DMI_KEEP_SECONDS", "-3", "DMI_KEEP_SECONDS=-3 is no time"), ("DMI_KEEP_BYTES", "lots", "DMI_KEEP_BYTES=lots is no size")])
def test_what_cannot_be_is_said(bench, name, value, said):
    r = bench.alike(name, [*START, "launch block 0 1 64 p 64 1", "sync", "digest p 256"], TEXT, **{name: value})
    bench.captured(name, r, [filled(1, 64)])
    bench.check(said in r.stderr, "the log has it", r.stderr[-400:])
