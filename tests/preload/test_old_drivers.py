# SPDX-License-Identifier: Apache-2.0
"""Drivers that lack what the library would rather call: a program of their days is captured, by what they have.

Parameters are packed here: such sites need no layout (docs/hookspec.md), which these drivers do not tell.
"""
import pathlib
import sys

import pytest

from harness import STANDIN_VERSIONS, standin_folder
from kit import START, filled, site, spec

CLIENT = pathlib.Path(__file__).with_name("old_client.py")
TEXT = spec(site(pointer="param[0]", dims="[{row: true, count: 'param[8].u32'}]"))
N = 64

pytestmark = pytest.mark.built(*(standin_folder(v) / "libcuda.so.1" for v in STANDIN_VERSIONS))


@pytest.mark.parametrize("result", [200, 209])
def test_machine_code_that_the_driver_does_not_know(bench, result):
    """The library's fatbin holds that of a newer toolkit: the PTX of its kernels is for every driver."""
    r = bench.alike("no machine code", START + ["launch block 0 1 64 p 64 5", "sync"], spec(site()),
                    DMI_STANDIN_FAIL=f"cuModuleLoadData:2:{result}")
    bench.captured("no machine code", r, [filled(5, N)])


@pytest.mark.parametrize("version", STANDIN_VERSIONS)
def test_a_kernel_that_nobody_saw_looked_up(bench, version):
    r = bench.alike("unseen", [], TEXT, command=[sys.executable, CLIENT, "unseen"], LD_LIBRARY_PATH=standin_folder(version))
    listed = version >= 12040  # the driver says what a library holds
    bench.check(r.stderr.count("no launch matched") == (not listed), "the site says so, once", r.stderr)
    bench.captured("listed or not", r, [filled(1, N)] if listed else [])


@pytest.mark.parametrize("version", STANDIN_VERSIONS)
@pytest.mark.parametrize("scenario, since, seeds", [
    ("graph", 11000, [1, 2, 1, 3, 4, 5]), ("capture", 11000, [1, 2, 1, 2]), ("kernel", 12000, [1]),
    ("another_context_ends", 11000, [1, 2, 3]), ("a_handle_comes_back", 11000, [7, 7])])
def test_it_is_captured(bench, version, scenario, since, seeds):
    if version < since:
        pytest.skip("there were no libraries then")
    r = bench.alike(scenario, [], TEXT, command=[sys.executable, CLIENT, scenario], LD_LIBRARY_PATH=standin_folder(version))
    bench.check(r.code == 0, f"{scenario}: the program runs", r.stderr[-500:])
    bench.captured(scenario, r, [filled(seed, N) for seed in seeds])
