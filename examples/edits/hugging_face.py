#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a model of Hugging Face's answers, and what it answers with a vector added to its residual stream.

    dmi-run --write resid_post --out RUN -- python hugging_face.py MODEL calm.safetensors "How was your day?" --times 4 --layers 11-26
"""
import argparse

import torch
import transformers

import dmi


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("vector")
    parser.add_argument("prompt")
    parser.add_argument("--times", type=float, default=1.0)
    parser.add_argument("--layers")
    parser.add_argument("--tokens", type=int, default=40)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model).to(device)
    given = tokenizer(options.prompt, return_tensors="pt").to(device)

    def answer():
        out = model.generate(given["input_ids"], attention_mask=given["attention_mask"], max_new_tokens=options.tokens, do_sample=False)
        return tokenizer.decode(out[0, given["input_ids"].shape[1]:], skip_special_tokens=True)
    print("without:", answer())
    with dmi.edit(options.vector, times=options.times, layers=options.layers):
        print("with:", answer())


if __name__ == "__main__":
    main()
