# SPDX-License-Identifier: Apache-2.0
"""What the examples do with a model of Hugging Face's: they load it, and run one forward over each prompt, which dmi-run captures."""
import pathlib

import dmi


def load(name):
    """(tokenizer, model) of a folder of Hugging Face's, or of a GGUF file; the model computes in float32, on the GPU if there is one."""
    import torch
    import transformers
    path = pathlib.Path(name)
    source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name} if path.suffix == ".gguf" else {"pretrained_model_name_or_path": path}
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    return transformers.AutoTokenizer.from_pretrained(**source), model.to("cuda" if torch.cuda.is_available() else "cpu")


def prefill(model, step, request, ids):
    """One step, whose only request is the prompt @ids. Returns the last token's logits."""
    import torch
    dmi.step_begin(step, [dmi.Span(request, 0, len(ids), phase=dmi.Phase.PREFILL, n_prompt=len(ids))])
    with torch.no_grad():
        logits = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1]
    dmi.step_end()
    dmi.request_end(request, dmi.End.STOP)
    return logits
