# SPDX-License-Identifier: Apache-2.0
"""What flows back into tapped tensors: NAME.grad has the bits that a hook of the tensor gets, for the rows and requests of its tensor, on the CPU and in
unmodified PyTorch's CUDA on the stand-in driver."""
import pytest

import harness
import torch_cuda_env
from adapter_runs import HERE, MARKS
from harness import DMI_RUN, ROOT
from test_attach import FAMILIES, check_all
from test_cpu import captured, environment, is_same, said, tensors

pytestmark = [pytest.mark.long, *MARKS]
CUDA = pytest.mark.built(harness.STANDIN / "libcuda.so.1", torch_cuda_env.RUNTIME / "libcudart.so.13")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
MODELS, BY_HAND = ["--tap", "*,*.grad"], ["--tap", "stream,stream.grad"]
TWICE = "dmi: site stream (DMI_TAP:4): layer 0 ran more than once in a step: each pass is a record, and tensors of requests hold the last one"
GRADIENTS_TWICE = TWICE.replace("stream (DMI_TAP:4)", "stream.grad (DMI_TAP:5)") + " that came; gradients come in reverse, so it is the first pass's"
REENTRANT = {f"dmi.torch: {name}.grad: a reentrant checkpoint computes its forward without a graph, so gradients inside are not tapped: use_reentrant=False"
             for name in ("resid_mid", "q", "k_rot")}
# {program: (options, what is said)}
PROGRAMS = {"types": (MODELS, set()), "of_models": (MODELS, set()), "second_order": (MODELS, set()), "reentrant": (MODELS, REENTRANT), "threads": (MODELS, set()),
            "edited": ([*MODELS, "--write", "resid_post"], {"dmi.edit: vector at resid_post: 12 rows written of 12 due"}), "collected": (MODELS, set()),
            "by_hand": (BY_HAND, {TWICE}), "passes": (BY_HAND, {TWICE, GRADIENTS_TWICE}), "graph": (MODELS, set())}


def run(folder, device, options, *programs):
    python, env = environment() if device == "cpu" else torch_cuda_env.python_with_cuda()
    env = dict(env, PYTHONPATH=f"{ROOT / 'python'}:{HERE}")
    return harness.run([DMI_RUN, *options, "--out", folder / "RUN", "--", python, HERE / "gradients_client.py", folder, device, *programs], env=env, timeout=1800)


def lines(done):
    return {line for line in said(done) if "tensors are on the CPU" not in line}


def compare(check, folder, done, *programs, unseen=()):
    """What hooks saw is in the runs of these processes, in bits, and there is no gradient besides, but of @unseen."""
    if "[" in done.stdout:
        check_all(check, done)
    found = {key: x for key, x in captured(check, folder).items() if ".grad" in key}
    wanted = {key: x for name in programs for key, x in tensors(folder / f"{name}.safetensors").items()}
    differs = sorted(key for key, x in wanted.items() if not is_same(found.get(key), x))
    check(wanted and not differs, f"each of {len(wanted)} gradients has the bits that hooks see", differs[:8])
    others = {key for key in set(found) - set(wanted) if not key.startswith(unseen)}
    check(not others, "and there are no others", sorted(others)[:8])


@pytest.mark.parametrize("device, program", [
    *(("cpu", name) for name in PROGRAMS if name != "graph"), *(pytest.param("cuda", name, marks=CUDA) for name in PROGRAMS if name != "second_order")])
def test_as_hooks(check, tmp_path, device, program):
    options, wanted = PROGRAMS[program]
    done = run(tmp_path, device, options, program)
    compare(check, tmp_path, done, program)
    check(lines(done) == wanted, "what is said", lines(done))


def test_families(check, tmp_path):
    """Every site of every family, but those of ids. The hooks do not see what a function of another name rotates."""
    done = run(tmp_path, "cpu", MODELS, *FAMILIES)
    compare(check, tmp_path, done, *FAMILIES, unseen=("deepseek_v3-float32-a/q_rot", "deepseek_v3-float32-b/q_rot", "deepseek_v3-float32-a/k_rot", "deepseek_v3-float32-b/k_rot"))


@pytest.mark.parametrize("device", DEVICES)
def test_drops(check, tmp_path, device):
    """A gradient that cannot be tapped is expected, and a drop with a reason."""
    done = run(tmp_path, device, BY_HAND, "dropped")
    counters = harness.Counters(harness.runs_of(tmp_path / "RUN")[0])
    check([(counters.expected[i].records, counters.captured[i].records, {reason: n.records for reason, n in counters.dropped[i].items()}) for i in range(2)] ==
          [(1, 1, {}), (1, 0, {"bad_expr": 1})], "one of two is captured", (counters.expected, counters.dropped))
    check(any("stream.grad" in line and "torch.sparse_coo cannot be tapped" in line for line in lines(done)), "a line says why", done.stderr)


def test_fork(check, tmp_path):
    """A child that goes on with its parent's forward: in its own run the gradient is of no request."""
    done = run(tmp_path, "cpu", BY_HAND, "forked")
    check_all(check, done)
    found, wanted = captured(check, tmp_path), tensors(tmp_path / "forked.safetensors")["parent/stream.grad.0"]
    check({key for key in found if ".grad" in key} == {"parent/stream.grad.0", "stream.grad.0"} and found["parent/stream.grad.0"] == found["stream.grad.0"] == wanted,
          "both have the values", sorted(found))


