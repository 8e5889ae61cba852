# SPDX-License-Identifier: Apache-2.0
"""What all tests in Python share: options, markers, and the fixture `check`."""
import os
import subprocess

import pytest

from built import require

# What programs say is compared: in one language.
os.environ["LC_ALL"] = "C"


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="what takes more than a minute, too")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def driver_version():
    """Of the stand-in driver that the tests run on."""
    from harness import STANDIN_VERSION
    return STANDIN_VERSION


def pytest_runtest_setup(item):
    for marker in item.iter_markers("built"):
        for path in marker.args:
            require(path)
    for marker in item.iter_markers("since"):
        version, what = marker.args
        if driver_version() < version:
            pytest.skip(f"needs {what}: drivers have that since {version}, this one is {driver_version()}")


def pytest_exception_interact(node, call):
    if call.excinfo.errisinstance(subprocess.TimeoutExpired):
        node.session.shouldstop = "a program did not end; the next ones would take as long"


def end_what_was_started(self, kind, *rest, exits=subprocess.Popen.__exit__):
    """Where a check within `with Popen(...)` fails, the program is killed: nobody tells it to end any more, and the failure would wait for it."""
    if kind:
        self.kill()
    return exits(self, kind, *rest)


subprocess.Popen.__exit__ = end_what_was_started


@pytest.fixture(scope="session")
def seeds(long):
    """seeds(short, long) - how many seeds a test with random schedules tries, unless ./bootstrap test --seeds says another number."""
    return lambda in_short, in_long: int(os.environ.get("DMI_TEST_SEEDS") or (in_long if long else in_short))


@pytest.fixture(scope="session")
def long(request):
    """True if the long form of a test is wanted."""
    return request.config.getoption("--long")


def shown(detail):
    """A list as lines, anything else as text."""
    text = "\n".join(map(str, detail)) if isinstance(detail, (list, tuple)) else str(detail)
    return text or "does not hold"


@pytest.fixture
def check(subtests):
    """
    check(holds, what, detail) - one thing that must hold; the test goes on where it does not, and fails in the end

    @detail is printed with what does not hold: a text, or a list of complaints. Return: @holds.
    """
    def check(holds, what, detail=""):
        with subtests.test(what):
            if not holds:
                pytest.fail(f"{what}: {shown(detail)}", pytrace=False)
        return holds
    return check
