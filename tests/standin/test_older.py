# SPDX-License-Identifier: Apache-2.0
"""The stand-in's own tests in C on drivers of older versions.

They are linked against the newest one. A test that calls what an older driver lacks ends there with the loader's word
for it, and is reported as skipped, by its name and the function's. DMI_STANDIN_VERSION says which driver.
"""
import re

import pytest

from harness import BUILD, ROOT, STANDIN, STANDIN_VERSION, environment, run

FOLDER = BUILD / "tests" / "standin"
PROGRAMS = ("test_standin", "test_graphs", "test_resolver", "test_config", "test_pools", "test_graph_memory", "test_vmm", "test_ipc",
            "test_green", "test_conditional")
SINCE = {symbol: int(version) for symbol, version in
         re.findall(r"^DRIVER_ENTRY\((\w+), \w+, (\d+), \w+\)", (ROOT / "tests/standin/driver.def").read_text(), re.M)}
LACKING = re.compile(r"symbol lookup error: .*: undefined symbol: (\w+)")
OUTCOME = re.compile(r"^\S+:\d+:([PFE]):[^:]*:(\w+):\d+: (.*)$", re.M)

pytestmark = pytest.mark.built(STANDIN / "libcuda.so.1", *(FOLDER / name for name in PROGRAMS))


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_this_driver(subtests, name):
    done = run([FOLDER / name], env=environment(CK_VERBOSITY="verbose", CK_DEFAULT_TIMEOUT="120"), check=False, timeout=600)
    lacking, outcomes = LACKING.findall(done.stderr), OUTCOME.findall(done.stdout)
    assert len(outcomes) > 3, done.stdout + done.stderr
    for outcome, test, message in outcomes:
        with subtests.test(test):
            if outcome == "E" and "return value 127" in message and lacking and SINCE[lacking[0]] > STANDIN_VERSION:
                symbol = lacking.pop(0)
                pytest.skip(f"needs {symbol}: drivers have that since {SINCE[symbol]}, this one is {STANDIN_VERSION}")
            elif outcome != "P":
                pytest.fail(f"{test}: {message}", pytrace=False)
    assert not lacking, lacking
