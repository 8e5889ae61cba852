# SPDX-License-Identifier: Apache-2.0
"""dmi.collect() and Run.finished(): collect_client.py captures, and reads what it computed, or another process of the same command."""
import json
import sys

import pytest

import harness
from harness import DMI_RUN, PRELOAD, ROOT, STANDIN

HERE = ROOT / "tests" / "python"
LIBRARY = harness.BUILD / "read" / "libdmi_read.so.1"
SPEC = "hookspec: 1\nring: {bytes: %s, slots: 512}\noverload: {mode: complete, wait_ms: 60000}\nsites: [{tap: resid_post}, {tap: resid_final}]\n"
pytestmark = pytest.mark.built(PRELOAD, DMI_RUN, LIBRARY, STANDIN / "libcuda.so.1")


def client(folder, what, ring="1M", spec=SPEC, **env):
    (folder / "spec.yaml").write_text(spec.replace("%s", ring))
    env = harness.environment(PYTHONPATH=f"{ROOT / 'python'}:{ROOT / 'tests' / 'engine'}", LD_LIBRARY_PATH=STANDIN, DMI_READ_LIBRARY=LIBRARY, **env)
    return harness.run([DMI_RUN, "--spec", folder / "spec.yaml", "--out", folder / "RUN", "--", sys.executable, HERE / "collect_client.py", what], env=env, timeout=60)


RELEASING = {"DMI_SEGMENT_BYTES": 4000, "DMI_KEEP_BYTES": "20K"}
WAYS = {"plain": {}, "names": {}, "partly": {}, "threads": {}, "many": {"DMI_SEGMENT_BYTES": 4000}, "late": {"DMI_STANDIN_DTOH_BPS": 10000, "DMI_EXIT_MS": 100}, "dropped": {"ring": "16K", "spec": SPEC.replace("mode: complete, wait_ms: 60000", "mode: best-effort"), "DMI_STANDIN_DTOH_BPS": 100000},
        "all_dropped": {"spec": SPEC.replace("resid_final}", "resid_final, row: request}")},
        "other_process": {"DMI_STANDIN_DTOH_BPS": 20000}, "late_elsewhere": {"DMI_STANDIN_DTOH_BPS": 10000, "DMI_EXIT_MS": 100},
        "killed_elsewhere": {"DMI_STANDIN_DTOH_BPS": 2000}, "none": {}, "experts": {"spec": SPEC.replace("{tap: resid_final}", "{tap: 'topk_*'}, {tap: router_logits}")},
        "finished": RELEASING, "released": RELEASING}


@pytest.mark.parametrize("what", WAYS)
def test_runs_that_grow(check, tmp_path, what):
    done = client(tmp_path, what, **WAYS[what])
    found = [json.loads(line) for line in done.stdout.splitlines()]
    check(found, "the client checked something", done.stderr)
    for holds, what_, detail in found:
        check(holds, what_, detail)


def test_the_command_is_named_where_the_library_is_not(check, tmp_path):
    program = tmp_path / "prog.py"
    program.write_text("import dmi\nwith dmi.collect(sites=['resid_post'], layers='0,last'):\n    raise SystemExit('it ran')\n")
    done = harness.run([sys.executable, program], env=harness.environment(PYTHONPATH=ROOT / "python"), check=False)
    check(done.returncode == 1 and f"dmi-run --attach resid_post --layers 0,last --out RUN -- python {program}" in done.stderr, "the command to start with", done.stderr)
