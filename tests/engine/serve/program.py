# SPDX-License-Identifier: Apache-2.0
"""A forward pass as pieces of launches, for a number of rows.

A piece is what one graph can hold: kernels between attention (which piecewise mode launches for the rows that are
there, not for padding) and what goes through the host (sums over ranks, the hand-over to the next stage, logits that are not
computed for padding).
"""
from dataclasses import dataclass, field

from .temporaries import Temporaries
from .device import Launch, Mark

SITES = ("embed", "resid_pre", "ln1", "q", "k", "v", "q_rot", "k_rot", "z", "attn_out", "resid_mid", "ln2", "mlp_post", "mlp_out",
         "resid_final", "final_ln", "final_logits")  # that a fingerprint can be put into
LANES = 32  # threads of a block that reduces
NO_MARK = Mark(None, 0, 0)


@dataclass
class View:
    """A tensor after a launch: rows of @width elements, @stride bytes apart, at @address."""
    site: str
    layer: int | None
    place: object
    width: int
    stride: int = 0  # bytes; 0: packed
    offset: int = 0  # bytes
    kind: str = "element"  # or "id": int32
    per_request: bool = False


@dataclass
class Step:
    """A launch for any number of rows, and what it makes."""
    make: object
    views: list = field(default_factory=list)
    before: bool = False  # the views are there before the launch
    module: str = ""      # whose launch it is, by the names of Hugging Face
    launches: dict = field(default_factory=dict)

    def launch(self, n):
        if n not in self.launches:
            self.launches[n] = self.make(n)
        return self.launches[n]


@dataclass
class Piece:
    """kind: compute, attention, logits (steps); reduce (a sum over ranks of @place); send, receive (of @places)."""
    kind: str
    steps: list = field(default_factory=list)
    places: list = field(default_factory=list)


