# SPDX-License-Identifier: Apache-2.0
"""What the suite `engine` adds: what tests of adapters need."""
import pytest


@pytest.fixture
def reading(monkeypatch):
    """dmi.open() reads with the library of this build."""
    import adapter_runs
    monkeypatch.setenv("DMI_READ_LIBRARY", str(adapter_runs.LIBRARY))


@pytest.fixture(scope="session")
def engines(long):
    """(interpreter, environment) that import vLLM and SGLang."""
    if not long:
        pytest.skip("--long only")
    import engine_env
    return engine_env.python_with_engines()
