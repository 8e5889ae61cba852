# SPDX-License-Identifier: Apache-2.0
"""The edits of which edits.safetensors holds what Hugging Face computes: make_edits.py and the tests take them from here.

A cell edits one request. Its entries are those of an edits' file (docs/edits.md): the tests write them down as they are.
"""
import json

LAYERS = 30
WRITES = ("embed", "attn_out", "mlp_out")  # all that goes into the residual stream
VECTORS = {"noise": {}, "joy": {"norm": "unit"}}
N_TOKENS = 8  # that a cell's request generates

CELLS = {
    # The residual stream that enters layer 10.
    "add": {"request": "france", "edits": [{"site": "mlp_out", "layers": "9", "do": [{"add": "noise", "times": 12}]}]},
    # A direction taken out of all that goes into the stream, and so out of the stream.
    "project_out": {"request": "count", "edits": [{"site": site, "do": [{"project_out": "joy"}]} for site in WRITES]},
    "columns": {"request": "france", "edits": [
        {"site": "mlp_out", "layers": "9", "columns": "3,17", "do": [{"set": 1.5}]},
        {"site": "mlp_out", "layers": "9", "columns": "64:128", "do": [{"scale": -2}]},
        {"site": "attn_out", "layers": "10", "columns": "0:64", "do": ["zero"]},
        {"site": "mlp_out", "layers": "11-13", "columns": "200:260", "do": [{"clamp": [-0.05, 0.04]}]},
    ]},
    "kept": {"request": "count", "edits": [
        {"site": "mlp_out", "layers": "5-20", "tokens": "generated", "do": [{"add": "noise", "times": {0: 6, 4: 1}}, "keep_norm"]},
        {"site": "attn_out", "layers": "8", "tokens": "last_prompt", "do": [{"adjust_rs": "noise", "to": 3}]},
        {"site": "mlp_out", "layers": "12", "tokens": "3:-2", "do": [{"limit_along": "joy", "between": [-0.1, 0.1]}]},
    ]},
}

# How strongly "joy" is added to the stream that enters layer 10, and the prompt whose score then is its final hidden state along it.
CURVE = (-16, -8, 0, 8, 16, 24)
CURVE_PROMPT = "Today I feel"
PAIRS = (("I am so happy today", "I am so sad today"), ("What a wonderful, joyful day", "What a horrible, gloomy day"),
         ("She smiled with delight", "She wept with grief"), ("This makes me glad", "This makes me miserable"))


def named(edits, request, prefix="edit"):
    """Entries of an edits' file for one request: @edits with a name each."""
    return [{"name": f"{prefix}-{i}", "requests": request, **edit} for i, edit in enumerate(edits)]


def text_of(entries, vectors):
    """An edits' file; @vectors: {name: how it is given}."""
    return json.dumps({"editspec": 1, "vectors": vectors, "edits": entries}, indent=1)
