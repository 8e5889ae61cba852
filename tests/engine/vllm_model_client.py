#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Taps of vLLM's own models against those of Hugging Face's, with the same weights: vllm_model_client.py FAMILY eager|aot_eager|trace|vllm FOLDER

trace and vllm: as vLLM compiles, with the compiler's backend `eager` and its own. Attention is PyTorch's, of one prompt at once, and experts are
Hugging Face's block of the layer, in place of the kernels that vLLM has compiled. Prints a line of JSON for each thing that must hold: [holds, what, detail].
"""
import os
import re
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # torch_env.py says why

import torch  # noqa: E402

torch.cpu._is_amx_tile_supported = lambda: False  # of vLLM's kernels for processors that have them, none is here
_OPS = torch.library.Library("_C", "FRAGMENT")
for _name in ("silu_and_mul", "gelu_tanh_and_mul", "gelu_and_mul", "swigluoai_and_mul"):  # vLLM before 0.28 looks them up, and calls PyTorch's instead
    _OPS.define(f"{_name}(Tensor! out, Tensor input) -> ()")
import vllm.v1.worker.cpu.shm  # noqa: E402
from vllm.config import CompilationMode, set_current_vllm_config  # noqa: E402
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.forward_context import set_forward_context  # noqa: E402
from vllm.model_executor.layers.attention import Attention, MLAAttention  # noqa: E402
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading  # noqa: E402
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
import transformers  # noqa: E402

import dmi.torch  # noqa: E402
from attach_client import Recorder, check  # noqa: E402

T, SITES = 11, "all"
IDS = torch.arange(T) * 7 % 97
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_CHOICE = {"resid_post", "topk_ids", "topk_weights"}
# {family: what vLLM's model lacks}
FAMILIES = {"deepseek_v3": _CHOICE | {"q_rot", "k_rot"}} | dict.fromkeys(("qwen3_moe", "mixtral", "gpt_oss"), _CHOICE) | dict.fromkeys(
    ("llama", "mistral", "qwen2", "qwen3", "gemma3_text"), {"resid_post"})
MORE = {"gemma3_text": {"sliding_window": 4, "query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "qwen3_moe": _EXPERTS | {"num_experts": 4, "norm_topk_prob": True, "mlp_only_layers": [1], "decoder_sparse_step": 1},
        "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4, "hidden_size": 64, "intermediate_size": 64,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "deepseek_v3": _EXPERTS | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "topk_method": "noaux_tc", "q_lora_rank": 8, "kv_lora_rank": 8,
                                   "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "num_key_value_heads": 4, "head_dim": 4}}
MODES = {"trace": CompilationMode.DYNAMO_TRACE_ONCE, "vllm": CompilationMode.VLLM_COMPILE}
BACKENDS = {"trace": {"backend": "eager"}}


def attend(self, query, key, value, **more):
    """Causal attention of one sequence's tokens: [token, heads * head]; in a window, and with sinks, where the layer has them."""
    q, k, v = (x.reshape(len(x), -1, self.head_size).transpose(0, 1) for x in (query, key, value))
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    places = torch.arange(q.shape[1])
    before = places[:, None] - places
    seen = (before >= 0) & (before < (self.sliding_window or len(places)))
    scores = (q @ k.transpose(1, 2) * self.impl.scale).masked_fill(~seen, float("-inf"))
    if (sinks := getattr(self.impl, "sinks", None)) is not None:
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(-1, len(places), 1)], 2)
    return (scores.softmax(-1)[..., :len(places)] @ v).transpose(0, 1).flatten(1)


