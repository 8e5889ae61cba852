# SPDX-License-Identifier: Apache-2.0
"""Green contexts: a share of a device's multiprocessors with streams of its own. What runs there is captured there."""
import pathlib
import sys

import pytest

from kit import filled, site, spec

pytest.importorskip("cuda.bindings")
pytestmark = pytest.mark.since(12050, "streams of green contexts")

CLIENT = pathlib.Path(__file__).with_name("green_client.py")


@pytest.mark.parametrize("way, seeds", [("stream", range(8)), ("current", range(6)), ("destroyed", range(4))])
def test_green(bench, way, seeds):
    text = spec(site("block"), head="ring: {bytes: 1M, slots: 512}\n")
    result = bench.alike(way, [], text, command=[sys.executable, CLIENT, way], timeout=60)
    if not bench.check(result.code == 0 and result.folders, f"{way}: the program runs, and a run is written", result.stderr[-600:]):
        return
    run = result.run()
    got = sorted(r.words for r in run.of(0))  # rings of several contexts, in no order among them
    bench.check(got == sorted(filled(s, 64) for s in seeds), f"{way}: each launch is captured, wherever it runs",
                f"{[w[0] >> 16 for w in got]} {run.counters.dropped} {result.stderr[-600:]}")
    bench.check(not run.balance(), f"{way}: every record is accounted for", run.balance())
