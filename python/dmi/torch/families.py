# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of a family of models of Hugging Face's transformers are. structure.py finds those of other models, and of vLLM's.

A family is a table {site: Point}; paths begin at a block, or at the backbone for what exists once. Modules are looked up when a
model is attached, so a path that a model lacks is a site that it lacks.
"""
import collections
from dataclasses import dataclass, field, replace

# path: of the module; side: "in", "out" or "both"; pick: how the tensor is found in what the module is given, returns, or both, and shaped.
Point = collections.namedtuple("Point", "path side pick rows", defaults=(None,))

NO_ROTATION = "positions are added elsewhere: nothing is rotated"
NO_EXPERT = "experts compute tokens sorted by expert: no tensor holds it for all tokens"
NO_ROUTER = "its MLP has no router"
ROUTER_SITES = ("router_logits", "topk_ids", "topk_weights")
NO_CHOICE = "its router does not return it"
SIDE_BY_SIDE = "attention and MLP run side by side: nothing is added between them"
NORMS_AFTER = "its norms come after attention and MLP, which are given resid_pre and resid_mid themselves"


@dataclass(frozen=True)
class Family:
    """blocks, embedding, norm: attributes of the backbone. attention: of a block.

    head      attribute of the attention module: elements of a head
    points    {site: Point} of a block
    lacks     {site: why} of a block
    notes     {site: convention} where it differs from CONVENTIONS
    once      {site: Point} from the backbone, where it differs from what all_once() says; final_logits from the model
    """
    blocks: str
    embedding: str
    norm: str
    attention: str
    points: dict
    head: str = "head_dim"
    lacks: dict = field(default_factory=dict)
    notes: dict = field(default_factory=dict)
    once: dict = field(default_factory=dict)

    def all_once(self):
        """{site: Point} of what there is once; without final_logits where the model's output holds them."""
        return {"token_ids": Point(self.embedding, "in", given, (0, 1)), "embed": Point(self.embedding, "out", returned, (0, 1)),
                "resid_final": Point(self.norm, "in", given, (0, 1)), "final_ln": Point(self.norm, "out", returned, (0, 1))} | self.once


# ---------------------------------------------------------------------------------------- picks


def given(args, kwargs):
    """What a module is given: its first argument, or `hidden_states`."""
    return args[0] if args else kwargs["hidden_states"]


def returned(out):
    """What a module returns, or the first of several."""
    return out[0] if isinstance(out, (tuple, list)) else out


def second(out):
    return out[1]


def third(out):
    return out[2]


def given_second(args, kwargs):
    return args[1]


def summed(args, out):
    """The residual stream at a norm of vLLM's: with two arguments it adds them, and returns what it normed and the sum."""
    return out[1] if isinstance(out, tuple) else args[0]


def logits(out):
    """Of a model's output, whichever form it was asked for."""
    return out.logits if hasattr(out, "logits") else out[0]


class Heads:
    """[..., H] as [..., heads, head]; of a fused projection one of three parts."""

    def __init__(self, pick, head):
        self.pick, self.head = pick, head

    @staticmethod
    def shape_of(attention, head):
        """What __init__() is given of the attention module; @head: the attribute with the elements of a head."""
        return (getattr(attention, head, 0),)

    def whole(self, *given):
        """The tensor of the model's that it is a part of."""
        return self.pick(*given)

    def shaped(self, x):
        """The part of that, or of what is as that."""
        return x.unflatten(-1, (-1, self.head))

    def __call__(self, *given):
        return self.shaped(self.pick(*given))


class Third(Heads):
    """Of [q of all heads, k of all heads, v of all heads]."""

    def __init__(self, pick, head, part):
        super().__init__(pick, head)
        self.part = part

    def shaped(self, x):
        return x.unflatten(-1, (3, -1, self.head))[..., self.part, :, :]


class Interleaved(Third):
    """Of [q, k, v of a head] for each head."""

    def shaped(self, x):
        return x.unflatten(-1, (-1, 3, self.head))[..., self.part, :]


class ValueHeads(Heads):
    """Of values, whose heads latent attention has in another size."""

    @staticmethod
    def shape_of(attention, head):
        return (getattr(attention, "v_head_dim", 0) or getattr(attention, head, 0),)


