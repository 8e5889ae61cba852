#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that knows nothing of DMI: a model answers, another one judges, a third drafts for the first, after it has answered by itself. several_models.py FOLDER

Prints how many rows each computed: small is the third alone, draft the third for the first.
"""
import json
import os
import pathlib
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import torch  # noqa: E402
import transformers  # noqa: E402

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}


ROWS = {"main": 0, "judge": 0, "small": 0, "draft": 0}


def model(folder, name, seed, **sizes):
    torch.manual_seed(seed)

    def count(module, args, kwargs):
        ROWS[module.role] += (args or [kwargs["input_ids"]])[0].shape[1]
    one = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"intermediate_size": 48} | sizes)).eval()
    one.config._name_or_path, one.role = str(folder / name), name
    one.register_forward_pre_hook(count, with_kwargs=True)
    return one


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_grad_enabled(False)
    main_model, judge, draft = model(folder, "main", 1), model(folder, "judge", 2, intermediate_size=64), model(folder, "small", 3)
    ids = torch.arange(5)[None] + 3
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 2, "do_sample": False}
    draft.generate(ids, **options)
    draft.role = "draft"
    main_model.generate(ids, assistant_model=draft, **options)
    judge(ids)
    print(json.dumps(ROWS))


if __name__ == "__main__":
    main()
