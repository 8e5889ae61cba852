#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make attention.safetensors and smollm2_attention.safetensors anew: attentions as Hugging Face computes them, of small random models with what attach() taps
of them, and of SmolLM2-135M-Instruct.

    LD_LIBRARY_PATH=... build/torch/env/bin/python tests/reference/make_attention.py --out DIR

README.md says what is written. Weights are drawn wide, so that heads look at few tokens and a wrong order, base or window shows.
"""
import argparse
import json
import os
import pathlib
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import dmi.torch  # noqa: E402
from make_reference import model_folder  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = [7, 31, 12, 7, 31, 40, 3, 12, 12, 25, 7, 31, 18, 9]
SIZES = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 48,
         "max_position_embeddings": 64, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "llama": {"model_type": "llama", "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                                                         "high_freq_factor": 4.0, "original_max_position_embeddings": 16}},
    "linear": {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}},
    "yarn": {"model_type": "qwen2", "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}},
    "mistral": {"model_type": "mistral", "sliding_window": 5},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": None},
    "qwen3": {"model_type": "qwen3"},
    "gemma2": {"model_type": "gemma2", "sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    "gemma3": {"model_type": "gemma3_text", "sliding_window": 5, "num_hidden_layers": 6, "num_key_value_heads": 1, "query_pre_attn_scalar": 4},
    "gpt_neox": {"model_type": "gpt_neox", "rotary_pct": 0.5, "num_key_value_heads": 4},
    "phi": {"model_type": "phi", "partial_rotary_factor": 0.5},
    "granite": {"model_type": "granite", "attention_multiplier": 0.2},
    "cohere2": {"model_type": "cohere2", "sliding_window": 5, "num_hidden_layers": 4},
    "glm4": {"model_type": "glm4", "partial_rotary_factor": 0.5},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 4},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 16, "n_positions": 64},
    "gpt_oss": {"model_type": "gpt_oss", "sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 1},
}


SERVED = {"france": (11, range(30)), "chat-list": (10, range(2))}  # of requests.json: tokens after the prompt, and layers


def model_of(more):
    torch.manual_seed(1)
    sizes = {} if more["model_type"] == "gpt2" else SIZES
    config = transformers.AutoConfig.for_model(**({"vocab_size": 48} | sizes | more))
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.5)
        elif name.endswith("sinks"):
            parameter.data.normal_(0, 1)
    return model


def tapped(model, ids):
    """{site.layer: [tokens, heads, d]} of one forward, and its attentions."""
    found = {}

    def sink(tensor, name, layer, n_layers, rows):
        x = tensor.detach().float()
        x = x.movedim([d % x.dim() for d in rows], list(range(len(rows)))) if rows else x
        found[f"{name}.{layer}"] = x.reshape(len(TOKENS), -1, x.shape[-1]).clone().contiguous()
    attached = dmi.torch.attach(model, "q,k,v,z,q_rot,k_rot", sink=sink)
    out = model(ids, output_attentions=True, use_cache=True)
    attached.detach()
    return found | {f"attentions.{i}": a[0].float().contiguous() for i, a in enumerate(out.attentions)}


def noted(model):
    """What attach() notes in a run."""
    said = {}
    describe, dmi.calls.describe = dmi.calls.describe, lambda key, value: said.__setitem__(key, value)
    try:
        from dmi.torch import config
        config.describe(model)
    finally:
        dmi.calls.describe = describe
    return said["config"]


def served():
    """{REQUEST/attentions.LAYER: float16 [heads, queries, keys]} of requests that test_serve_attention.py serves."""
    path = model_folder()
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
    requests = {r["id"]: r for r in json.loads((HERE / "requests.json").read_text())["requests"]}
    found = {}
    for name, (n, layers) in SERVED.items():
        ids = requests[name]["prompt_tokens"] + requests[name]["forced_tokens"][:n]
        out = model(torch.tensor([ids]), output_attentions=True, use_cache=False)
        found |= {f"{name}/attentions.{i}": out.attentions[i][0].half().contiguous() for i in layers}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    opt = parser.parse_args()
    torch.set_grad_enabled(False)
    tensors, configs = {}, {}
    for family, more in FAMILIES.items():
        model = model_of(more)
        configs[family] = noted(model)
        for key, x in tapped(model, torch.tensor([TOKENS])).items():
            tensors[f"{family}/{key}"] = x
    opt.out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, opt.out / "attention.safetensors", {"configs": json.dumps(configs), "tokens": json.dumps(TOKENS),
                                                          "transformers": transformers.__version__})
    save_file(served(), opt.out / "smollm2_attention.safetensors", {"transformers": transformers.__version__})


if __name__ == "__main__":
    main()
