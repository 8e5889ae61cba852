#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that knows nothing of DMI: three models, one called, one that generates, one compiled; then one of no family."""
import os
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import torch  # noqa: E402
import transformers  # noqa: E402

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, "intermediate_size": 48,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def main():
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    ids = torch.arange(5)[None] + 3
    llama = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES, num_key_value_heads=2)).eval()
    print("llama", flush=True)
    llama(ids)
    print("again", flush=True)
    llama(ids)
    llama.save_pretrained(sys.argv[1])
    print("saved", flush=True)
    transformers.LlamaForCausalLM.from_pretrained(sys.argv[1]).generate(ids, max_new_tokens=2, do_sample=False)
    print("compiled", flush=True)
    torch.compile(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, num_key_value_heads=2)).eval(), backend="aot_eager")(ids)
    print("bert", flush=True)
    transformers.BertModel(transformers.BertConfig(**SIZES)).eval()(ids)
    print("end", flush=True)


if __name__ == "__main__":
    main()
