# SPDX-License-Identifier: Apache-2.0
"""dmi.torch: taps on a small model of every family that attach() knows, eagerly and compiled, on the CPU.

The programs run in an environment with PyTorch and transformers (torch_env.py), where taps go to a function instead of the
library: attach_client.py compares them with hooks of attach_models.py, taps_client.py looks at the edges. Importing and
compiling is what takes long: without --long one family is compiled, and two of other structure run eagerly.
"""
import json
import re

import pytest

import harness
import torch_env
import versions
from harness import PRELOAD, ROOT, STANDIN

HERE = ROOT / "tests" / "engine"
DMI_SITES = harness.BUILD / "tools" / "dmi-sites"
TAP_LOG = harness.BUILD / "tests" / "engine" / "libtap_log.so"
FAMILIES = tuple(re.findall(r'^    "(\w+)": \("[A-Z]', (HERE / "attach_models.py").read_text(), re.M))
COMPILED = ("llama", "gemma3", "gpt2", "gpt_neox", "phi", "qwen3_moe", "phi3")  # by the compiler itself, which takes long: each kind of pick
KINDS = ("without_cache", "wrapped", "unknown", "nested", "recomputed")  # of attach_kinds.py
# A sitecustomize of somebody else's, which comes after the one of dmi.torch: here it lets taps go to the output.
CHAINED = torch_env.PREAMBLE + """
from dmi.torch import hooks
plain = hooks.attach
hooks.attach = lambda model, sites, layers, sink: plain(
    model, sites, layers, lambda tensor, name, layer, *_: print("tap", name, layer, *tensor.shape, flush=True))
"""
SCRIPT = """llama
tap resid_pre 1 1 5 32
tap final_logits None 1 5 64
again
tap resid_pre 1 1 5 32
tap final_logits None 1 5 64
saved
tap resid_pre 1 1 5 32
tap final_logits None 1 1 64
tap resid_pre 1 1 1 32
tap final_logits None 1 1 64
compiled
tap resid_pre 1 1 5 32
tap final_logits None 1 5 64
bert
end
"""
pytestmark = pytest.mark.built(PRELOAD, TAP_LOG, STANDIN / "libcuda.so.1")


@pytest.fixture(scope="module")
def torch():
    return torch_env.python_with_torch()


MAKE = torch_env.PREAMBLE + """
import torch, transformers
torch.manual_seed(2)
config = transformers.Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                                  num_key_value_heads=2, head_dim=8)
transformers.Qwen3ForCausalLM(config).save_pretrained("model")
"""
COMPARE = torch_env.PREAMBLE + """
import json, sys, torch, transformers
from safetensors.torch import load_file
model, found = transformers.AutoModelForCausalLM.from_pretrained("model").eval(), load_file("ref.safetensors")
for request in json.load(open("requests.json"))["requests"]:
    name, tokens = request["id"], request["prompt_tokens"] + request["forced_tokens"]
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    want = {f"resid_pre.{i}": h for i, h in enumerate(out.hidden_states[:-1])} | {"final_ln": out.hidden_states[-1], "final_logits": out.logits}
    wrong = [key for key, value in want.items() if not torch.equal(found[f"{name}/{key}"], value[0])]
    print(name, len(tokens), found[f"{name}/token_ids"].flatten().tolist() == tokens, wrong,
          list(found[f"{name}/q_rot.2"].shape), list(found[f"{name}/k.0"].shape))
"""


@pytest.mark.long
def test_reference_activations(check, torch, tmp_path):
    """dmi-sites reference: rows of tokens, and the values of output_hidden_states."""
    python, env = torch
    (tmp_path / "sitecustomize.py").write_text(torch_env.PREAMBLE)
    env = dict(env, PATH=f"{python.parent}:{env['PATH']}", PYTHONPATH=str(tmp_path))
    (tmp_path / "given.json").write_text(json.dumps({"requests": [
        {"id": "a", "prompt_tokens": [3, 4, 5], "forced_tokens": [6, 7]}, {"id": "b", "prompt_tokens": [9] * 6}]}))
    harness.run([python, "-c", MAKE], env=env, cwd=tmp_path)
    said = harness.run([DMI_SITES, "reference", "model", "--requests", "given.json", "--tokens", "3", "-o", "ref.safetensors",
                        "--write-requests", "requests.json"], env=env, cwd=tmp_path)
    check("a: 3 + 2 tokens" in said.stderr and "b: 6 + 3 tokens" in said.stderr, "what was computed is said", said.stderr)
    check("not there: router_logits" in said.stderr, "what the model lacks is said", said.stderr)
    told = harness.run([python, "-c", COMPARE], env=env, cwd=tmp_path).stdout.splitlines()
    check(told == ["a 5 True [] [5, 32] [5, 16]", "b 9 True [] [9, 32] [9, 16]"], "values are those of the model", told)


def run(torch, program, *words, version=None, **more):
    python, env = torch
    env = versions.before(version, dict(env, PYTHONPATH=f"{ROOT / 'python'}:{HERE}"))
    env = dict(env, **{key: str(value) for key, value in more.items()})
    return harness.run([python, program, *words], env=env, timeout=1800)


def check_all(check, result):
    """Every line that a client prints: [holds, what, detail], or whose model the next ones are of."""
    assert "[" in result.stdout, result.stderr
    of = ""
    for line in result.stdout.splitlines():
        if line.startswith("["):
            holds, what, detail = json.loads(line)
            check(holds, f"{of}: {what}" if of else what, detail)
        elif line in FAMILIES + KINDS:
            of = line


