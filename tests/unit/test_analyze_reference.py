# SPDX-License-Identifier: Apache-2.0
"""dmi-analyze against Hugging Face's own attentions (tests/reference/attention.safetensors): from q_rot and k_rot, and from q and k by the config that
attach() notes."""
import json

import numpy as np
import pytest
from safetensors import safe_open

import dmi
from attention_kit import write_arrays
from dmi.attention import attention
from dmi.run.reading import ReadError
from harness import LIBRARIES, ROOT
from test_analyze import fixture_libraries  # noqa: F401

REFERENCE = ROOT / "tests" / "reference" / "attention.safetensors"
pytestmark = pytest.mark.built(LIBRARIES / "analyze" / "libdmi_analyze.so.1", LIBRARIES / "read" / "libdmi_read.so.1")
BOUND = 1e-5  # of a weight: both are of f32, in another order
NORMED = ("qwen3", "gemma3")  # q and k are normed before RoPE: what attach() calls q and k is no way to them


def everything():
    with safe_open(REFERENCE, "np") as file:
        said = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}
    configs = json.loads(said["configs"])
    return {family: ({key.partition("/")[2]: x for key, x in tensors.items() if key.startswith(family + "/")}, text) for family, text in configs.items()}


FAMILIES = everything()


def layers_of(tensors):
    return 1 + max(int(key.rpartition(".")[2]) for key in tensors)


def compare(tmp_path, tensors, names, config):
    names = [name for name in names if f"{name}.0" in tensors]
    sites = {name: [tensors.get(f"{name}.{i}") for i in range(layers_of(tensors))] for name in names}
    with dmi.open(write_arrays(tmp_path / "-".join(names), "r", sites, config)) as run:
        got = attention(run)
    wanted = np.stack([tensors[f"attentions.{i}"] for i in range(layers_of(tensors))])
    return got, np.abs(got.weights - wanted).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_attentions(tmp_path, check, family):
    tensors, config = FAMILIES[family]
    if "q_rot.0" in tensors:
        got, error = compare(tmp_path, tensors, ("q_rot", "k_rot", "q", "k", "v", "z"), config)
        check(error < BOUND, "from what the model rotated", error)
        check(got.proof.state == "holds" and got.proof.error < 1e-5, "the proof", got.proof)
    if family in NORMED:
        with pytest.raises(ReadError, match="the model norms them by head before it rotates them"):
            compare(tmp_path, tensors, ("q", "k", "v", "z"), config)
        return
    got, error = compare(tmp_path, tensors, ("q", "k", "v", "z"), config)
    check(error < BOUND, "rotated here", error)
    check(got.proof.state == "holds" and got.proof.error < 1e-5, "the proof", got.proof)


def test_all_kinds_are_there():
    """What configs may say, each in one of the models."""
    texts = {family: text for family, (_, text) in FAMILIES.items()}
    for word, family in (("llama3", "llama"), ("linear", "linear"), ("yarn", "yarn"), ("attn_logit_softcapping", "gemma2"), ("dmi_sinks", "gpt_oss"),
                         ("no_rope_layers", "smollm3"), ("partial_rotary_factor", "glm4"), ("attention_multiplier", "granite")):
        assert word in texts[family], family
