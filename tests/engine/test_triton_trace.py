# SPDX-License-Identifier: Apache-2.0
"""Triton's kernels with a trace of the tier full, alone and beside a capture: each launch of the driver's log is there once, and all bits are those without the library.

Each launch begins a step, as nothing else of this client could. Its modules are unloaded after each launch, so names outlive them.
"""
import sys

import pytest

import harness
from harness import BUILD, DMI_RUN, PRELOAD, ROOT, STANDIN

pytest.importorskip("numpy")
pytest.importorskip("cuda.bindings.driver")
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("unit", "preload", "standin")]

import full_trace  # noqa: E402
from standin_log import Log  # noqa: E402
from test_serve_trace import traced  # noqa: E402

CLIENT = ROOT / "tests" / "engine" / "triton_client.py"
CUPTI = STANDIN / "cupti" / "libcupti.so.13"
SPEC = "hookspec: 1\nsites:\n  - {name: first, kernel: '.*', pointer: 'arg[0]', dtype: u8, dims: [{row: true, count: 16}], row: none}\n"
pytestmark = pytest.mark.built(DMI_RUN, PRELOAD, BUILD / "tools" / "dmi-trace", CUPTI, STANDIN / "libcuda.so.1")


def computed(*options, **env):
    done = harness.run([sys.executable, CLIENT, *options], env=harness.environment(LD_LIBRARY_PATH=STANDIN, PYTHONDONTWRITEBYTECODE=1, **env), check=False)
    said = [line[line.index("computed "):] for line in done.stdout.splitlines() if "computed " in line]
    assert done.returncode == 0 and len(said) >= 5, done.stdout + done.stderr
    return said


def test_triton(check, tmp_path, seeds, long):
    few = "-k", "softmax or layer_norm"
    plains = {few: computed(*few), **({(): computed()} if long else {})}
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    for seed in range(seeds(1, 60)):
        out, log = tmp_path / f"run-{seed}", tmp_path / f"{seed}.log"
        options = () if long and seed < 2 else few
        plain = plains[options]
        both = {} if seed % 2 else {"DMI_SPEC": spec}
        more = {"DMI_STANDIN_DELAY_SEED": seed, "DMI_STANDIN_DELAY_MAX_NS": 400000} if seed > 1 else {}
        said = computed(*options, LD_PRELOAD=PRELOAD, DMI_TRACE="full", DMI_TRACE_STEP="kernel:.", DMI_CUPTI=CUPTI, DMI_OUT=out, DMI_STANDIN_LOG=log, **both, **more)
        what = f"seed {seed}{', beside a capture' if both else ''}"
        check(said == plain, f"{what}: all bits are the same", (plain, said))
        run, = traced(out)
        launches = Log(log)
        own = [launch["kernel"].startswith("dmi_") for launch in launches.launches]
        check(bool(both) == any(own) and len(own) - sum(own) == len(plain), f"{what}: all kernels were launched", (len(own), sum(own)))
        differ = full_trace.differences(launches, run)
        check(not differ, f"{what}: each launch is in the trace once, under its step", differ[:2])
        check(len(run.step_times) == len(plain), f"{what}: a step each", len(run.step_times))
