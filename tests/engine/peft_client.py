#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models in PEFT's wrappers, which dmi.torch.attach() and dmi.huggingface.attach() are given. Prints JSON as attach_client.py does.

The library is not in the process: what would be announced is kept.
"""
import os
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # of the CUDA libraries that torch is linked to, most are not there
import peft  # noqa: E402
import torch  # noqa: E402

import attach_models as models  # noqa: E402
import dmi.huggingface  # noqa: E402
import dmi.torch  # noqa: E402
from attach_client import Recorder, check  # noqa: E402
from generate_client import said_by  # noqa: E402

IDS = torch.tensor([[3, 4, 5]])
KINDS = {"lora": peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "o_proj", "down_proj", "embed_tokens", "lm_head"]),
         "prompt": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
         "prefix": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)}


def tapped(name):
    """(its sites, the steps that were announced, what was said) of a generate() of two tokens."""
    model, steps, seen = models.model_of("llama"), [], Recorder()
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    wrapper = peft.get_peft_model(model, KINDS[name]).eval()
    with torch.no_grad():
        for key, parameter in wrapper.named_parameters():
            if "lora_B" in key:
                parameter.normal_()  # PEFT begins with zeros, which change nothing
    dmi.step_begin = lambda step, spans, *_, **__: steps.append([(s.request, s.first_position, s.n_tokens) for s in spans]) or 0

    def generate():
        with dmi.torch.attach(wrapper, "all", sink=seen), dmi.huggingface.requests("x"), torch.no_grad():
            check(dmi.huggingface.attach(wrapper) is (name == "lora"), f"{name}: it is attached, or not")
            wrapper.generate(input_ids=IDS, max_new_tokens=2, do_sample=False)
    said = said_by(generate)
    with torch.no_grad():
        hidden = wrapper(IDS, output_hidden_states=True)
    return seen, steps, said, hidden


def main():
    torch.set_num_threads(1)
    dmi.loaded = lambda: True
    seen, steps, said, out = tapped("lora")
    check(steps == [[("x", 0, 3)], [("x", 3, 1)]] and not said, "lora: each forward is announced", (steps, said))
    check(len(seen.calls) == 2 * len(seen.sites) and ("final_logits", None) in seen.sites, "lora: each site is there, once a forward", set(seen.sites))
    seen = Recorder()
    model = peft.get_peft_model(models.model_of("llama"), KINDS["lora"]).eval()
    with dmi.torch.attach(model, "resid_pre,final_ln,final_logits", sink=seen), torch.no_grad():
        out = model(IDS, output_hidden_states=True)
    same = [torch.equal(seen.sites["resid_pre", i], out.hidden_states[i][0]) for i in range(3)] + [
        torch.equal(seen.sites["final_ln", None], out.hidden_states[3][0]), torch.equal(seen.sites["final_logits", None], out.logits[0])]
    check(all(same), "lora: the values are those of output_hidden_states", same)
    for name in ("prompt", "prefix"):
        _, steps, said, _ = tapped(name)
        lines = [line for line in said if "a learned prompt (PEFT)" in line]
        check(not steps and len(lines) == (name == "prompt"), f"{name}: refused by name, once, and nothing is announced", (steps, said))


if __name__ == "__main__":
    main()
