# SPDX-License-Identifier: Apache-2.0
"""What a model's config.json, or a GGUF's header, says that bears on the numbers of lens and dla: it is done, or refused by name.

Between the residual stream and the logits lie the last norm and the head; what heads and MLPs return may be multiplied before it is added. dmi.weights reads what is
said of these. What other keys say is in the captured tensors already (attention's scale, the embedding's multiplier), is of training or of tokens (FREE), or is listed
as not used. Source of the keys: configuration_*.py and modeling_*.py of transformers 5.19; llama-arch.cpp of llama.cpp.
"""
from __future__ import annotations

import re
from typing import Any

# Types whose LayerNorm has no bias, and those that call the epsilon of their RMSNorm as others that of a LayerNorm: neither is seen from the weights.
LAYERNORM = re.compile(r"(cohere|dbrx|mpt|olmo|command-r)\w*|gpt2|gptj|gpt_neo\w*|gpt_bigcode|bloom|falcon|codegen|nemotron|starcoder2|stablelm|phi|persimmon|opt|biogpt|xglm")
RMSNORM = re.compile(r"mamba2?|falcon_mamba|lfm2\w*|nemotron_h|qwen|exaone|(mt|umt|long)?t5")
# What is done with logit_scale and logits_scaling.
DIVIDED = re.compile(r"(granite|minicpm)\w*")
MULTIPLIED = re.compile(r"(cohere|command-r|hyperclovax|mpt)\w*")
# Keys that may bear on these numbers. All others say nothing of them.
BEARING = re.compile(r"(?!attn_|gate_|attention_logit|conf_|(\w+_)?router_|moe_|output_router|num_logits|output_logits|logit_scale_init)"
                     r"((\w+_)?(logits?|soft_?cap\w*|lm_head|unembed\w*|mup)(_\w+)?|output_multiplier\w*|(\w+_)?(residual|resid|attention_out|attn_out|mlp|ssm_out|depth)_"
                     r"(multipliers?|scale|alpha_factor|beta_factor)|(full|linear)_attn_(alpha|beta)_factor|scale_depth|dim_model_base|hc_(mult|count)|altup_\w+|"
                     r"(use_)?layer_?scale(_value)?|scale_(resid|attn|mlp)\w*|norm_type|normali[sz]ation_type|layer_?norm_type|apply_residual_connection_post_layernorm)")
IN_BEARING = ("lm_head_bias", "mlp_bias", "scale_attn_weights", "scale_attn_by_inverse_layer_idx")  # a bias is a tensor; scores are attention's
OF_NORM = ("norm_type", "normalization_type", "normalisation_type", "layer_norm_type", "layernorm_type")
NEUTRAL = (None, False, 1, "", [], {}, "none")
# Keys that say nothing of these numbers. Others are listed as not used.
FREE = re.compile(r"_\w+|dmi_\w+|(architectures|auto_map|torch_dtype|dtype|model_type|transformers_version|is_\w+|use_cache|id2label|label2id|task_specific_params|text_config|"
                  r"vision_config|audio_config|quantization_config|compression_config|tie_word_embeddings|bos\w*|eos\w*|pad\w*|sep_token\w*|unk\w*|\w*token_(id|index)s?|"
                  r"vocab_size|hidden_act\w*|activation\w*|hidden_size|n_embd|d_model|n_inner|\w*intermediate_size|ffn_\w+|initializer\w*|init_\w+|max_\w+|n_positions|n_ctx|"
                  r"\w*layers?|\w*heads?|\w*head_dim|layer_types|no_rope\w*|rope_\w+|rotary\w*|partial_rotary\w*|mrope\w*|sliding_window\w*|use_sliding_window|attn_\w+|attention_\w+|"
                  r"\w*attention|query_pre_attn_scalar|qk_\w+|use_qk_norm|clip_qkv|alibi\w*|\w*pdrop|\w*dropout\w*|layerdrop|embedding_multiplier|scale_emb\w*|scale_attn\w*|"
                  r"multi_query|new_decoder_architecture|parallel_attn|use_parallel_residual|use_bias\w*|\w*_bias|bias|\w*experts?\w*|\w*router\w*|moe_\w+|norm_topk_prob|"
                  r"routed_scaling_factor|pretraining_tp|reorder_and_upcast_attn|summary_\w+|gradient_checkpointing|return_dict|output_(attentions|hidden_states|router_logits)|"
                  r"num_logits_to_keep|use_return_dict|num_labels|problem_type|chunk_size\w*|name_or_path)")
OF_GGUF = re.compile(r"(attention|rope|expert|ssm|wkv|context_length|embedding_length|feed_forward|leading_dense|vocab_size|tensor_data_layout|nextn|embedding_scale|use_parallel|"
                     r"router|token_shift|time_mix|shortconv|pooling|classifier|dense_)\w*")


def _plain(said: dict, kind: str, arch: str) -> dict:
    """{key: value} of the model's own keys, those of a GGUF without their architecture, and with _ for a full stop."""
    if kind != "gguf":
        return said
    return {key[len(arch) + 1:].replace(".", "_"): value for key, value in said.items() if key.startswith(arch + ".")}


def unread(said: dict, kind: str, arch: str, read: set) -> tuple[list[str], list[str]]:
    """(what may bear on the numbers, "KEY: VALUE", what else is not used) of the keys that are not in @read."""
    bearing, unused = [], []
    for key, value in _plain(said, kind, arch).items():
        if key in read:
            continue
        if BEARING.fullmatch(key) and key not in IN_BEARING:
            if not _is_neutral(value):
                bearing.append(f"{key[:60]}: {_shown(value)}")
        elif not (OF_GGUF if kind == "gguf" else FREE).fullmatch(key):
            unused.append("".join(c if c.isprintable() else "?" for c in key[:60]))
    return bearing, unused


def _is_neutral(value: Any) -> bool:
    return value is not True and value in NEUTRAL or isinstance(value, list) and all(x == 1 for x in value)


def _shown(value: Any) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(value)[:40])


def is_centred(said: dict, kind: str, arch: str, has_rms: bool, has_bias: bool) -> bool | None:
    """Whether the last norm takes the mean first; None: nothing says it. ValueError: two things that are said contradict one another."""
    plain = _plain(said, kind, arch)
    words = [str(plain[key]).lower() for key in OF_NORM if plain.get(key)]
    if word := next((word for word in words if "rms" not in word and "layer" not in word), None):
        raise ValueError(f"it says the norm {word[:40]!r}, which is not known here")
    named = {"rms" not in word for word in words}
    if len(named) > 1 or named and has_rms and True in named:
        raise ValueError(f"it says the norm {words[0][:40]!r}, and rms_norm_eps")
    if has_rms or named == {False}:
        return False
    if kind != "gguf" and RMSNORM.fullmatch(arch):
        return False
    if named or has_bias or kind == "gguf" or LAYERNORM.fullmatch(arch):
        return True
    return None
