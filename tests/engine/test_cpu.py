# SPDX-License-Identifier: Apache-2.0
"""Models on the CPU, captured and edited in processes that have no driver: every family has what forward hooks see, in bits; edits leave what the same arithmetic
in hooks leaves."""
import json

import numpy as np
import pytest

import harness
import torch_env
from adapter_runs import HERE, MARKS
from harness import BUILD, DMI_DUMP, DMI_RUN, ROOT
from test_attach import FAMILIES, check_all
from test_torch_edits import PLACES

pytestmark = MARKS
HEAD = 8  # elements, in attach_models.py
DMI_TRACE = BUILD / "tools" / "dmi-trace"
TOLERANCE = 2e-5  # as of attach_client.py: where operations are fused
SAID = "dmi: the model's tensors are on the CPU: taps read them there (kernels and graphs are what a GPU adds)"


def environment(*paths):
    """Without a driver, and without one in the library path."""
    python, env = torch_env.python_with_torch()
    return python, dict(env, PYTHONPATH=":".join(map(str, [ROOT / "python", HERE, *paths])))


def tensors(path):
    """{key: (dtype, shape, bytes)} of a file of safetensors, of any dtype."""
    import safetensors  # pylint: disable=import-outside-toplevel
    return {name: (told["dtype"], told["shape"], bytes(told["data"])) for name, told in safetensors.deserialize(path.read_bytes())}


def captured(check, folder, runs="RUN"):
    """{key: (dtype, shape, bytes)} of all runs, each of which is complete and accounted for; a run a process."""
    found = {}
    for number, run in enumerate(harness.runs_of(folder / runs)):
        harness.run([DMI_DUMP, "verify", run])
        counters = harness.Counters(run)
        check(counters.state == counters.CLOSED and all(counters.captured[i] == expected for i, expected in enumerate(counters.expected)) and
              sum(counters.launches), "all that was tapped is captured", (counters.expected, counters.dropped))
        harness.run([DMI_DUMP, "export", "--format", "safetensors", run, "-o", folder / f"{number}.st"])
        found |= tensors(folder / f"{number}.st")
    return found


def capture(check, folder, what, families):
    python, env = environment()
    command = [DMI_RUN, "--preset", "all", "--out", folder / "RUN", "--", python, HERE / "cpu_client.py", folder, what, *families]
    done = harness.run(command, env=env, timeout=1800)
    check("False" not in done.stdout, "the models compute what they compute without taps", done.stdout)
    lines = said(done) if what != "eager" else [line for line in done.stderr.splitlines() if not line.startswith(("dmi: armed: ", "[transformers] "))]
    check(lines == [SAID], "one line says where the tensors are, and nothing else is said", done.stderr)
    check(len(harness.runs_of(folder / "RUN")) == 1 + len(families), "each process has a run of its own, the first one, too", done.stderr)
    return captured(check, folder)


