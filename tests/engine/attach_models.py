# SPDX-License-Identifier: Apache-2.0
"""Small models of every family that dmi.torch.attach() knows, with random weights, and what their modules are given and return.

Runs in the environment of tools/setup/torch.txt. The paths here were written from transformers' sources, apart from those of
python/dmi/torch/families.py: the two must lead to the same tensors.
"""
import torch
import transformers

LAYERS, WIDTH, HEADS, HEAD, VOCABULARY = 3, 32, 4, 8, 64
_COMMON = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
           "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_GROUPED = _COMMON | {"num_key_value_heads": 2, "head_dim": HEAD}
_EXPERTS = _GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 4, "decoder_sparse_step": 1, "norm_topk_prob": True}
CONFIGS = {
    "llama": ("Llama", _GROUPED),
    "mistral": ("Mistral", _GROUPED | {"sliding_window": 4}),
    "qwen2": ("Qwen2", _GROUPED),
    "qwen3": ("Qwen3", _GROUPED),
    "gemma2": ("Gemma2", _GROUPED | {"sliding_window": 4, "final_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3", _GROUPED | {"sliding_window": 4, "final_logit_softcapping": 5.0}),
    "gpt2": ("GPT2", {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64, "bos_token_id": 1,
                      "eos_token_id": 2, "pad_token_id": 0}),
    "gpt_neox": ("GPTNeoX", _COMMON),
    "gpt_neox_sequential": ("GPTNeoX", _COMMON | {"use_parallel_residual": False}),
    "phi": ("Phi", _COMMON),
    "mixtral": ("Mixtral", _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2_moe": ("Qwen2Moe", _EXPERTS | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}),
    "qwen3_moe": ("Qwen3Moe", _EXPERTS | {"mlp_only_layers": [1]}),
    "smollm3": ("SmolLM3", _GROUPED | {"no_rope_layers": [1, 0, 1]}),
    "olmo2": ("Olmo2", _GROUPED),
    "granite": ("Granite", _GROUPED | {"residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "attention_multiplier": 0.3}),
    "ministral": ("Ministral", _GROUPED | {"sliding_window": 4}),
    "ministral3": ("Ministral3", _GROUPED),
    "phi3": ("Phi3", _GROUPED),
    "qwen2_5_vl": ("Qwen2_5_VL", _GROUPED),
    "qwen3_vl": ("Qwen3VL", _GROUPED),
    "glm4": ("Glm4", _GROUPED),
    "cohere": ("Cohere", _GROUPED),
    "starcoder2": ("Starcoder2", _GROUPED),
    "nemotron": ("Nemotron", _GROUPED),
    "gpt_oss": ("GptOss", _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}),
    "deepseek_v3": ("DeepseekV3", _EXPERTS | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8,
                                              "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": HEAD, "num_key_value_heads": HEADS, "head_dim": 4}),
    "granitemoe": ("GraniteMoe", _COMMON | {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}),
}
LATENT = ("deepseek_v3",)  # keys and values of heads come from one vector a token
OLD = int(transformers.__version__.split(".")[0]) < 5
NEW = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)
# What a version lacks: {family: sites}. Before 5 a router is a projection and the experts' block chooses, or it returns no logits; some families' attention
# calls PyTorch itself, so that nothing is given the rotated queries.
LACKS = {name: {"topk_ids", "topk_weights"} | ({"q_rot"} if name == "qwen2_moe" else set()) for name in ("mixtral", "qwen2_moe", "qwen3_moe")} | dict.fromkeys(
    ("gpt_oss", "deepseek_v3", "granitemoe"), {"router_logits", "topk_ids", "topk_weights"}) | {"nemotron": {"q_rot"}} if OLD else {}
PARALLEL = ("gpt_neox", "phi", "cohere")
NORMS_AFTER = ("olmo2",)
MULTIPLIED = {"granite": 0.5}  # with which attention's and the MLP's outputs are multiplied before they are added
VISION = {"qwen2_5_vl": {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": WIDTH, "fullatt_block_indexes": [1]},
          "qwen3_vl": {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": WIDTH,
                       "deepstack_visual_indexes": [0], "num_position_embeddings": 16}}
GEMMA = ("gemma2", "gemma3")
SPARSE = {"gpt_oss": (0, 1, 2), "deepseek_v3": (1, 2), "granitemoe": (0, 1, 2), "mixtral": (0, 1, 2), "qwen2_moe": (0, 2), "qwen3_moe": (0, 2)}


def config_of(name, experts):
    kind, options = CONFIGS[name]
    kind += "Text" if name == "gemma3" else ""
    if name in VISION:
        rope = {"rope_scaling" if OLD else "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
        options = {"text_config": options | rope, "vision_config": VISION[name], "image_token_id": 60, "video_token_id": 61,
                   "vision_start_token_id": 62, "vision_end_token_id": 63}
    config = getattr(transformers, kind + "Config")(**options)
    config._experts_implementation = experts
    return config


def model_of(name, attention="sdpa", experts="eager"):
    """Weights are random and large enough that nothing is nearly zero; factors and biases of norms, too."""
    config = config_of(name, experts)
    config._attn_implementation = attention
    torch.manual_seed(5)
    head = "LMHeadModel" if name == "gpt2" else "ForConditionalGeneration" if name in VISION else "ForCausalLM"
    kind = getattr(transformers, CONFIGS[name][0] + head)
    try:
        model = kind(config)
    except ValueError:  # transformers 5.24 has no sdpa for Gemma 2
        config._attn_implementation = "eager"
        model = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / (parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 2))
    return model.eval()


def prompt(batch=2, tokens=6):
    return (torch.arange(batch * tokens).reshape(batch, tokens) * 7 + 3) % (VOCABULARY - 4)


def backbone_of(model):
    if hasattr(model, "model") and hasattr(model.model, "language_model"):
        return model.model.language_model
    return model.transformer if hasattr(model, "transformer") else model.gpt_neox if hasattr(model, "gpt_neox") else model.model


def blocks_of(model):
    body = backbone_of(model)
    return body.h if hasattr(body, "h") else body.layers


# {site: (path in the block, side)}; side "in", "out", or which of several returned.
_SEQUENTIAL = {"resid_pre": ("", "in"), "ln1": ("input_layernorm", "out"), "q": ("self_attn.q_proj", "out"), "k": ("self_attn.k_proj", "out"),
               "v": ("self_attn.v_proj", "out"), "z": ("self_attn.o_proj", "in"), "attn_out": ("self_attn.o_proj", "out"),
               "resid_mid": ("post_attention_layernorm", "in"), "ln2": ("post_attention_layernorm", "out"), "mlp_in": ("mlp", "in"),
               "mlp_post": ("mlp.down_proj", "in"), "mlp_out": ("mlp", "out"), "resid_post": ("", "out"), "router_logits": ("mlp.gate", 0),
               "topk_weights": ("mlp.gate", 1), "topk_ids": ("mlp.gate", 2)}
_NEOX = _SEQUENTIAL | {"z": ("attention.dense", "in"), "attn_out": ("attention.dense", "out"), "qkv": ("attention.query_key_value", "out"),
                       "mlp_post": ("mlp.dense_4h_to_h", "in")}
PATHS = dict.fromkeys(CONFIGS, _SEQUENTIAL) | dict.fromkeys(GEMMA, _SEQUENTIAL | {
    "attn_out": ("post_attention_layernorm", "out"), "resid_mid": ("pre_feedforward_layernorm", "in"),
    "ln2": ("pre_feedforward_layernorm", "out"), "mlp_out": ("post_feedforward_layernorm", "out")}) | {
    "gpt2": _SEQUENTIAL | {"ln1": ("ln_1", "out"), "qkv": ("attn.c_attn", "out"), "z": ("attn.c_proj", "in"),
                           "attn_out": ("attn.resid_dropout", "out"), "resid_mid": ("ln_2", "in"), "ln2": ("ln_2", "out"),
                           "mlp_post": ("mlp.c_proj", "in")},
    "gpt_neox": {site: at for site, at in _NEOX.items() if site != "resid_mid"}, "gpt_neox_sequential": _NEOX,
    "phi": {site: at for site, at in _SEQUENTIAL.items() if site not in ("resid_mid", "ln2")} | {
        "z": ("self_attn.dense", "in"), "attn_out": ("self_attn.dense", "out"), "mlp_post": ("mlp.fc2", "in")},
    "olmo2": {site: at for site, at in _SEQUENTIAL.items() if site not in ("ln1", "ln2")} | {
        "attn_out": ("post_attention_layernorm", "out"), "resid_mid": ("mlp.gate_proj", "in"), "mlp_out": ("post_feedforward_layernorm", "out")},
    "phi3": _SEQUENTIAL | {"qkv": ("self_attn.qkv_proj", "out")},
    "glm4": _SEQUENTIAL | {"attn_out": ("post_self_attn_layernorm", "out"), "mlp_out": ("post_mlp_layernorm", "out")},
    "cohere": {site: at for site, at in _SEQUENTIAL.items() if site not in ("resid_mid", "ln2")},
    "starcoder2": _SEQUENTIAL | {"mlp_post": ("mlp.c_proj", "in")},
    "gpt_oss": _SEQUENTIAL | {"router_logits": ("mlp.router", 0), "topk_weights": ("mlp.router", 1), "topk_ids": ("mlp.router", 2)},
    "deepseek_v3": {site: at for site, at in _SEQUENTIAL.items() if site not in "qkv"},
    "granitemoe": {site: (path.replace("mlp", "block_sparse_moe"), side) for site, (path, side) in _SEQUENTIAL.items() if "gate" not in path} | {
        "router_logits": ("block_sparse_moe.router", 2), "topk_weights": ("block_sparse_moe.router", 1), "topk_ids": ("block_sparse_moe.router", 0)}}
if NEW:
    PATHS["granitemoe"] |= {"router_logits": ("block_sparse_moe.router", 0), "topk_ids": ("block_sparse_moe.router", 2)}
if OLD:
    for _name in LACKS:
        PATHS[_name] = {site: (path, "out" if site == "router_logits" else side) for site, (path, side) in PATHS[_name].items() if site not in LACKS[_name]}
    PATHS["mixtral"] = {site: (path.replace("mlp", "block_sparse_moe"), side) for site, (path, side) in PATHS["mixtral"].items()}


class Reference:
    """{(site, layer): tensor} of forwards, by plain hooks and by the functions that rotate."""

    def __init__(self, name, model):
        self.name, self.sites, self.handles, self.block = name, {}, [], None
        body = backbone_of(model)
        for layer, block in enumerate(blocks_of(model)):
            self.handles.append(block.register_forward_pre_hook(lambda *_, layer=layer: setattr(self, "block", layer)))
            for site, (path, side) in PATHS[name].items():
                try:
                    module = block.get_submodule(path)
                except AttributeError:
                    continue
                self.watch(module, site, layer, side)
        embedding, norm = body.get_input_embeddings(), next(getattr(body, n) for n in (
            "norm", "ln_f", "final_layer_norm", "final_layernorm") if hasattr(body, n))
        for module, site, side in ((embedding, "token_ids", "in"), (embedding, "embed", "out"), (norm, "resid_final", "in"),
                                   (norm, "final_ln", "out")):
            self.watch(module, site, None, side)
        self.modeling = __import__(type(model).__module__, fromlist=["*"])
        self.rotate = getattr(self.modeling, "apply_rotary_pos_emb", None)
        if self.rotate:
            self.modeling.apply_rotary_pos_emb = self.rotating

    def watch(self, module, site, layer, side):
        if side == "in":
            keep = lambda _, args, kwargs: self.keep(site, layer, args[0] if args else kwargs["hidden_states"])  # noqa: E731
            self.handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
        else:
            at = 0 if side == "out" else side
            keep = lambda _, args, out: self.keep(site, layer, out[at] if isinstance(out, tuple) else out)  # noqa: E731
            self.handles.append(module.register_forward_hook(keep))

    def keep(self, site, layer, x):
        x = x.detach().clone()
        if site != "qkv":
            self.sites[site, layer] = x
        elif self.name == "phi3":
            self.sites.update({(one, layer): part for one, part in zip("qkv", x.split((WIDTH, 2 * HEAD, 2 * HEAD), dim=-1))})
        elif self.name == "gpt2":
            self.sites.update({(one, layer): part for one, part in zip("qkv", x.split(WIDTH, dim=-1))})
        else:
            of_heads = x.view(*x.shape[:-1], HEADS, 3 * HEAD)
            self.sites.update({(one, layer): part.flatten(-2) for one, part in zip("qkv", of_heads.chunk(3, dim=-1))})

    def rotating(self, q, k, *args, **kwargs):
        """Of partial rotation this is the rotated part alone."""
        out = self.rotate(q, k, *args, **kwargs)
        self.keep("q_rot", self.block, out[0])
        self.keep("k_rot", self.block, out[1])
        return out

    def end(self):
        for handle in self.handles:
            handle.remove()
        if self.name == "smollm3":  # its second layer rotates nothing
            self.sites.update({(f"{one}_rot", 1): self.sites[one, 1].unflatten(-1, (-1, HEAD)).transpose(1, 2) for one in "qk"})
        if self.rotate:
            self.modeling.apply_rotary_pos_emb = self.rotate
