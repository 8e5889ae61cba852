# SPDX-License-Identifier: Apache-2.0
"""What the suite `preload` adds: options of test_graph_calls.py, and the fixture `bench`."""
import pytest

from built import require
from kit import CLIENT, PRELOAD, Bench


def pytest_addoption(parser):
    group = parser.getgroup("test_graph_calls.py")
    group.addoption("--programs", default="", metavar="FIRST:LAST", help="the seeds of the programs to run")
    group.addoption("--length", type=int, default=400, help="operations of a program")
    group.addoption("--variants", default="", help="ways to run it, by comma")
    group.addoption("--minutes", type=float, default=0, help="begin no program after them")
    group.addoption("--shrink", action="store_true", help="say which operations may be left out of one that fails")
    group.addoption("--all", action="store_true", help="go on after a failure")


@pytest.fixture
def bench(tmp_path, check):
    """Runs scripts of driver calls in a folder of the test's own."""
    for path in (PRELOAD, CLIENT):
        require(path)
    return Bench(tmp_path, check)
