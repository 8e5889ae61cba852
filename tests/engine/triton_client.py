# SPDX-License-Identifier: Apache-2.0
"""Runs test_triton.py, or what options of pytest choose of it, and prints a digest of what each launch of it computed, bit by bit."""
import hashlib
import pathlib
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1] / "standin" / "test_triton.py"


class Digests:
    def pytest_collection_modifyitems(self, items):
        for module in {item.module for item in items}:
            self.wrap(module, module.launch)

    @staticmethod
    def wrap(module, launch):
        def launch_and_tell(folder, name, *more):
            result = launch(folder, name, *more)
            print(f"computed {name} {hashlib.sha256(result.tobytes()).hexdigest()}")
            return result
        module.launch = launch_and_tell


if __name__ == "__main__":
    sys.exit(pytest.main([str(TESTS), "-q", "-s", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[Digests()]))
