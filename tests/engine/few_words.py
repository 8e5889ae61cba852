# SPDX-License-Identifier: Apache-2.0
"""SmolLM2 with the tokens of a few texts alone, as a folder of Hugging Face's: its layers compute what they compute in the whole model. It takes a second to write, and less to load.

The head has these tokens' rows alone, so ranks are among them. Texts become the tokens that they are in the whole model where all parts of their words are there (tokens_of()).
"""
import json

import numpy as np
from safetensors.numpy import save_file

from dmi.weights import Weights

CHAT = ("<|im_start|>", "<|im_end|>")
NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def halves(rows, n_heads):
    """Rows of q or k, which a GGUF has in pairs (i, i + 1), as Hugging Face rotates them: (i, i + n / 2)."""
    return np.ascontiguousarray(rows.reshape(n_heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape))


MOST = 20  # characters of a token


def tokens_of(gguf, *texts):
    """All tokens that occur in the ASCII @texts, parts of words too: those that merges of their words go through; and the special ones of a chat."""
    texts = [text.replace(" ", "Ġ").replace("\n", "Ċ") for text in texts]
    parts = {text[i:i + n] for text in texts for i in range(len(text)) for n in range(1, MOST + 1)}
    return [i for i, piece in enumerate(Weights(gguf).config["tokenizer.ggml.tokens"]) if piece in parts or piece in CHAT]


def make(folder, gguf, tokens, layers=None):
    """Writes the @folder, of the first @layers. Returns the @tokens that it has, in the order of their new ids."""
    weights, tokens = Weights(gguf), sorted(set(tokens))
    said = {name.removeprefix("llama."): value for name, value in weights.config.items()}
    layers = layers or said["block_count"]
    heads = {"attn_q": said["attention.head_count"], "attn_k": said["attention.head_count_kv"]}
    arrays = {"model.embed_tokens.weight": np.concatenate([weights.rows("token_embd.weight", i, i + 1) for i in tokens]), "model.norm.weight": weights.rows("output_norm.weight")}
    for layer in range(layers):
        for name, theirs in NAMES.items():
            rows = weights.rows(f"blk.{layer}.{name}.weight")
            arrays[f"model.layers.{layer}.{theirs}.weight"] = halves(rows, heads[name]) if name in heads else rows
    folder.mkdir()
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": said["embedding_length"], "intermediate_size": said["feed_forward_length"],
        "num_hidden_layers": layers, "num_attention_heads": heads["attn_q"], "num_key_value_heads": heads["attn_k"], "vocab_size": len(tokens),
        "max_position_embeddings": said["context_length"], "rms_norm_eps": said["attention.layer_norm_rms_epsilon"], "rope_theta": said["rope.freq_base"],
        "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None}))
    vocabulary = {said["tokenizer.ggml.tokens"][token]: i for i, token in enumerate(tokens)}
    merges = [pair for pair in map(str.split, said["tokenizer.ggml.merges"]) if vocabulary.keys() >= {*pair, "".join(pair)}]
    special = [{"id": vocabulary[piece], "content": piece, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False} for piece in CHAT if piece in vocabulary]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": special, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": True}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": said["tokenizer.chat_template"]}))
    return tokens