def attend_latent(self, query, latent, rotated, *_, **more):
    """The same of latent attention: of a token one vector for all heads, from which keys and values come, and the rotated part of the keys."""
    both = self.kv_b_proj(latent)[0].unflatten(-1, (self.num_heads, -1))
    plain, v = both.split([self.qk_nope_head_dim, self.v_head_dim], -1)
    k = torch.cat([plain, rotated.reshape(len(v), 1, -1).expand(-1, self.num_heads, -1)], -1)
    q, k, v = (x.transpose(0, 1) for x in (query.reshape(len(v), self.num_heads, -1), k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
    return out.transpose(0, 1).flatten(1)


def stand_in(ours, theirs):
    """Experts of @ours: the block of the same layer of @theirs computes what they return. A router that vLLM's kernels call is called here."""
    for path, block in ours.named_modules():
        if (experts := block._modules.get("experts")) is None:
            continue
        layer = int(re.search(r"layers\.(\d+)\.", path)[1])

        def forward(hidden_states, router_logits, *, block=block, mlp=theirs.model.layers[layer].mlp, **_):
            if router_logits is hidden_states:
                block.gate(hidden_states)
            out = mlp(hidden_states[None])
            return (out[0] if isinstance(out, tuple) else out)[0]
        experts.forward = forward


def recorded(model, forward):
    """(its sites, what was missing, what @forward returns)"""
    recorder = Recorder()
    with dmi.torch.attach(model, SITES, sink=recorder) as attached, torch.no_grad():
        out = forward()
        return recorder.sites, {missing.name for missing in attached.missing}, out


def built(family, how, folder):
    """(vLLM's model, Hugging Face's of the same weights, a function that computes vLLM's logits of the ids, vLLM's configuration)"""
    config = transformers.AutoConfig.for_model(
        family, **{"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 8,
                   "vocab_size": 97, "max_position_embeddings": 64, "tie_word_embeddings": False} | MORE.get(family, {}))
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    theirs.save_pretrained(folder)
    if vllm.__version__.startswith("0.27"):
        os.environ["VLLM_MLA_DISABLE"] = "1"  # it has latent attention on no CPU
    Attention.forward, MLAAttention.forward = attend, attend_latent
    made = EngineArgs(model=str(folder), skip_tokenizer_init=True, enforce_eager=how == "eager", dtype="float32", max_model_len=64, load_format="dummy",
                      compilation_config={"mode": MODES.get(how, CompilationMode.NONE), "custom_ops": ["none"]} | BACKENDS.get(how, {})).create_engine_config()
    with set_current_vllm_config(made):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        ours = initialize_model(vllm_config=made).eval()
        weights = load_file(f"{folder}/model.safetensors")
        ours.load_weights((name, x) for name, x in weights.items() if ".experts." not in name)
        UnquantizedFusedMoEMethod.process_weights_after_loading = lambda *_: None
        stand_in(ours, theirs)
        process_weights_after_loading(ours, made.model_config, torch.device("cpu"))
        forward = torch.compile(ours.model.forward, backend=how, fullgraph=True) if how == "aot_eager" else ours.model

    def run():
        with set_current_vllm_config(made), set_forward_context(None, made, num_tokens=T):
            return ours.compute_logits(forward(IDS, torch.arange(T), None))
    return ours, theirs, run, made


def main():
    family, how, folder = sys.argv[1:]
    ours, theirs, run, made = built(family, how, folder)
    found, missing, logits = recorded(ours, run)
    plain = logits if how in MODES else run()  # what vLLM has compiled stays as it is
    reference, _, out = recorded(theirs, lambda: theirs(IDS[None], output_hidden_states=True))
    compare(f"{family}, {how}", FAMILIES[family], (found, missing, logits, plain), (reference, out), made.model_config.hf_config)


def compare(what, lacks, ours, theirs, config):
    """@lacks: names that Hugging Face's model has and vLLM's lacks; of sparse layers mlp_post is none of either's."""
    (found, missing, logits, plain), (reference, out) = ours, theirs
    check(torch.allclose(logits, out.logits[0], atol=2e-5), f"{what}: logits are Hugging Face's", (logits - out.logits[0]).abs().max())
    check(torch.equal(plain, logits), f"{what}: taps change nothing", (plain - logits).abs().max())
    lacking = {name for name, _ in reference} - {name for name, _ in found}
    check(lacking == lacks and lacking <= missing, f"{what}: what is not there is named", (lacking, missing))
    check(set(found) == {at for at in reference if at[0] not in lacking}, f"{what}: of all layers", set(reference) ^ set(found))
    for layer, x in enumerate(out.hidden_states[:-1]):
        check(torch.allclose(found["resid_pre", layer], x[0], atol=2e-5), f"{what}: resid_pre {layer} is hidden_states[{layer}]")
    for at, x in found.items():
        y = reference.get(at, x)
        if at[0] == "embed" and "gemma" in config.model_type:
            x = x * config.hidden_size ** 0.5  # vLLM multiplies after its embedding
        check(x.shape == y.shape and torch.allclose(x.float(), y.float(), atol=2e-5), f"{what}: {at[0]} {at[1]}", (x.shape, y.shape))


if __name__ == "__main__":
    main()
