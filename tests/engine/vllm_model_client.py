#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Taps of vLLM's own models against those of Hugging Face's, with the same weights: vllm_model_client.py FAMILY eager|aot_eager|trace|vllm FOLDER

trace and vllm: as vLLM compiles, with the compiler's backend `eager` and its own. Attention is PyTorch's, of one prompt at once, in
place of the kernels that vLLM has compiled. Prints a line of JSON for each thing that must hold: [holds, what, detail].
"""
import os
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # torch_env.py says why

import torch  # noqa: E402
import vllm.v1.worker.cpu.shm  # noqa: E402,F401
from vllm.config import CompilationMode, set_current_vllm_config  # noqa: E402
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.forward_context import set_forward_context  # noqa: E402
from vllm.model_executor.layers.attention import Attention  # noqa: E402
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading  # noqa: E402
import transformers  # noqa: E402

import dmi.torch  # noqa: E402
from attach_client import Recorder, check  # noqa: E402

T, SITES = 11, "all"
MODES = {"trace": CompilationMode.DYNAMO_TRACE_ONCE, "vllm": CompilationMode.VLLM_COMPILE}
BACKENDS = {"trace": {"backend": "eager"}}


def attend(self, query, key, value, **more):
    """Causal attention of one sequence's tokens: [token, heads * head]."""
    q, k, v = (x.unflatten(-1, (-1, self.head_size)).transpose(0, 1) for x in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(0, 1).flatten(1)


def recorded(model, forward):
    """(its sites, what was missing, what @forward returns)"""
    recorder = Recorder()
    with dmi.torch.attach(model, SITES, sink=recorder) as attached, torch.no_grad():
        out = forward()
        return recorder.sites, {missing.name for missing in attached.missing}, out


def main():
    family, how, folder = sys.argv[1:]
    config = transformers.AutoConfig.for_model(
        family, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=3, num_key_value_heads=2, head_dim=8, vocab_size=97,
        max_position_embeddings=64, tie_word_embeddings=False)
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    theirs.save_pretrained(folder)
    Attention.forward = attend
    made = EngineArgs(model=folder, skip_tokenizer_init=True, enforce_eager=how == "eager", dtype="float32", max_model_len=64, load_format="dummy",
                      compilation_config={"mode": MODES.get(how, CompilationMode.NONE), "custom_ops": ["none"]} | BACKENDS.get(how, {})).create_engine_config()
    ids = torch.arange(T) * 7 % 97
    with set_current_vllm_config(made):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        ours = initialize_model(vllm_config=made).eval()
        ours.load_weights(theirs.state_dict().items())
        process_weights_after_loading(ours, made.model_config, torch.device("cpu"))
        forward = torch.compile(ours.model.forward, backend=how, fullgraph=True) if how == "aot_eager" else ours.model

        def run():
            with set_forward_context(None, made, num_tokens=T):
                return ours.compute_logits(forward(ids, torch.arange(T), None))
        found, missing, logits = recorded(ours, run)
        plain = logits if how in MODES else run()  # what vLLM has compiled stays as it is
    reference, _, out = recorded(theirs, lambda: theirs(ids[None]))
    check(torch.allclose(logits, out.logits[0], atol=1e-5), f"{family}, {how}: logits are Hugging Face's", (logits - out.logits[0]).abs().max())
    check(torch.equal(plain, logits), f"{family}, {how}: taps change nothing", (plain - logits).abs().max())
    lacking = {name for name, _ in reference} - {name for name, _ in found}
    check(lacking == {"resid_post"} and lacking <= missing, f"{family}, {how}: all sites but one, and that is named", (lacking, missing))
    check(set(found) == {at for at in reference if at[0] not in lacking}, f"{family}, {how}: of all layers", set(reference) ^ set(found))
    for at, x in found.items():
        y = reference[at]
        check(x.shape == y.shape and torch.allclose(x.float(), y.float(), atol=2e-5), f"{family}, {how}: {at[0]} {at[1]}", (x.shape, y.shape))


if __name__ == "__main__":
    main()
