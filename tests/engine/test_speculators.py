# SPDX-License-Identifier: Apache-2.0
"""speculators' own reader of training samples takes what `python -m dmi speculators` wrote.

Its package is in an environment of its own (tools/setup/speculators.txt), beside PyTorch's (torch_env.py), whose packages it imports.
"""
import json
import subprocess
import sys

import pytest

import columns
import harness
import torch_env

sys.path.insert(0, str(harness.ROOT / "tests" / "unit"))
from test_dump_formats import POSITIONS, lines, wanted  # noqa: E402

LISTED = harness.ROOT / "tools" / "setup" / "speculators.txt"
MAKE = harness.BUILD / "tests" / "unit" / "make_schedule"
LIBRARY = harness.BUILD / "read" / "libdmi_read.so.1"
pytestmark = pytest.mark.built(MAKE, LIBRARY)
READ = torch_env.PREAMBLE + """
import json, torch
from pathlib import Path
from hs_connectors.transfer import FP8Transfer
from speculators.train.data import ArrowDataset
narrow = sys.argv[2:] == ["fp8"]
data = ArrowDataset(max_len=64, datapath=sys.argv[1], on_missing="raise", transfer=FP8Transfer(Path(sys.argv[1]) / "hidden_states") if narrow else None)
items = [data[i] for i in range(len(data))]
print(json.dumps({"lengths": data.approx_lengths, "dtypes": [str(item["hidden_states"].dtype) for item in items],
                  "items": [{key: value.float().tolist() for key, value in item.items()} for item in items]}))
"""


def environment():
    """(interpreter, environment) that has speculators; made once, of what the list says."""
    with_torch, env = torch_env.python_with_torch()
    env["PYTHONPATH"] = str(next(with_torch.parents[1].glob("lib/python3*/site-packages")))
    return columns.environment("speculators", LISTED), env


@pytest.fixture(name="read")
def fixture_read(long, tmp_path, monkeypatch):
    if not long:
        pytest.skip("speculators' packages: in the long run")
    python, env = environment()
    monkeypatch.setenv("DMI_READ_LIBRARY", str(LIBRARY))

    def read(text, *options, words=()):
        """What speculators makes of a schedule's export."""
        subprocess.run([MAKE, tmp_path / "run", "job", "0", "1", "0", "1", "hidden"], input="".join(f"{line}\n" for line in text), text=True, check=True)
        subprocess.run([sys.executable, "-m", "dmi", "speculators", tmp_path / "run", "-o", tmp_path / "out", *options], cwd=harness.ROOT / "python",
                       check=True, timeout=60)
        done = subprocess.run([python, "-c", READ, tmp_path / "out", *words], env={**env, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])
    return read


def test_speculators_reads_it(check, read):
    found = read(lines(), "--layers", "3,0,1,last")
    check(found["lengths"] == [6, 4] and found["dtypes"] == ["torch.bfloat16"] * 2, "two samples", found)
    for item, (name, positions), mask in zip(found["items"], POSITIONS.items(), ([0, 0, 0, 0, 1, 1], [0, 0, 0, 1])):
        drafted = [[value for layer in row for value in layer] for row in wanted(name, positions, (3, 0, 1))]
        check(item["hidden_states"] == drafted, f"{name}: the layers, side by side", item["hidden_states"])
        check(item["verifier_last_hidden_states"] == [row[0] for row in wanted(name, positions, (9,))], f"{name}: the verifier's", item)
        check(item["input_ids"] == [-100 * ord(name) - p for p in positions] and item["loss_mask"] == mask, f"{name}: ids and mask", item)


def test_speculators_reads_8_bits(check, read):
    others = [f"put 7 {layer} 5 f8e4m3 {' '.join([str(56 + 8 * layer)] * 200)}" for layer in (0, 1, 2)]  # 1, 2, 4: stored, of a scale of 4
    found = read(lines(others=others), "--site", "resid_mid", "--layers", "1,0,last", words=["fp8"])
    item = found["items"][0]
    check(found["dtypes"][0] == "torch.bfloat16" and item["hidden_states"] == [[0.5] * 5 + [0.25] * 5] * 6, "true values", item["hidden_states"])
    check(item["verifier_last_hidden_states"] == [[1.0] * 5] * 6, "the verifier's too", item["verifier_last_hidden_states"])
