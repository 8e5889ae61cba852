# SPDX-License-Identifier: Apache-2.0
"""Programs around what docs/taps.md shows, which the page leaves to its readers: an engine, its HookSpec, and what calls the code in C.

The engine has a Llama of 14 layers, so that the page's layers are some of them, on a device if there is one. What forward hooks see of it is in seen.safetensors, by
{REQUEST/SITE.LAYER}, as runs of it are exported. test_cpu_pages.py types the page's commands beside them.
"""
import re

import pages

PAGE = "docs/taps.md"
LAYERS = 14
# The page's layers, 3,7-12,last.
CHOSEN = (3, *range(7, 13), LAYERS - 1)
MODEL = f"""
import torch
import transformers

import dmi

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch.set_grad_enabled(False)
config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers={LAYERS}, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
model = transformers.LlamaForCausalLM(config).eval().to(DEVICE)


def forward(step):
    ids = (torch.arange(5, device=DEVICE)[None] * 7 + step) % 64
    dmi.step_begin(step, [dmi.Span(f"r{{step}}", 0, 5, n_prompt=5)], caches=False)
    model(ids)
    dmi.step_end()
    dmi.request_end(f"r{{step}}", dmi.End.LENGTH)
"""
HOOKS = """
from safetensors.torch import save_file

SEEN = {}


def keep(site, layer, x):
    SEEN[f"r{STEP}/{site}" + ("" if layer is None else f".{layer}")] = x[0].cpu().clone()


def before(site, layer):
    return lambda _, given: keep(site, layer, given[0])


def after(site, layer):
    return lambda _, given, out: keep(site, layer, out)


for i, block in enumerate(model.model.layers):
    block.register_forward_pre_hook(before("resid_pre", i))
    block.post_attention_layernorm.register_forward_pre_hook(before("resid_mid", i))
    block.self_attn.q_proj.register_forward_hook(after("q", i))
    block.self_attn.k_proj.register_forward_hook(after("k", i))
model.model.norm.register_forward_pre_hook(before("resid_final", None))
"""
STEPS = """
for STEP in range(3):
    forward(STEP)
"""
# What "with rows, requests, steps, scales" is: the last tokens of one request, in every second step.
SPEC = """hookspec: 1
forward: [{kind: step, begin: step}]
sites:
  - {tap: resid_pre, layers: '3', tokens: '3:', requests: 'r[12]', steps: {every: 2, of: engine}, scale: 0.125}
"""
BY_HAND = """
x = torch.arange(12, dtype=torch.float32, device=DEVICE).reshape(3, 4)
save_file({"scaled.0": x.cpu()}, "seen.safetensors")
"""
FROM_C = """
import ctypes

tap = ctypes.CDLL("./tapped.so").tap
x = (torch.arange(12, device=DEVICE).reshape(3, 4) / 3).bfloat16()
stream = torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else 0
tap(ctypes.c_void_p(x.data_ptr()), ctypes.c_uint64(3), ctypes.c_uint64(4), 2, ctypes.c_void_p(stream))
save_file({"resid_pre.2": x.cpu()}, "seen.safetensors")
"""
C = """
void tap(const void *data, uint64_t tokens, uint64_t hidden, int layer, void *stream)
{
    tap_resid_pre(data, tokens, hidden, layer, stream);
}
"""
# What stands in the page's sentences, each with what it needs.
NEEDS = {
    "x = dmi.torch.edit(": "x = torch.ones(3, 4, device=DEVICE)",
    "dmi.tap(": "x = numpy.ones((3, 4), dtype=numpy.float32)",
    "dmi.torch.attach(model, sites, layers)": 'sites, layers = "q,k", "3,last"',
    "dmi.torch.tap(scores": "scores, layer = torch.ones(2, 3, 3, device=DEVICE), 1",
    "attach(model, write=": "",
    "attach(model, sites, gradients=True)": "",
}


def blocks(kind):
    """The page's blocks of that kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", pages.section(PAGE), re.S | re.M)


def commands():
    """Those of "Which to capture"."""
    block, = blocks("sh")
    return block.splitlines()


def statements():
    """Calls in the page's sentences that have arguments, with what they need before them; attach() is of a new model."""
    found = re.findall(r"`((?:x = )?(?:dmi\.(?:torch\.)?(?:edit|tap|attach)|attach)\([^`)]+\))`", pages.section(PAGE))
    return "".join(f"\n{need}\nattached = {call}\nattached.detach()\n" if "attach(" in call else f"\n{need}\n{call}\n"
                   for call in found for begins, need in NEEDS.items() if call.startswith(begins)), found


def synopses():
    """The commands of "Programs that know nothing", with words in the place of what they leave open."""
    words = {"SITES": "residuals", "LAYERS": "3,last", "PATTERN": "'*Llama*'", "SCRIPT": "script.py"}
    text = pages.section(PAGE, "Programs that know nothing")
    found = re.findall(r"`(dmi-run --attach SITES[^`]*|python -m dmi\.torch\.attach [^`]*)`", text)
    plain = [re.sub(r" \[--write SITES\]| \[ARGUMENT \.\.\.\]|[\[\]]", "", command) for command in found]
    return [re.sub("|".join(words), lambda m: words[m[0]], command) for command in plain]


def files():
    """[(name, content)] that lie beside the page's commands."""
    python, = blocks("python")
    calls, _ = statements()
    attach = 'import dmi.torch\n\nattached = dmi.torch.attach(model, "all")\n'
    end = 'save_file(SEEN, "seen.safetensors")\n'
    return [("serve.py", MODEL + HOOKS + attach + STEPS + end), ("script.py", MODEL + HOOKS + STEPS + end), ("taps.yaml", SPEC),
            ("by_hand.py", MODEL + HOOKS + "import dmi.torch\n" + BY_HAND + python), ("from_c.py", MODEL + HOOKS + FROM_C),
            ("statements.py", MODEL + "import dmi.torch\nimport numpy\nfrom dmi.torch import attach\n" + calls)]
