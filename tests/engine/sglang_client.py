#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SGLang itself serves made-up requests on the CPU: sglang_client.py SEED MODEL_FOLDER. The model is sglang_tapped's; all else is SGLang's.

Prints JSON: of each request what the run must hold.
"""
import json
import os
import random
import sys
import time

sys.setdlopenflags(os.RTLD_LAZY)  # torch_env.py says why


def made_requests(seed, n):
    """{name: (prompt, sampling parameters)}: half of the prompts begin alike."""
    rng = random.Random(seed)
    shared = [rng.randrange(97) for _ in range(40)]
    for i in range(n):
        prompt = shared[:rng.choice([0, 0, 20, 33, 40])] + [rng.randrange(97) for _ in range(rng.randint(3, 45))]
        yield f"req{i}", prompt, {"max_new_tokens": rng.randint(2, 60), "temperature": 0, "ignore_eos": True,
                                  "stop_token_ids": [*range(0, 97, 6)] if i % 4 == 1 else None,
                                  "custom_params": {"capture": "yes", "n": i} if i % 3 == 0 else None}


def main():
    seed, folder = sys.argv[1:]
    import sglang
    engine = sglang.Engine(model_path=folder, device="cpu", attention_backend="torch_native", load_format="dummy", skip_tokenizer_init=True,
                           disable_cuda_graph=True, max_running_requests=6, max_total_tokens=512, chunked_prefill_size=32, enable_mixed_chunk=True,
                           dtype="float32", sampling_backend="pytorch", log_level="warning", watchdog_timeout=120)
    names, prompts, params = zip(*made_requests(int(seed), 24))
    said = []
    for part in (slice(0, 12), slice(12, 24)):  # the second half finds prefixes of the first in the cache
        said += engine.generate(input_ids=list(prompts[part]), sampling_params=list(params[part]), rid=list(names[part]))
    print(json.dumps({name: {"tokens": prompt + answer["output_ids"], "n_prompt": len(prompt), "cached": answer["meta_info"]["cached_tokens"],
                             "retracted": answer["meta_info"].get("num_retractions", 0), "fields": asked["custom_params"]}
                      for name, prompt, asked, answer in zip(names, prompts, params, said)}), flush=True)
    time.sleep(2)  # it kills the process that serves, and with it what has not left the ring
    engine.shutdown()


if __name__ == "__main__":
    main()
