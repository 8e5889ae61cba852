# SPDX-License-Identifier: Apache-2.0
"""What the suite `engine` adds: an option of test_kill.py."""


def pytest_addoption(parser):
    parser.getgroup("test_kill.py").addoption("--kills", type=int, default=0, help="processes of each kind; default: 8 and 6, or 100")
