# SPDX-License-Identifier: Apache-2.0
"""dmi-view's memory: ten times the tokens take at most 1.2 times as much, for each kind of page."""
import pytest

from costs import cost
from long_runs import write_heads, write_hidden
from report import VIEW

pytestmark = pytest.mark.built(VIEW)
BOUND = 1.2


def maps(folder, n):
    return [write_hidden(folder, n, layers=30, width=16)]


def heads(folder, n):
    """Of the last queries alone, which see all keys: all of them take ten seconds of CPU."""
    return [write_heads(folder, n, layers=2, heads=9, kv=3, dim=64), "--tokens", "-300:"]


def two(folder, n):
    folder.mkdir()
    return [write_hidden(folder / str(seed), n, layers=30, width=64, seed=seed) for seed in (0, 1)]


@pytest.mark.parametrize("words", [maps, heads, two])
def test_ten_times_the_tokens(check, tmp_path, words):
    peaks = []
    for n in (1000, 10000):
        status, _, peak = cost(VIEW, *words(tmp_path / str(n), n), "-o", tmp_path / f"{n}.html")
        check(status == 0, f"a report of {n} tokens", status)
        peaks.append(peak)
    check(peaks[1] < BOUND * peaks[0], f"peak of resident memory: {peaks[1] / peaks[0]:.2f}", peaks)


def test_where_no_file_can_be_kept(check, tmp_path):
    """Then memory has all: the same report."""
    for name, words in (("one", maps(tmp_path / "one", 3000)), ("two", two(tmp_path / "two", 3000))):
        outs = [tmp_path / f"{name}-{where}.html" for where in ("file", "memory")]
        for out, more in zip(outs, ([], ["env", "TMPDIR=/nowhere"])):
            check(cost(*more, VIEW, *words, "-o", out)[0] == 0, f"{out.name} is there")
        check(outs[0].read_bytes() == outs[1].read_bytes(), f"{name}: the same bytes")