def is_same(found, wanted):
    """In bits; of partial rotation the rotated part."""
    if found is None or found[0] != wanted[0] or len(found[2]) == len(wanted[2]):
        return found == wanted
    rows, width = wanted[1]
    ours = np.frombuffer(found[2], np.uint8).reshape(rows, -1, HEAD * len(wanted[2]) // (rows * width))
    theirs = np.frombuffer(wanted[2], np.uint8).reshape(rows, ours.shape[1], -1)
    return np.array_equal(ours[:, :, :theirs.shape[2]], theirs)


@pytest.mark.parametrize("families", [("llama",), pytest.param(FAMILIES, marks=pytest.mark.long)], ids=["llama", "families"])
def test_as_forward_hooks(check, tmp_path, families):
    """In bits, in three types; what a batch leaves is its own, though the next one comes at once."""
    found = capture(check, tmp_path, "eager", families)
    wanted = {f"{path.stem}/{key}": value for path in tmp_path.glob("*.safetensors") for key, value in tensors(path).items()}
    check(len(wanted) >= 100 * len(families), "there is something to compare", len(wanted))
    differs = sorted(key for key, value in wanted.items() if not is_same(found.get(key.replace(".None", "")), value))
    check(not differs, "each tap has the bits that hooks see", differs[:8])


@pytest.mark.long
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(check, tmp_path, backend):
    """Taps in code that the compiler builds for the CPU: what hooks see eagerly, in bits where no operations are fused."""
    found = capture(check, tmp_path, backend, ("llama",))
    wanted = {f"{path.stem}/{key}": value for path in tmp_path.glob("*.safetensors") for key, value in tensors(path).items()}
    apart = {}
    for key, value in wanted.items():
        ours, theirs = found.get(key.replace(".None", "")), value
        if not is_same(ours, theirs) and (backend == "aot_eager" or ours is None or ours[:2] != theirs[:2] or
                                          not np.allclose(np.frombuffer(ours[2], np.float32), np.frombuffer(theirs[2], np.float32), rtol=TOLERANCE, atol=TOLERANCE)):
            apart[key] = ours and ours[:2]
    check(len(wanted) > 40 and not apart, f"each of {len(wanted)} taps has the values that hooks see", list(apart.items())[:8])


@pytest.mark.long
def test_kinds(check, tmp_path):
    """Strides, types, modes of autograd, threads, processes, recomputation: what was tapped is what was there, and edits write there. A trace has the times of the host."""
    python, env = environment()
    command = [DMI_RUN, "--trace=steps", "--tap", "resid_pre", "--write", "resid_post", "--out", tmp_path / "RUN", "--", python, HERE / "cpu_kinds_client.py", tmp_path]
    done = harness.run(command, env=env, timeout=600)
    check_all(check, done)
    check(done.stdout.count("true") > 12, "it compared", done.stdout)
    check(sum("tensors are on meta: nothing is captured there" in line for line in said(done)) == 1, "another device is named, once", done.stderr)
    check(sum(line.endswith("; no device was seen") for line in said(done)) == 3 and "the device is idle" not in done.stderr, "nor is a device", done.stderr)
    steps = harness.run([DMI_TRACE, "steps", harness.runs_of(tmp_path / "RUN")[0]]).stdout
    check("device none was seen: times are those of the host\n" in steps and "idle" not in steps, "dmi-trace says so", steps)
    found, wanted = captured(check, tmp_path), tensors(tmp_path / "expected.safetensors")
    differs = sorted(key for key, value in wanted.items() if found.get(key) != value)
    check(len(wanted) > 70 and not differs, "each tap has what was there", differs)


def said(done):
    """What DMI says, but that it is armed and that an edit has come or gone."""
    return [line for line in done.stderr.splitlines() if line.startswith("dmi") and not line.startswith(("dmi: armed: ", "dmi: changed: "))]


def edited(check, folder, client, *words, write=PLACES):
    """A client of the tests of edits, whose tensors stay where they are."""
    python, env = environment()
    command = [DMI_RUN, "--tap", "none", "--write", write, "--out", folder / "RUN", "--", python, HERE / client, *words]
    done = harness.run(command, env=dict(env, TORCHINDUCTOR_CACHE_DIR=str(ROOT / "build/cache/inductor"), TORCHINDUCTOR_FX_GRAPH_CACHE="0"), timeout=900)
    check_all(check, done)
    return done


@pytest.mark.long
def test_edits(check, tmp_path):
    """dmi.edit() leaves what hooks leave, in bits; other requests, and all without edits, keep theirs. Then one command, for a program that knows nothing of places."""
    done = edited(check, tmp_path, "edits_client.py", tmp_path, "cpu")
    check(done.stdout.count("true") > 100, "it compared", done.stdout.count("true"))
    (tmp_path / "sitecustomize.py").write_text(torch_env.PREAMBLE)
    python, env = environment(tmp_path)
    told, vector = json.loads((tmp_path / "said.json").read_text()), tmp_path / "vector-32.npy"
    command = [DMI_RUN, "--steer", vector, "--times", "2", "--layers", "1", "--out", tmp_path / "RUN", "--", python, ROOT / "examples/edits/hugging_face.py", tmp_path / "model",
               vector, told["prompt"], "--times", "3", "--layers", "1-2", "--tokens", "12"]
    ended = harness.run(command, env=env, timeout=600)
    check(ended.stdout == f"without: {told['said'][1]}\nwith: {told['said'][2]}\n", "it says what the same arithmetic in hooks says", (ended.stdout, told))
    check(said(ended) == [SAID, "dmi.edit: vector-32 at resid_post: 36 rows written of 36 due", 'dmi: edit "steer-0" at resid_post: 36 rows written of 36 due'],
          "the block, and the library at the end, say what was written", ended.stderr)


@pytest.mark.parametrize("what, backend", [("module", "aot_eager"), *(pytest.param(*case, marks=pytest.mark.long) for case in (("module", "inductor"), ("llama", "aot_eager"), ("llama", "inductor")))])
def test_compiled_edits(check, tmp_path, what, backend):
    """edit(), and places of attach(), in code that the compiler builds for the CPU."""
    done = edited(check, tmp_path, "compiled_client.py", what, backend, tmp_path, "cpu", write=PLACES if what == "llama" else "resid_post")
    check(done.stdout.count("true") > 8, "it compared", done.stdout)


def test_steer(check, tmp_path):
    """One command, for a program that knows nothing of DMI: each row is written, in each model that it names."""
    np.save(tmp_path / "v.npy", np.ones(32, np.float32))
    python, env = environment()
    command = [DMI_RUN, "--steer", tmp_path / "v.npy", "--layers", "1", "--model", "main", "--model", "judge", "--out", tmp_path / "RUN", "--", python, HERE / "several_models.py", tmp_path]
    done = harness.run(command, env=env)
    rows = json.loads(done.stdout)
    n = rows["main"] + rows["judge"]
    last = f'dmi: edit "steer-0" at resid_post: {n} rows written of {n} due, in LlamaForCausalLM main, LlamaForCausalLM judge'
    check(said(done)[-2:] == [SAID, last] and n > 2, "the lines", done.stderr)
