#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Hugging Face transformers computes for the models of small_models.py: qwen3_reference.py OUT.safetensors MODEL...

Runs in the environment of tools/setup/torch.txt: float32 on a CPU, eager attention, one pass over each request's
tokens. Written are sketches (tests/reference/sketch.py) of MODEL/REQUEST/SITE.LAYER; of what is narrow, the routers'
logits and the experts of a token (the most likely one first), all numbers.
"""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
import numpy as np  # noqa: E402
sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

import small_models as small  # noqa: E402
from sketch import sketch  # noqa: E402

NARROW = ("router_logits", "experts")


def hugging_face(m):
    """The model, with the same weights under the names that Hugging Face has for them."""
    kind = "Qwen3Moe" if m.experts else "Qwen3"
    options = {"num_experts": m.experts, "num_experts_per_tok": m.used, "moe_intermediate_size": m.hidden, "norm_topk_prob": True,
               "decoder_sparse_step": 1, "mlp_only_layers": []} if m.experts else {}
    config = getattr(transformers, kind + "Config")(
        vocab_size=m.vocabulary, hidden_size=m.width, intermediate_size=m.hidden, num_hidden_layers=m.layers,
        num_attention_heads=m.heads, num_key_value_heads=m.kv_heads, head_dim=m.head, rms_norm_eps=small.EPS,
        rope_theta=small.THETA, rope_parameters={"rope_type": "default", "rope_theta": small.THETA},
        max_position_embeddings=small.CONTEXT, tie_word_embeddings=not m.experts, attention_bias=False, **options)
    config._attn_implementation = config._experts_implementation = "eager"
    model = getattr(transformers, kind + "ForCausalLM")(config).float().eval()
    weights = {name: torch.from_numpy(m.weight(name).astype(np.float32)) for name in m.shapes()}
    named = renamed(m, weights)
    missing, unexpected = model.load_state_dict(named, strict=False)
    if unexpected or [name for name in missing if name != "lm_head.weight" or m.experts]:
        raise SystemExit(f"not loaded: {missing}, {unexpected}")
    model.tie_weights()
    return model


def renamed(m, weights):
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate"}
    top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    out = {}
    for name, x in weights.items():
        parts = name.removesuffix(".weight").split(".")
        if parts[0] != "blk":
            out[top[parts[0]] + ".weight"] = x
        elif not parts[2].endswith("_exps"):
            out[f"model.layers.{parts[1]}.{names[parts[2]]}.weight"] = x
    for i in range(m.layers if m.experts else 0):
        gate, up, down = (weights[f"blk.{i}.ffn_{which}_exps.weight"] for which in ("gate", "up", "down"))
        out[f"model.layers.{i}.mlp.experts.gate_up_proj"] = torch.cat((gate, up), dim=1)
        out[f"model.layers.{i}.mlp.experts.down_proj"] = down
    return out


class Recorder:
    """Collects the tensors of one pass by hooks on the model's modules."""

    def __init__(self, m, model):
        self.sites, self.used = {}, m.used
        body = model.model
        self.output_of(body.embed_tokens, "embed")
        for i, block in enumerate(body.layers):
            attention = block.self_attn
            self.input_of(block, f"resid_pre.{i}")
            self.output_of(block.input_layernorm, f"ln1.{i}")
            for name, module in (("q", attention.q_proj), ("k", attention.k_proj), ("v", attention.v_proj),
                                 ("q_norm", attention.q_norm), ("k_norm", attention.k_norm)):
                self.output_of(module, f"{name}.{i}")
            self.input_of(attention.o_proj, f"z.{i}")
            self.input_of(block.post_attention_layernorm, f"resid_mid.{i}")
            self.output_of(block.post_attention_layernorm, f"ln2.{i}")
            if m.experts:
                block.mlp.gate.register_forward_hook(lambda module, args, out, i=i: self.route(module, args, i))
            else:
                self.input_of(block.mlp.down_proj, f"mlp_post.{i}")
            self.output_of(block.mlp, f"mlp_out.{i}")
        self.input_of(body.norm, "resid_final")
        self.output_of(body.norm, "final_ln")
        self.output_of(model.lm_head, "final_logits")
        self.rotate(sys.modules[type(model).__module__])

    def keep(self, name, x):
        x = x.detach().float().numpy()
        self.sites[name] = x.reshape(x.shape[1], -1).copy()

    def route(self, router, args, layer):
        """What it returns differs from version to version; its weight does not."""
        logits = torch.nn.functional.linear(args[0].reshape(-1, args[0].shape[-1]), router.weight)
        self.keep(f"router_logits.{layer}", logits[None])
        self.sites[f"experts.{layer}"] = logits.topk(self.used).indices.numpy().astype(np.int32)

    def input_of(self, module, name):
        module.register_forward_pre_hook(lambda _, args: self.keep(name, args[0]))

    def output_of(self, module, name):
        module.register_forward_hook(lambda _, args, out: self.keep(name, out[0] if isinstance(out, tuple) else out))

    def rotate(self, modeling):
        plain = modeling.apply_rotary_pos_emb

        def rotate_and_keep(*args, **options):
            q, k = plain(*args, **options)
            layer = sum(name.startswith("k_rot.") for name in self.sites)
            for name, x in (("q_rot", q), ("k_rot", k)):
                self.keep(f"{name}.{layer}", x.transpose(1, 2))
            return q, k
        modeling.apply_rotary_pos_emb = rotate_and_keep


def main():
    found = {}
    for arch in sys.argv[2:]:
        m = small.MODELS[arch]
        model = hugging_face(m)
        recorder = Recorder(m, model)
        for request in small.requests(m):
            recorder.sites = {}
            with torch.no_grad():
                model(torch.tensor([request["prompt_tokens"] + request["forced_tokens"]]), use_cache=False)
            for site, x in recorder.sites.items():
                found[f"{arch}/{request['id']}/{site}"] = x if site.startswith(NARROW) else sketch(x)
            found[f"{arch}/{request['id']}/argmax"] = recorder.sites["final_logits"].argmax(1).astype(np.int32)
    save_file(found, sys.argv[1])


if __name__ == "__main__":
    main()