class Packed(Heads):
    """Of [q of all heads, k of all key-value heads, v of these]."""

    def __init__(self, pick, head, n_heads, n_kv_heads, part):
        super().__init__(pick, head)
        self.first = head * (0, n_heads, n_heads + n_kv_heads)[part]
        self.n = head * (n_heads, n_kv_heads, n_kv_heads)[part]

    @staticmethod
    def shape_of(attention, head):
        """None where the module does not say how many heads it has."""
        size, config = getattr(attention, head, 0), getattr(attention, "config", None)
        if size and hasattr(attention, "kv_size"):  # vLLM's, of this rank
            return size, attention.q_size // size, attention.kv_size // size
        n, n_kv = (getattr(config, name, 0) for name in ("num_attention_heads", "num_key_value_heads"))
        return (size, n, n_kv) if size and n and n_kv else None

    def shaped(self, x):
        return x.narrow(-1, self.first, self.n).unflatten(-1, (-1, self.head))


# ---------------------------------------------------------------------------------------- families
# A pick in these tables is a function, or (class, more arguments): the class is called with its pick, and the head's size.

_IN, _OUT = ("in", given), ("out", returned)
_HEADS_IN, _HEADS_OUT = ("in", (Heads, given), (0, 1)), ("out", (Heads, returned), (0, 1))
_ROTATED = {"q_rot": Point("", "attention", None, (0, 2)), "k_rot": Point("", "cache", None, (0, 2))}


def _points(**of):
    return {site: Point(path, *side) for site, (path, side) in of.items()}


def _fused(path, kind):
    return {site: Point(path, "out", (kind, returned, part), (0, 1)) for part, site in enumerate("qkv")}


def _block(attention, projection, mlp_last, norm_1, norm_2):
    """What most blocks have: norm, attention, sum, norm, MLP, sum."""
    return _points(resid_pre=("", _IN), ln1=(norm_1, _OUT), z=(f"{attention}.{projection}", _HEADS_IN), attn_out=(attention, _OUT),
                   resid_mid=(norm_2, _IN), ln2=(norm_2, _OUT), mlp_in=("mlp", _IN), mlp_post=(mlp_last, _IN),
                   mlp_out=("mlp", _OUT), resid_post=("", _OUT))


def _without(points, *sites):
    return {site: point for site, point in points.items() if site not in sites}


_SEPARATE = _points(q=("self_attn.q_proj", _HEADS_OUT), k=("self_attn.k_proj", _HEADS_OUT), v=("self_attn.v_proj", _HEADS_OUT))
_ROUTER = {"router_logits": Point("mlp.gate", "out", returned), "topk_weights": Point("mlp.gate", "out", second),
           "topk_ids": Point("mlp.gate", "out", third)}
_ROUTED = dict.fromkeys(ROUTER_SITES, NO_ROUTER)

_LLAMA_POINTS = {**_block("self_attn", "o_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"), **_SEPARATE, **_ROTATED}
LLAMA = Family("layers", "embed_tokens", "norm", "self_attn", _LLAMA_POINTS, lacks=_ROUTED)
MOE = Family("layers", "embed_tokens", "norm", "self_attn", _LLAMA_POINTS | _ROUTER, lacks=_ROUTED | {"mlp_post": NO_EXPERT})

_ADDED = "what is added to the residual stream: after the norm that Gemma puts after the module"
GEMMA = Family(
    "layers", "embed_tokens", "norm", "self_attn", lacks=_ROUTED,
    points=_LLAMA_POINTS | _points(
        attn_out=("post_attention_layernorm", _OUT), resid_mid=("pre_feedforward_layernorm", _IN),
        ln2=("pre_feedforward_layernorm", _OUT), mlp_out=("post_feedforward_layernorm", _OUT)),
    notes={"attn_out": _ADDED, "mlp_out": _ADDED, "embed": "after Gemma's factor sqrt(H)",
           "final_logits": "after soft-capping, where the model has it"})

GPT2 = Family(
    "h", "wte", "ln_f", "attn", {**_block("attn", "c_proj", "mlp.c_proj", "ln_1", "ln_2"), **_fused("attn.c_attn", Third)},
    lacks=_ROUTED | dict.fromkeys(("q_rot", "k_rot"), NO_ROTATION),
    notes={"embed": "of the tokens alone; resid_pre of layer 0 has the positions, too"})

_NEOX_POINTS = {**_block("attention", "dense", "mlp.dense_4h_to_h", "input_layernorm", "post_attention_layernorm"),
                **_fused("attention.query_key_value", Interleaved), **_ROTATED}