class Builder:
    """Pieces of a forward of @n_rows; @model: Model; @names: what comes before kernels' names."""

    def __init__(self, model, n_rows, memory=None):
        self.m, self.n_rows, self.temporaries = model, n_rows, Temporaries(memory)
        self.pieces = []
        self.module = ""

    # ---- small parts

    def within(self, module):
        """What is added from here on belongs to @module of the model."""
        self.module = f"{'Draft' if self.m.prefix else ''}LlamaForCausalLM.{module}"

    def piece(self, kind, places=()):
        self.pieces.append(Piece(kind, places=list(places)))

    def buffer(self, width, size=None):
        return self.temporaries.alloc(self.n_rows * width * (size or self.m.dtype.size))

    def add(self, name, grid, block, args, *views, shared=0, before=False):
        """@grid and @args: of the number of rows."""
        function = self.m.function(name)

        def make(n):
            return Launch(function, (*grid(n), 1, 1)[:3], (block, 1, 1), args(n), shared)
        self.pieces[-1].steps.append(Step(make, list(views), before, self.module))

    def mark(self, site, layer, lo, hi, rows="marks"):
        """The mark of a launch: of rows' owners if this is the site to be marked."""
        if self.m.fingerprint not in ((site, layer), (site, None)):
            return None
        return Mark(self.m.input(rows).address, lo, hi)

    @staticmethod
    def first(*marks):
        return next((mark for mark in marks if mark), NO_MARK)

    def gemm(self, use, out, x, weight, n_in, n_out, mark, *views, widths=None):
        """@widths: what the kernel gets instead of n_out."""
        def make(n):
            tile = 1 if n == 1 else 4
            function = self.m.function(f"gemm_{use}_r{tile}")
            block = 32
            grid = (-(-n // tile), -(-n_out // (4 * block)), 1)
            return Launch(function, grid, (block, 1, 1), (out, x, weight, n, n_in, *(widths or (n_out,)), mark))
        self.pieces[-1].steps.append(Step(make, list(views), module=self.module))

    def norm(self, place, out, resid, x, weight, resid_site, norm_site, layer):
        width, eps = self.m.shape.width, self.m.shape.eps
        mark = self.first(resid_site and self.mark(resid_site, layer, 0, 1), self.mark(norm_site, layer, 1, 2))
        views = [View(norm_site, layer, out, width)] + ([View(resid_site, layer, resid, width)] if resid_site else [])
        arguments = (out, resid, weight) if x is None else (out, resid, x, weight)
        self.add(f"norm_{place}" if x is None else f"add_norm_{place}", lambda n: (n,), LANES,
                 lambda n: (*arguments, n, width, eps, mark), *views)

    # ---- the forward

    def build(self):
        m, s = self.m, self.m.shape
        resid = self.buffer(s.width)
        mlp_out = None
        self.piece("compute")
        if m.part.is_first:
            self.embed(resid)
        else:
            mlp_out = self.buffer(s.width)
            self.pieces[-1] = Piece("receive", places=[resid, mlp_out])
            self.piece("compute")
        for i, weights in enumerate(m.weights.layers[:s.layers]):
            mlp_out = self.layer(m.first_layer + i, i, weights, resid, mlp_out)
        if m.part.is_last:
            self.head(resid, mlp_out)
        else:
            self.piece("send", [resid, mlp_out])
        self.pieces = [p for p in self.pieces if p.steps or p.kind in ("send", "receive", "reduce")]
        return self

    def embed(self, resid):
        m, width = self.m, self.m.shape.width
        self.within("model.embed_tokens")
        mark = self.first(self.mark("embed", None, 0, width), self.mark("resid_pre", 0, 0, width))
        ids = View("token_ids", None, m.input("ids"), 1, kind="id")
        self.add("embed", lambda n: (n,), LANES, lambda n: (resid, m.weights.embedding, m.input("ids"), n, width, mark),
                 ids, View("embed", None, resid, width), View("resid_pre", 0, resid, width))

    def layer(self, layer, i, weights, resid, mlp_out):
        """Returns the buffer of mlp_out."""
        s, memory = self.m.shape, self.temporaries
        ln = self.buffer(s.width)
        module = f"model.layers.{layer}"
        self.within(f"{module}.input_layernorm")
        if mlp_out is None:
            self.norm("first", ln, resid, None, weights["ln1"], None, "ln1", layer)
        else:
            self.norm("mlp", ln, resid, mlp_out, weights["ln1"], "resid_pre", "ln1", layer)
            memory.free(mlp_out)
        z = self.attention(layer, i, weights, ln)
        attn_out = self.buffer(s.width)
        self.within(f"{module}.self_attn.o_proj")
        self.gemm("o", attn_out, z, weights["o"], s.q_width, s.width, self.first(self.mark("attn_out", layer, 0, s.width)),
                  View("attn_out", layer, attn_out, s.width))
        memory.free(z)
        self.reduce(attn_out)
        ln = self.buffer(s.width)
        self.within(f"{module}.post_attention_layernorm")
        self.norm("attn", ln, resid, attn_out, weights["ln2"], "resid_mid", "ln2", layer)
        memory.free(attn_out)
        gate_up = self.buffer(2 * s.mlp)
        self.within(f"{module}.mlp.gate_up_proj")
        self.gemm("gate_up", gate_up, ln, weights["gate_up"], s.width, 2 * s.mlp, NO_MARK)
        memory.free(ln)
        post = self.buffer(s.mlp)
        mark = self.first(self.mark("mlp_post", layer, 0, s.mlp))
        self.within(f"{module}.mlp.act_fn")
        self.add("silu_mul", lambda n: (n,), LANES, lambda n: (post, gate_up, n, s.mlp, mark), View("mlp_post", layer, post, s.mlp))
        memory.free(gate_up)
        mlp_out = self.buffer(s.width)
        self.within(f"{module}.mlp.down_proj")
        self.gemm("down", mlp_out, post, weights["down"], s.mlp, s.width, self.first(self.mark("mlp_out", layer, 0, s.width)),
                  View("mlp_out", layer, mlp_out, s.width))
        memory.free(post)
        self.reduce(mlp_out)
        return mlp_out

    def attention(self, layer, i, weights, ln):
        m, s, memory, size = self.m, self.m.shape, self.temporaries, self.m.dtype.size
        q, kv = s.q_width, s.kv_width
        merged = q + 2 * kv
        qkv = self.buffer(merged)
        mark = self.first(self.mark("q", layer, 0, q), self.mark("k", layer, q, q + kv), self.mark("v", layer, q + kv, merged))
        self.within(f"model.layers.{layer}.self_attn.qkv_proj")
        self.gemm("qkv", qkv, ln, weights["qkv"], s.width, merged, mark, View("q", layer, qkv, q, merged * size),
                  View("k", layer, qkv, kv, merged * size, q * size), View("v", layer, qkv, kv, merged * size, (q + kv) * size),
                  widths=(q, kv))
        memory.free(ln)
        q_rot, k_rot = self.buffer(q), self.buffer(kv)
        mark = self.first(self.mark("q_rot", layer, 0, 1), self.mark("k_rot", layer, 1, 2))
        self.within(f"model.layers.{layer}.self_attn.rotary_emb")
        self.add("rope", lambda n: (n, s.heads + s.kv_heads), s.head // 2,
                 lambda n: (q_rot, k_rot, qkv, m.input("positions"), m.weights.turns, n, q, kv, mark),
                 View("q_rot", layer, q_rot, q), View("k_rot", layer, k_rot, kv))
        self.piece("attention")
        self.within(f"model.layers.{layer}.self_attn.attn")
        k_cache, v_cache = m.caches[i]
        self.add("kv_write", lambda n: (n,), LANES, lambda n: (k_cache, v_cache, k_rot, qkv, m.input("slots"), n, q, kv))
        z = self.buffer(q)
        z_mark = self.first(self.mark("z", layer, 0, q))
        self.add("attention", lambda n: (n, s.heads), LANES,
                 lambda n: (z, q_rot, k_cache, v_cache, m.input("tables"), m.input("of_request"), m.input("positions"), n, q, kv,
                            m.block_size, m.layout.table_width, z_mark),
                 View("z", layer, z, q), shared=4 * m.n_positions)
        memory.free(qkv, q_rot, k_rot)
        self.piece("compute")
        return z

    def reduce(self, place):
        if self.m.part.ranks > 1:
            self.piece("reduce", [place])
            self.piece("compute")

    def head(self, resid, mlp_out):
        m, s, memory = self.m, self.m.shape, self.temporaries
        ln = self.buffer(s.width)
        self.within("model.norm")
        self.norm("final", ln, resid, mlp_out, m.weights.final_norm, "resid_final", "final_ln", None)
        memory.free(mlp_out)
        self.piece("logits")
        last = self.buffer(s.width)
        self.within("logits_processor")
        self.add("gather_last", lambda n: (n,), LANES, lambda n: (last, ln, m.input("last"), n, s.width))
        logits = self.buffer(s.vocabulary)
        mark = self.first(self.mark("final_logits", None, 0, s.vocabulary, "last_marks"))
        self.within("lm_head")
        self.gemm("logits", logits, last, m.weights.head, s.width, s.vocabulary, mark,
                  View("final_logits", None, logits, s.vocabulary, per_request=True))
        self.within("sampler")
        self.add("argmax", lambda n: (n,), LANES, lambda n: (m.best, logits, n, s.vocabulary))
        memory.free(ln, last, logits)
