# SPDX-License-Identifier: Apache-2.0
"""Where tinygrad keeps the tensors of the Qwen3 and Qwen3-MoE of small_models.py: specs/tinygrad-qwen3*.yaml said a second time.

As in sites.py, and with its parts; sites.use() puts a table in the place of SmolLM2's.
"""
import re

import numpy as np

from sites import CHUNK, Site, integer, one, toks
from small_models import CONTEXT, MODELS


class Table:
    """SITES and BEGIN of one model."""

    def __init__(self, model):
        self.model, self.rows = model, []
        self.each = {i: i for i in range(model.layers)}
        self.begin = {"prefill": re.compile("E_toks"), "decode": re.compile("E_3_8_4")}
        self.kv_bytes = 2 * model.kv_heads * CONTEXT * model.head * 4
        q, kv = model.heads * model.head, model.kv_heads * model.head
        self.prefill_sites(q, kv)
        self.decode_sites(q, kv)
        for site in self.rows:
            site.regex = re.compile(site.kernel)

    def add(self, forward, name, kernel, width, rows, pick=None, n_bytes=None, layers=None, expect=None, **more):
        layers = self.each if layers is None else layers
        pick = pick or (lambda data, launch: data[:rows(launch) * width].reshape(rows(launch), width))
        n_bytes = n_bytes or (CHUNK if forward == "prefill" else 1) * width * 4
        self.rows.append(Site(name, forward, kernel, rows, pick, width, layers=layers, n_bytes=n_bytes,
                              expect=expect or (self.model.layers if layers is self.each else 1), **more))

    def heads(self, rows, width):
        """[heads][32][head]: a chunk's buffer."""
        head = self.model.head
        return lambda data, launch: (data[:width * CHUNK].reshape(width // head, CHUNK, head)[:, :rows(launch)]
                                     .transpose(1, 0, 2).reshape(rows(launch), width))

    def cache(self, which, n_pointers, rows):
        m = self.model

        def pick(data, launch):
            start, n = integer(launch, n_pointers, 0), rows(launch)
            cached = data.reshape(2, m.kv_heads, CONTEXT, m.head)[which, :, start:start + n]
            return cached.transpose(1, 0, 2).reshape(n, m.kv_heads * m.head)
        return pick

    def prefill_sites(self, q, kv):
        m, last = self.model, self.model.layers

        def add(name, kernel, width, rows, **more):
            self.add("prefill", name, kernel, width, rows, **more)

        def by_head(name, kernel, width, rows):
            add(name, kernel, width, rows, pick=self.heads(rows, width))
        add("token_ids", "E_toks", 1, toks(2, 1), layers={0: None}, dtype=np.int32)
        add("embed", "E_toks_3_8_4", m.width, toks(3), layers={0: None})
        add("resid_pre", "E_toks_3_8_4", m.width, toks(3), layers={0: 0})
        add("ln1", "E_toks_3_8_4n1", m.width, toks(4))
        by_head("q", "r_4_toks_32_16_6", q, toks(3))
        by_head("k", "r_2_toks_32_16_6", kv, toks(3))
        by_head("q_norm", "E_toks_4_8_4", q, toks(4))
        by_head("k_norm", "E_toks_2_8_4", kv, toks(4))
        by_head("q_rot", "E_toks_4_8_4n1", q, toks(3, 1))
        for which, name in enumerate(("k_rot", "v")):
            add(name, "r_2_2_toks_32_16_6", kv, toks(5, 1), pick=self.cache(which, 5, toks(5, 1)), n_bytes=self.kv_bytes)
        by_head("z", "r_toks_4_8_4_28start_pos2Btoks29", q, toks(3, 1))
        add("resid_mid", "r_toks_96_16_4_2", m.width, toks(4))
        add("ln2", "E_toks_3_8_4n2", m.width, toks(4), expect=last + 1)
        if m.experts:
            add("router_logits", "r_toks_8_16_6", m.experts, toks(3))
            add("expert_rank", "r_toks_8_8", m.experts, toks(2), dtype=np.int32)
            add("expert_logits", "E_toks_3", m.used, toks(3))
            add("expert_weights", "E_toks_3n1", m.used, toks(4))
        else:
            add("mlp_post", "r_toks_224_16_6n1", m.hidden, toks(4))
        self.ends(add, "r_toks_6_16_3" if m.experts else "r_toks_96_16_14", toks(4))
        add("final_ln", "E_toks_3_8_4n2", m.width, toks(4), layers={last: None}, expect=last + 1)
        self.logits(add)

    def decode_sites(self, q, kv):
        m = self.model

        def add(name, kernel, width, rows=one, **more):
            self.add("decode", name, kernel, width, rows, **more)
        add("token_ids", "E_3_8_4", 1, layers={0: None}, dtype=np.int32, pointer=8, when="before")
        add("embed", "E_3_8_4", m.width, layers={0: None})
        add("resid_pre", "E_3_8_4", m.width, layers={0: 0})
        add("q", "r_128_16_6", q)
        add("k", "r_64_16_6", kv)
        add("q_rot", "E_4_8_4", q)
        for which, name in enumerate(("k_rot", "v")):
            add(name, "r_2_2_32_16_6", kv, pick=self.cache(which, 9, one), n_bytes=self.kv_bytes)
        add("z", "r_4_8_4_28start_pos2B129", q)
        add("resid_mid", "r_96_16_8", m.width)
        if m.experts:
            add("router_logits", "r_8_16_6", m.experts)
            add("expert_rank", "r_8_8", m.experts, dtype=np.int32)
            add("expert_logits", "E_3", m.used)
        else:
            add("mlp_post", "r_224_16_6n1", m.hidden)
        self.ends(add, "r_3_32_3" if m.experts else "r_96_16_14", one)
        add("final_ln", "E_3_8_4n1", m.width, layers={0: None})
        self.logits(add)

    def ends(self, add, kernel, rows):
        """A layer's output is the next one's input, or what the last norm reads."""
        n = self.model.layers
        add("resid_pre", kernel, self.model.width, rows, layers={i: i + 1 for i in range(n - 1)}, expect=n)
        add("resid_final", kernel, self.model.width, rows, layers={n - 1: None}, expect=n)

    def logits(self, add):
        n = self.model.vocabulary
        add("final_logits", "r_320_16_6(n[0-9]+)?", n, one, n_bytes=4 * n, layers={0: None}, scale=1e12, per_request=True)


TABLES = {arch: Table(model) for arch, model in MODELS.items()}