NEOX_SEQUENTIAL = Family("layers", "embed_in", "final_layer_norm", "attention", _NEOX_POINTS, "head_size", _ROUTED)
NEOX = Family("layers", "embed_in", "final_layer_norm", "attention", _without(_NEOX_POINTS, "resid_mid"), "head_size",
              _ROUTED | {"resid_mid": SIDE_BY_SIDE}, {"ln2": "of resid_pre, which attention and MLP share"})

PHI = Family(
    "layers", "embed_tokens", "final_layernorm", "self_attn",
    points=_without(_LLAMA_POINTS, "resid_mid", "ln2") | _points(z=("self_attn.dense", _HEADS_IN), mlp_post=("mlp.fc2", _IN)),
    lacks=_ROUTED | {"resid_mid": SIDE_BY_SIDE, "ln2": "attention and MLP share one norm: ln1"})

GRANITE = replace(LLAMA, notes=dict.fromkeys(("attn_out", "mlp_out"), "before Granite multiplies it by residual_multiplier") | {
    "embed": "before Granite multiplies it by embedding_multiplier", "final_logits": "divided by logits_scaling"})
SMOLLM3 = replace(LLAMA, notes={"q_rot": "what attention is given; every fourth layer rotates nothing; [batch, head, token, d]",
                                "k_rot": "what the cache is given; every fourth layer rotates nothing; [batch, head, token, d]"})
OLMO2 = Family(
    "layers", "embed_tokens", "norm", "self_attn", lacks=_ROUTED | dict.fromkeys(("ln1", "ln2"), NORMS_AFTER),
    points=_without(_LLAMA_POINTS, "ln1", "ln2") | _points(
        attn_out=("post_attention_layernorm", _OUT), resid_mid=("mlp", _IN), mlp_out=("post_feedforward_layernorm", _OUT)),
    notes=dict.fromkeys(("attn_out", "mlp_out"), "what is added to the residual stream: after the norm that follows the module"))
PHI3 = replace(LLAMA, points=_LLAMA_POINTS | _fused("self_attn.qkv_proj", Packed))
QWEN3_VL = replace(LLAMA, notes={"resid_pre": "the residual stream as it enters the block; with images, after what DeepStack adds to it"})

_BY_TYPE = {"llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "qwen3": LLAMA, "gemma2": GEMMA, "gemma3_text": GEMMA, "gpt2": GPT2,
            "gpt_neox": NEOX, "phi": PHI, "mixtral": MOE, "qwen2_moe": MOE, "qwen3_moe": MOE, "smollm3": SMOLLM3, "olmo2": OLMO2, "granite": GRANITE,
            "ministral": LLAMA, "ministral3": LLAMA, "phi3": PHI3, "qwen2_5_vl_text": LLAMA, "qwen3_vl_text": QWEN3_VL}


def family_of_config(config):
    """The Family of a configuration, or None."""
    kind = getattr(config, "model_type", None)
    if kind == "gpt_neox" and not config.use_parallel_residual:
        return NEOX_SEQUENTIAL
    return _BY_TYPE.get(kind)


def known():
    """The families' names, as in `config.model_type`."""
    return tuple(_BY_TYPE)


# What each site holds; T are the batch's tokens, H the residual stream's elements.
CONVENTIONS = {
    "token_ids": "what the embedding is given",
    "embed": "the embedding's output",
    "resid_pre": "the residual stream as it enters the block; hidden_states[i] of Hugging Face",
    "ln1": "the norm before attention, with its weight",
    "q": "the projection's output, before norms and rotation, by heads",
    "k": "the projection's output, before norms and rotation, by heads",
    "v": "the projection's output, by heads",
    "q_rot": "what attention is given, rotated; [batch, head, token, d]",
    "k_rot": "what the cache is given, rotated: of this forward's tokens; [batch, head, token, d]",
    "z": "attention's output before the output projection, by heads",
    "attn_out": "attention's output after the output projection",
    "resid_mid": "the residual stream between attention and MLP",
    "ln2": "the norm before the MLP, with its weight",
    "mlp_in": "what the MLP is given",
    "mlp_post": "the last projection's input: activations, times the gate where there is one",
    "mlp_out": "the MLP's output",
    "resid_post": "the residual stream as it leaves the block: resid_pre of the next",
    "router_logits": "the router's output; [token, expert]",
    "topk_ids": "chosen experts, the most likely one first",
    "topk_weights": "their weights, as the experts' outputs are multiplied",
    "resid_final": "the residual stream before the final norm",
    "final_ln": "the final norm, with its weight; the last of hidden_states of Hugging Face",
    "final_logits": "the model's logits, of the tokens that it computes them for (generate() asks for the last alone)",
}
