# SPDX-License-Identifier: Apache-2.0
"""What users do with DMI in unmodified PyTorch, on the stand-in driver: collect, edit, steer, patch, tap by hand, name kernels and NVTX ranges, trace.

torch_uses_client.py does each by hooks where the library is not in its process, and with DMI where it is: values are equal in bits, captured ones, too. Code that
the compiler made is compared within rounding.
"""
import json
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

import harness
import torch_cuda_env
from harness import DMI_RUN, PRELOAD, ROOT
from test_attach import check_all
from test_cpu import captured, tensors
from test_torch_models import ROUNDING, off_by, values

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("reading"),
              pytest.mark.built(PRELOAD, DMI_RUN, harness.STANDIN / "libcuda.so.1", torch_cuda_env.RUNTIME / "libcudart.so.13")]
HERE = ROOT / "tests" / "engine"
DMI_SITES, DMI_TRACE = (harness.BUILD / "tools" / name for name in ("dmi-sites", "dmi-trace"))
FILES = {
    "bank.yaml": """hookspec: 1
edits: {bank: 4M}
forward: [{kind: step, begin: step}]
sites:
  - {tap: resid_post, write: {}, capture: none}
""",
    "patch.yaml": """editspec: 1
edits:
  - {name: donor, site: resid_post, layers: '0', do: [{save: clean}], requests: 'a*'}
  - {name: take, site: resid_post, layers: '0', do: [{patch: 'bank:clean'}], requests: 'b*'}
""",
    "kernels.yaml": """hookspec: 1
forward: [{kind: step, begin: step}]
sites:
  - {name: twice, kernel: '^twice$', pointer: 'arg[1]', dtype: f32, dims: [{row: true, count: 'arg[2].i32 / 32'}, {count: 32}]}
  - {name: softmax, kernel: '^warp_softmax_f32_f32$', pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: 'arg[2].i32'}, {count: 'arg[4].i32'}]}
  - {name: act, nvtx: '*.act', range_kernel: first, pointer: 'param[8]', dtype: f32, dims: [{row: true, count: 'arg[0].i32 / 32'}, {count: 32}], layer: range}
"""}
# {use: options of dmi-run}
USES = {
    "collected": ["--attach", "resid_pre,resid_mid,resid_post"], "block": ["--write", "resid_post"], "replayed": ["--write", "resid_post"],
    "steered": ["--steer", "vector.safetensors", "--times", "2.5", "--layers", "1"], "patched": ["--spec", "bank.yaml", "--edits", "patch.yaml"],
    "taps": ["--tap", "stream"], "taps_graph": ["--tap", "stream"], "taps_compiled": ["--tap", "stream"],
    "kernels": ["--spec", "kernels.yaml"], "kernels_graph": ["--spec", "kernels.yaml"]}
CAPTURED = ("taps", "taps_graph", "taps_compiled", "kernels", "kernels_graph")


CUPTI = harness.STANDIN / "cupti" / "libcupti.so.13"


def run(folder, use, options=None, cupti=CUPTI):
    """What @use leaves in its folder: by hooks, or with DMI by dmi-run's @options."""
    python, env = torch_cuda_env.python_with_cuda()
    folder.mkdir()
    save_file({"v": np.linspace(-1, 1, 32, dtype=np.float32)}, folder / "vector.safetensors")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    env = dict(env, PYTHONPATH=f"{ROOT / 'python'}:{HERE}", DMI_CUPTI=str(cupti))
    command = [python, HERE / "torch_uses_client.py", folder, use]
    if options is not None:
        command = [DMI_RUN, *(folder / word if "." in word and not word[0].isdigit() else word for word in options), "--out", folder / "RUN", "--", *command]
    return harness.run(command, env=env, timeout=1800)


@pytest.mark.parametrize("use", USES)
def test_as_hooks(check, tmp_path, use):
    run(tmp_path / "hooks", use)
    done = run(tmp_path / "dmi", use, USES[use])
    if "[" in done.stdout:
        check_all(check, done)
    wanted, found = (tensors(tmp_path / folder / f"{use}.safetensors") for folder in ("hooks", "dmi"))
    if use in CAPTURED:
        found |= captured(check, tmp_path / "dmi")
    check(len(wanted) > 1, "there is something to compare", len(wanted))
    if use == "taps_compiled":
        far = {key: off_by(found.get(key) and values(found[key]), values(x)) for key, x in wanted.items()}
        check(max(far.values()) < ROUNDING, "values are those of hooks, within rounding", sorted(far, key=far.get)[-3:])
    else:
        differs = sorted(key for key, x in wanted.items() if found.get(key) != x)
        check(not differs, "values are those of hooks, in bits", differs[:5])


@pytest.mark.parametrize("tier", ["--trace=steps", "--trace", "--trace=full"])
def test_tiers_of_a_trace(check, tmp_path, tier):
    other = tmp_path / CUPTI.name
    shutil.copy(CUPTI, other)
    done = run(tmp_path / "dmi", "forwards", [tier], other)
    check((f"DMI_CUPTI={other} is not used" in done.stderr) == (tier != "--trace=steps"), "PyTorch has a libcupti already, so another one is passed over, with a line", done.stderr)
    only, = harness.runs_of(tmp_path / "dmi" / "RUN")
    told = json.loads(harness.run([DMI_TRACE, "steps", "--json", only]).stdout)
    check(told["n_steps"] == 3 == told["timed"], "each step has a time on the device", told)
    harness.run([DMI_TRACE, "check", only])
    if tier != "--trace=steps":
        kernels = json.loads(harness.run([DMI_TRACE, "kernels", "--json", only]).stdout)
        check("standin_gemm_f32" in json.dumps(kernels), "kernels are named", str(kernels)[:300])


def test_sites_of_compiled_code(check, tmp_path):
    """dmi-sites finds tensors in what inductor made, where a graph tree replays it; what the HookSpec captures agrees with hooks."""
    python, env = torch_cuda_env.python_with_cuda()
    env = dict(env, PYTHONPATH=f"{ROOT / 'python'}:{HERE}")
    for kind in ("hooks", "plain"):
        (tmp_path / kind).mkdir()
    program = [python, HERE / "torch_models_client.py"]
    harness.run([*program, tmp_path / "hooks", "hooks", "cuda", "compiled"], env=env)
    reference, spec = tmp_path / "hooks" / "compiled.sites.safetensors", tmp_path / "found.yaml"
    harness.run([DMI_SITES, "record", "--out", tmp_path / "recording", "--", *program, tmp_path / "plain", "plain", "cuda", "compiled"], env=env)
    harness.run([DMI_SITES, "match", tmp_path / "recording", "--reference", reference, "-o", spec, "--model", "llama"])
    found = set(re.findall(r"- name: (\w+)", spec.read_text()))
    check(found >= {"ln1", "q", "k", "v", "z", "attn_out", "resid_mid", "ln2", "mlp_post", "mlp_out", "final_ln", "final_logits"}, "the sites are found", found)
    check_all(check, harness.run([DMI_RUN, "--spec", spec, "--out", tmp_path / "RUN", "--", *program, tmp_path / "plain", "plain", "cuda", "compiled"], env=env))
    captured(check, tmp_path)
    told = harness.run([harness.DMI_DUMP, "verify", tmp_path / "RUN", "--against", reference, "--tolerance", "2e-6"]).stdout
    agree = re.search(r"^All (\d+) tensors agree", told, re.M)
    check(agree and int(agree[1]) >= 150, "what is captured agrees with hooks", told[-600:])
