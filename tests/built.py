# SPDX-License-Identifier: Apache-2.0
"""Files of the build that tests need."""
import json
import os
import pathlib

import pytest

BUILD = pathlib.Path(os.environ.get("DMI_TEST_BUILD", pathlib.Path(__file__).resolve().parents[1] / "build" / "meson"))


def require(path):
    """Skips where this build has no target that makes @path, as something it needs is not on the machine; fails where one should have."""
    if path.exists():
        return
    targets = json.loads((BUILD / "meson-info" / "intro-targets.json").read_text(encoding="utf-8"))
    if str(path) in {name for target in targets for name in target["filename"]}:
        pytest.fail(f"{path} is not there: ./bootstrap build makes it")
    pytest.skip(f"{path} was not built")