def test_compiled(check, tmp_path):
    """Code of the compiler's is refused, whichever backend; without a gradient to come it is not."""
    check_all(check, run(tmp_path, "cpu", MODELS, "compiled"))


def test_example(check, tmp_path):
    """examples/attribution_patching.py: the estimates are autograd's gradients times the difference, the patches are those of hooks, and their ranks go together."""
    program = tmp_path / "program.py"
    program.write_text("""import os, sys
sys.setdlopenflags(os.RTLD_LAZY)
import torch, attach_models as models, pretrained
class Tokens:
    def __call__(self, text, **_): return {"input_ids": [int(word) for word in text.split()]}
    def decode(self, ids): return str(int(ids[0]))
torch.set_num_threads(1)
model = models.model_of("llama")
pretrained.load = lambda name: (object.__new__(Tokens), model)
import attribution_patching as example
kept = {name: getattr(example, name) for name in ("estimated", "patched")}
done = {}
for name, call in kept.items():
    setattr(example, name, lambda *given, name=name, call=call: done.setdefault(name, call(*given)))
sys.argv[1:] = ["model", "3 10 17 24 31", "3 10 18 24 31"]
example.main()
(estimate, _, (right, wrong), before), truth = done["estimated"], done["patched"]
blocks = models.blocks_of(model)
def run(ids, hook=None, layer=0):
    handles = [blocks[layer].register_forward_hook(hook)] if hook else []
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    [handle.remove() for handle in handles]
    return logits[right] - logits[wrong]
stream = lambda out: out[0] if isinstance(out, tuple) else out
def seen(ids):
    kept = [None] * len(blocks)
    handles = [block.register_forward_hook(lambda _, given, out, i=i: kept.__setitem__(i, stream(out))) for i, block in enumerate(blocks)]
    ahead = run(ids)
    [handle.remove() for handle in handles]
    return kept, ahead
clean, corrupt = ([int(word) for word in text.split()] for text in sys.argv[2:])
after, _ = seen(clean)
here, ahead = seen(corrupt)
gradients = torch.autograd.grad(ahead, here)
for layer, gradient in enumerate(gradients):
    assert torch.equal((gradient * (after[layer] - here[layer]))[0].sum(-1).detach(), torch.from_numpy(estimate[layer])), layer
    for position in range(5):
        def patch(_, given, out):
            stream(out).data[0, position] = after[layer][0, position].detach()
        assert abs((run(corrupt, patch, layer) - ahead).item() - truth[layer, position]) < 1e-5, (layer, position)
print("same")
""")
    python, env = environment(ROOT / "examples")
    done = harness.run([DMI_RUN, "--attach", "resid_post,gradients", "--write", "resid_post", "--out", tmp_path / "RUN", "--", python, program], env=env)
    said_last = done.stdout.splitlines()[-2:]
    check(said_last[1] == "same" and said_last[0].startswith("rank correlation over 15 patches: ") and float(said_last[0].split()[-1]) > 0.7, "the example", done.stdout)


def test_command(check, tmp_path):
    """One command, for a program that knows nothing of DMI; without a backward pass the run says so, and with --attach a compiled program ends by that error."""
    program = tmp_path / "program.py"
    program.write_text("""import os, sys
sys.setdlopenflags(os.RTLD_LAZY)
import torch, attach_models as models
model, ids = models.model_of("llama"), models.prompt()
if sys.argv[1] == "backward":
    (model(ids).logits ** 2).mean().backward()
elif sys.argv[1] == "none":
    with torch.no_grad():
        model(ids)
else:
    torch.compile(model, backend="eager")(ids).logits.sum().backward()
""")
    python, env = environment()
    command = [DMI_RUN, "--attach", "residuals,topk_ids,gradients", "--layers", "1-2", "--out", tmp_path / "RUN", "--", python, program]
    harness.run([*command, "backward"], env=env)
    names = [f"resid_{one}{more}" for more in ("", ".grad") for one in ("pre", "mid", "final")]
    check(set(captured(check, tmp_path)) == {f"{name}.{layer}" for name in names for layer in (1, 2) if "final" not in name} | {"resid_final", "resid_final.grad"}, "a site for each", "")
    done = harness.run([*command[:-4], tmp_path / "NONE", "--", python, program, "none"], env=env)
    wanted = {f"no backward pass gave a gradient that is tapped as {name} in layers that it takes" for name in names if name.endswith(".grad")}
    check(all(any(one in line for line in lines(done)) for one in wanted), "the run says so", done.stderr)
    check(not any("topk_ids.grad" in line for line in lines(done)), "ids have none", done.stderr)
    failed = harness.run([*command[:-4], tmp_path / "COMPILED", "--", python, program, "compiled"], env=env, check=False)
    check(failed.returncode and "dmi: resid_pre.grad: gradients are not tapped in compiled code" in failed.stderr, "the program ends by the error", failed.stderr[-800:])
