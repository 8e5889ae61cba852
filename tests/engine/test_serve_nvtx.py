# SPDX-License-Identifier: Apache-2.0
"""The serving engine by its NVTX ranges alone: specs/engine-smollm2-nvtx.yaml, which names no kernel, captures what the spec of
kernels' names does, bit for bit, eager, in graphs, piecewise, and with drafts. The ranges are pushed through NVIDIA's own library.
"""
import collections
import json

import pytest

import harness
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN

pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")

import serving  # noqa: E402
from segments import read_run  # noqa: E402

NAME = "libnvtx3interop.so.1"
NVTX = next((p for p in (ROOT / "build/toolchain/nvidia/cu13/lib" / NAME, *BUILD.parents[0].glob(f"toolchain/**/{NAME}"))
             if p.exists()), ROOT / "build/toolchain/nvidia/cu13/lib" / NAME)
pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", NVTX, *serving.KERNELS)
BY_RANGE = (ROOT / "specs" / "engine-smollm2-nvtx.yaml").read_text()
MODES = {"eager": ["--mode", "eager"], "graph": ["--mode", "graph"], "piecewise": ["--mode", "piecewise"],
         "drafts": ["--mode", "graph", "--speculate", "2"]}


def records_of(served):
    """{(site, layer, step): (shape, rows, data)}: each is there once."""
    records, steps = read_run(served.run)
    names, found, n = serving.site_names(served.run), {}, collections.Counter()
    for r in records:
        key = names[r.site], r.layer, steps[r.step][0]
        found[key] = r.dims, r.kept, r.data
        n[key] += 1
    return found, [key for key, times in n.items() if times > 1]


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=[] if mode == "drafts" else [pytest.mark.long]) for mode in MODES])
def test_ranges_capture_what_names_of_kernels_do(check, tmp_path, mode):
    server, requests = serving.Server(tmp_path, layers=2), serving.some("france", "one", "count", tokens=6)
    plain = server.serve("plain", requests, *MODES[mode])
    by_name = server.serve("by-name", requests, *MODES[mode], spec=serving.spec_text("float32"))
    by_range = server.serve("by-range", requests, *MODES[mode], "--nvtx", NVTX, spec=BY_RANGE)
    check(plain.results == by_name.results == by_range.results, f"{mode}: the same tokens")
    check(any(step["replayed"] for step in by_range.trace) == (mode != "eager"), f"{mode}: steps are replayed")
    (want, _), (got, twice) = records_of(by_name), records_of(by_range)
    check(not twice, f"{mode}: no tensor is there twice", twice[:5])
    missing, more = sorted(want.keys() - got.keys()), sorted(got.keys() - want.keys())
    check(len(want) > 150 and not missing and not more, f"{mode}: {len(want)} records by either", f"missing {missing[:5]}, too many {more[:5]}")
    differ = [key for key in want.keys() & got.keys() if want[key] != got[key]]
    check(not differ, f"{mode}: the same bits", differ[:5])
    counters = harness.Counters(by_range.run)
    problems = json.loads((by_range.run / "manifest.json").read_text()).get("problems", [])
    harness.run([DMI_DUMP, "verify", by_range.run])
    check(not problems and not any(counters.dropped) and counters.state == counters.CLOSED, f"{mode}: nothing is dropped or reported",
          f"{problems[:3]} {counters.dropped}")