@pytest.mark.parametrize("how, families", [("eager", ("gemma3", "gpt_neox", *KINDS)), ("aot_eager", ("qwen3_moe",)), *(
    pytest.param(how, families, marks=pytest.mark.long) for how, families in (("eager", FAMILIES), ("aot_eager", FAMILIES), ("inductor", COMPILED)))])
def test_families(check, torch, how, families):
    check_all(check, run(torch, HERE / "attach_client.py", how, *families))


@pytest.mark.long
@pytest.mark.parametrize("version", versions.TRANSFORMERS)
def test_other_versions(check, torch, version):
    """Each family that a version has; what a version lacks is named, and nothing has another value."""
    result = run(torch, HERE / "attach_client.py", "eager", *FAMILIES, *KINDS, version=version)
    check_all(check, result)
    check(result.stdout.count("true") > 500, f"{version}: it compared", result.stdout.count("true"))


@pytest.mark.long
def test_peft(check, torch):
    """LoRA on every projection, learned prompts: PEFT itself, from its wheel."""
    check_all(check, run(torch, HERE / "peft_client.py", version="peft"))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_edges(check, torch, backend):
    check_all(check, run(torch, HERE / "taps_client.py", backend))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_same_bits_with_the_library(check, torch, backend, tmp_path):
    plain = run(torch, HERE / "taps_client.py", backend, "digest")
    with_it = run(torch, HERE / "taps_client.py", backend, "digest", LD_PRELOAD=PRELOAD, DMI_OUT=tmp_path)
    check(plain.stdout.startswith("logits ") and plain.stdout == with_it.stdout, "a compiled model's logits have the same bits",
          plain.stdout + with_it.stdout)


@pytest.mark.long
def test_what_the_library_gets(check, torch):
    result = run(torch, HERE / "taps_client.py", "eager", "library", LD_PRELOAD=TAP_LOG)
    check_all(check, result)
    got = [line for line in result.stdout.splitlines() if line.startswith("120")]
    here = [line for line in got if " here " in line]
    check(len(here) == 1 and re.fullmatch(r"120 1 here [0-9a-f]+ 0 layer -1 of 0 dtype 1 rows 1 flags 2 3/4", here[0]), "one on the CPU arrives without a stream", here)
    check(result.stderr.count("the model's tensors are on meta: nothing is captured there") == 1, "one that is nowhere does not", result.stderr)
    got = [line for line in got if line not in here]
    check(got == ["120 1 q 7000 903 layer 3 of 12 dtype 3 rows 3 flags 0 2/140 5/28 7/4",
                  "120 1 embed 7000 903 layer -1 of 0 dtype 3 rows 2 flags 0 2/140 5/28 7/4",
                  "120 1 resid_post 7000 903 layer 1 of 12 dtype 3 rows 3 flags 1 2/140 5/28 7/4"],
          "a tensor on a device arrives with its stream", got)


@pytest.mark.long
@pytest.mark.parametrize("how", ["environment", "module"])
def test_program_that_knows_nothing(check, torch, how, tmp_path):
    python, env = torch
    (tmp_path / "sitecustomize.py").write_text(CHAINED)
    start, words = ROOT / "python/dmi/torch/start", [python]
    env = dict(env, PYTHONPATH=f"{ROOT / 'python'}:{tmp_path}")
    if how == "environment":
        env |= {"PYTHONPATH": f"{start}:{env['PYTHONPATH']}", "DMI_ATTACH": "resid_pre,final_logits", "DMI_ATTACH_LAYERS": "last"}
    else:
        words += ["-m", "dmi.torch.attach", "--sites", "resid_pre,final_logits", "--layers", "last"]
    result = harness.run([*words, HERE / "attach_program.py", tmp_path / "saved"], env=env, timeout=1800)
    check(result.stdout == SCRIPT, "each model is attached at its first forward, or when it is compiled", result.stdout)
    check("BertModel is not attached" in result.stderr, "one of no family is named", result.stderr)


@pytest.mark.long
def test_first_capture_as_written(check, torch, tmp_path):
    """The code of docs/first-capture.md prints what stands there; of a text that follows code, all of it."""
    page = (ROOT / "docs" / "first-capture.md").read_text()
    section = page.partition("## Hugging Face and other PyTorch models\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```(python|text)\n(.*?)```", section, re.S)
    code, printed = ("".join(text for kind, text in blocks if kind == wanted) for wanted in ("python", "text"))
    (tmp_path / "page.py").write_text(torch_env.PREAMBLE + code)
    result = run(torch, tmp_path / "page.py")
    # Without the library attach() changes nothing, and still says what it would tap.
    check(printed and result.stdout == printed, "docs/first-capture.md: the program prints what the page says", result.stdout)


READ = torch_env.PREAMBLE + """
import sys, torch, dmi
with dmi.open(sys.argv[1]) as run:
    for tensor in run.values():
        found = tensor.torch()
        same = found.contiguous().view(torch.uint8).numpy().tobytes() == bytes(tensor.bytes())
        print(tensor.dtype, str(found.dtype)[6:], tuple(found.shape) == tensor.shape, same)
"""


@pytest.mark.long
def test_a_run_as_tensors(check, torch, tmp_path):
    """dmi.open() in a Python that has PyTorch: the types and bits that were captured, bf16 among them."""
    python, env = torch
    harness.run([harness.BUILD / "tests" / "unit" / "make_run", tmp_path / "run"])
    env = dict(env, PYTHONPATH=str(ROOT / "python"), DMI_READ_LIBRARY=str(harness.BUILD / "read" / "libdmi_read.so.1"))
    told = set(harness.run([python, "-c", READ, tmp_path / "run"], env=env).stdout.splitlines())
    check(told == {"f32 float32 True True", "bf16 bfloat16 True True", "i32 int32 True True"}, "each type is PyTorch's own, with its bits", told)
