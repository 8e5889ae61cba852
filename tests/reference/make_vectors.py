#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make vectors/ anew: files of vectors as their own writers write them, and of what they hold numbers.json.

    build/torch/env/bin/python tests/reference/make_vectors.py --out tests/reference/vectors    # torch, gguf, safetensors

README.md says what is written.
"""
import argparse
import collections
import json
import os
import pathlib
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # tests/engine/torch_env.py says why
import gguf  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

WIDTH, FEATURES = 6, 5


def control_vector(path, layers, kind, arch="controlvector", count=None):
    """As ControlVector.export_gguf() of repeng writes it."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_string("controlvector.model_hint", "llama")
    writer.add_uint32("controlvector.layer_count", len(layers) if count is None else count)
    writer.add_array("controlvector.notes", ["a", "list"])
    for layer, numbers in layers.items():
        writer.add_tensor(f"direction.{layer}", numbers.astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def autoencoder(folder, weights, **config):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cfg.json").write_text(json.dumps({"d_in": WIDTH, "d_sae": FEATURES, "dtype": "float32", "device": "cpu"} | config))
    save_file(weights, folder / "sae_weights.safetensors")


def features(weights, rows, centred):
    """[row, feature], as the encoders of SAELens compute them."""
    before = (rows - weights["b_dec"] * centred) @ weights["W_enc"] + weights["b_enc"]
    return before.relu() * (before > weights.get("threshold", torch.zeros(FEATURES)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    noise = numpy.random.default_rng(33)
    layers = {layer: noise.standard_normal(WIDTH).astype(numpy.float32) for layer in (3, 1, 2)}
    control_vector(out / "calm.gguf", layers, numpy.float32)
    control_vector(out / "half.gguf", layers, numpy.float16)
    control_vector(out / "unnamed.gguf", layers, numpy.float32, arch="vectors")
    matrix = torch.tensor(numpy.stack([layers[layer] for layer in (1, 2, 3)]))
    torch.save(matrix[0], out / "one.pt")
    torch.save(matrix, out / "rows.pt")
    torch.save({layer: matrix[i].to(torch.bfloat16) for i, layer in enumerate((1, 2, 3))}, out / "views.pt")
    torch.save(collections.OrderedDict({f"layers.{layer}.v": torch.nn.Parameter(matrix[i].double()) for i, layer in enumerate((1, 2, 3))}), out / "named.pt")
    torch.save(matrix.t().contiguous().t(), out / "columns.pt")
    torch.save({"dir": matrix[1], "avg_proj": torch.tensor(12.5), "note": "of a test"}, out / "adjust.pt")
    torch.save({"dir": numpy.ones(WIDTH, numpy.float32)}, out / "numpy.pt")
    weights = {"W_enc": torch.tensor(noise.standard_normal((WIDTH, FEATURES)), dtype=torch.float32),
               "W_dec": torch.tensor(noise.standard_normal((FEATURES, WIDTH)), dtype=torch.float32),
               "b_enc": torch.tensor(noise.standard_normal(FEATURES), dtype=torch.float32),
               "b_dec": torch.tensor(noise.standard_normal(WIDTH), dtype=torch.float32)}
    jumps = weights | {"threshold": torch.full((FEATURES,), 0.75)}
    autoencoder(out / "relu", weights, architecture="standard", activation_fn_str="relu", apply_b_dec_to_input=True, normalize_activations="none",
                hook_name="blocks.2.hook_resid_pre", hook_layer=2, hook_head_index=None, model_name="llama")
    autoencoder(out / "jump", jumps, architecture="jumprelu", apply_b_dec_to_input=False, normalize_activations="none",
                metadata={"hook_name": "blocks.1.hook_mlp_out", "model_name": "llama"})
    autoencoder(out / "topk", weights, architecture="topk", k=2, normalize_activations="none", metadata={"hook_name": "blocks.1.hook_mlp_out"})
    rows = torch.tensor(noise.standard_normal((20, WIDTH)), dtype=torch.float32)
    (out / "numbers.json").write_text(json.dumps({
        "layers": {str(layer): numbers.tolist() for layer, numbers in layers.items()}, "rows": rows.tolist(),
        "W_dec": weights["W_dec"].tolist(), "relu": features(weights, rows, True).tolist(), "jump": features(jumps, rows, False).tolist()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
