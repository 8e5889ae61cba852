# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's in unmodified PyTorch, on the stand-in driver: with the library absent, idle, capturing, tracing, editing.

torch_models_client.py has the programs: eager, in graphs by hand, compiled, in threads, on side streams, on a second device. What they compute is compared bit by
bit with what they compute without the library; what is captured, with what forward hooks see; what an edit makes, with hooks that do the same. The short form has
three programs without the library, and once with all of it at once. Real PyTorch, on the stand-in: order of sums, timing and machine code are not a GPU's.
"""
import functools
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

import harness
import torch_cuda_env
from harness import DMI_RUN, PRELOAD, ROOT
from serve.dtypes import from_bf16
from test_attach import check_all
from test_cpu import captured, environment, tensors
from test_torch_cuda import ALLOCATORS

pytestmark = pytest.mark.built(PRELOAD, DMI_RUN, harness.STANDIN / "libcuda.so.1", torch_cuda_env.RUNTIME / "libcudart.so.13")
HERE = ROOT / "tests" / "engine"
WORK = harness.BUILD / "tests" / "engine" / "torch_models"
SHORT = ("eager", "graph", "compiled")
LONG = ("half", "second_device", "pools", "compiled_default", "threads", "side_stream", "checkpoints", "half_gradients", "graph_of_gradients", "qwen3", "gemma3", "gpt_oss", "generate",
        "generate_sampled", "generate_static", "generate_compiled", "generate_batch", "generate_batch_graphs", "profiled")
# What runs where there is no driver, too.
CPU = ("eager", "half", "checkpoints", "qwen3", "gemma3", "gpt_oss", "generate", "generate_sampled", "generate_static", "generate_batch")
COMPILED = ("compiled", "compiled_default", "generate_compiled")
# What compiled code may be off, in parts of a tensor's largest value: it adds in another order.
ROUNDING = 2e-6
EDITS = """editspec: 1
vectors: {{v: {{file: vector.safetensors}}}}
edits:
  - {{name: steer, site: resid_post, layers: '0', do: [{{add: v, times: 2.5}}], requests: '{requests}'}}
"""
# {column: options of dmi-run}, without WORK's files; None: without the library.
OFF, ON = ("--write", "resid_post", "--edits", "off.yaml", "--lenient"), ("--write", "resid_post", "--edits", "on.yaml")
COLUMNS = {"hooks": None, "written": None, "idle": (), "captured": ("--attach", "all"), "off": OFF, "traced": ("--trace=full",),
           "edited": ON, "everything": ("--attach", "all", *OFF, "--trace=full")}


def command_of(column, folder):
    """dmi-run with the column's options, or nothing."""
    options = COLUMNS[column]
    if not options:
        return []
    return [DMI_RUN, *(folder / word if word.endswith(".yaml") else word for word in options), "--out", folder / "RUN", "--"]


@functools.cache
def ran(column, programs, allocator="caching"):
    """(folder, what was said) of the programs in the column, with that allocator; "cpu": without a driver in the process."""
    python, env = torch_cuda_env.python_with_cuda() if allocator != "cpu" else environment()
    folder = WORK / "-".join([column, allocator, *programs[:2], str(len(programs))])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file({"v": np.linspace(-1, 1, 32, dtype=np.float32)}, folder / "vector.safetensors")
    for name, requests in (("off", "never"), ("on", "*-b")):
        (folder / f"{name}.yaml").write_text(EDITS.format(requests=requests))
    env = dict(env, **ALLOCATORS.get(allocator, {}), PYTHONPATH=f"{ROOT / 'python'}:{HERE}", DMI_STANDIN_DEVICES="2", DMI_CUPTI=str(harness.STANDIN / "cupti" / "libcupti.so.13"))
    if column == "idle":
        env |= {"LD_PRELOAD": str(PRELOAD), "DMI_OUT": str(folder / "RUN")}
    kind = column if column in ("hooks", "written") else "plain"
    return folder, harness.run([*command_of(column, folder), python, HERE / "torch_models_client.py", folder, kind, "cpu" if allocator == "cpu" else "cuda", *programs], env=env, timeout=3600, check=False)


def check_outputs(check, column, folder, programs, plain):
    """Each program computes the bits that it computes without the library, in the folder @plain."""
    for name in programs:
        wanted, found = (tensors(where / f"{name}.safetensors") for where in (plain, folder))
        differs = sorted(key for key in wanted if found.get(key) != wanted[key])
        check(len(wanted) > 1 and found.keys() == wanted.keys() and not differs, f"{column}: {name} computes the same bits", differs)


def values(tensor):
    """(dtype, shape, bytes) as float64."""
    dtype, sizes, data = tensor
    if dtype == "BF16":
        return from_bf16(np.frombuffer(data, np.uint16)).astype(np.float64).reshape(sizes)
    return np.frombuffer(data, {"F32": np.float32, "I64": np.int64}[dtype]).astype(np.float64).reshape(sizes)


def off_by(found, wanted):
    """How far values are apart, in parts of the largest one."""
    if found is None or found.shape != wanted.shape:
        return float("inf")
    return float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))


def check_captured(check, column, folder, programs, allocator="caching"):
    """Each tap of each forward has the bits that hooks see: within rounding where the forward is compiled."""
    plain, _ = ran("hooks", programs, allocator)
    found = captured(check, folder)
    for name in programs:
        if not (plain / f"{name}.sites.safetensors").exists():
            continue
        wanted = tensors(plain / f"{name}.sites.safetensors")
        check(len(wanted) > 60, f"{name}: there is something to compare", len(wanted))
        if name in COMPILED or (allocator, name) == ("cpu", "generate_batch"):  # a CPU's products of another number of rows add in another order
            far = {key: off_by(found.get(key) and values(found[key]), values(x)) for key, x in wanted.items() if x[0] == "F32"}
            worst = max(far, key=far.get)
            check(far[worst] < ROUNDING, f"{column}: {name}: each tap has the values that hooks see eagerly", (worst, far[worst]))
        else:
            differs = sorted(key for key, value in wanted.items() if found.get(key) != value)
            check(not differs, f"{column}: {name}: each tap has the bits that hooks see", differs[:5])


def check_traced(check, column, folder, programs):
    """Each process leaves a whole trace: each step has a time on the device, and launches."""
    runs = harness.runs_of(folder / "RUN")
    check(len(runs) == len(programs), f"{column}: each process has a run", len(runs))
    # Graphs of these warm up before the first step, which is a forward of nobody's where there are taps.
    strangers = sum(name in ("generate_batch_graphs", "deleted_under_way") for name in programs if column == "everything")
    for run in runs:
        told = json.loads(harness.run([harness.BUILD / "tools" / "dmi-trace", "steps", "--json", run]).stdout)
        of_nobody = sum(group["steps"] - group["timed"] for group in told["groups"] if group["phase"] == "-")
        strangers -= of_nobody
        check(told["n_steps"] >= 2 and told["timed"] + of_nobody == told["n_steps"] and not told["lost"], f"{column}: each step has a time on the device", told)
        check(all(group["launches"] + group["graph_launches"] > 0 for group in told["groups"]), f"{column}: each step has launches", told["groups"])
    check(not strangers, f"{column}: all steps are the program's", strangers)


def check_edited(check, programs, allocator="caching"):
    """Requests that the edit wants are as hooks make them, others as they are without it, in bits."""
    (plain, _), (written, _), (edited, done) = (ran(column, programs, allocator) for column in ("hooks", "written", "edited"))
    for name in programs:
        before, wanted, found = ({key: values(x) for key, x in tensors(folder / f"{name}.safetensors").items() if not key.startswith("tokens")} for folder in (plain, written, edited))
        for key in before:
            if key.startswith("gradient"):  # of both requests
                check(np.array_equal(found[key], wanted[key]), f"edited: {name}: {key} is as the hook makes it", off_by(found[key], wanted[key]))
                continue
            check(np.array_equal(found[key][0], before[key][0]), f"edited: {name}: {key} of the other request keeps its bits")
            check(off_by(wanted[key][1], before[key][1]) > 1e-3, f"edited: {name}: {key}: the hook does something")
            far = off_by(found[key][1], wanted[key][1])
            check(far < ROUNDING if name in COMPILED else far == 0, f"edited: {name}: {key} is as the hook makes it", far)
    return done


def judge(check, column, programs, allocator="caching"):
    folder, done = ran(column, programs, allocator)
    check_all(check, done)
    check(not done.returncode, f"{column}: it ends well", (done.returncode, done.stderr[-2000:]))
    if column not in ("written", "edited"):
        check_outputs(check, column, folder, programs, ran("hooks", programs, allocator)[0])
    if column in ("captured", "everything"):
        check_captured(check, column, folder, programs, allocator)
    if column in ("traced", "everything"):
        check_traced(check, column, folder, programs)
    if column == "edited":
        check_edited(check, programs, allocator)


@pytest.mark.parametrize("column", ["hooks", "everything", *(pytest.param(column, marks=pytest.mark.long) for column in COLUMNS if column not in ("hooks", "everything"))])
def test_three_ways(check, column):
    judge(check, column, SHORT)


@pytest.mark.long
@pytest.mark.parametrize("column", COLUMNS)
def test_other_ways(check, column):
    judge(check, column, LONG)


@pytest.mark.long
@pytest.mark.parametrize("column", COLUMNS)
def test_a_graph_is_deleted_under_way(check, column):
    judge(check, column, ("deleted_under_way",))


@pytest.mark.long
@pytest.mark.parametrize("column", ["hooks", "written", "idle", "captured", "off", "edited"])
def test_on_the_cpu(check, column):
    judge(check, column, CPU, "cpu")


@pytest.mark.long
@pytest.mark.parametrize("column", [column for column in COLUMNS if column != "everything"])
@pytest.mark.parametrize("allocator", [name for name in ALLOCATORS if name != "caching"])
def test_allocators(check, allocator, column):
    """Without a cache PyTorch calls cudaMalloc() in a capture, which ends it. The driver's pools in a graph are the next test."""
    judge(check, column, ("eager",) if allocator in ("not_caching", "driver_pools") else ("eager", "graph"), allocator)


@pytest.mark.long
@pytest.mark.parametrize("column", ["hooks", "idle", "captured", "off", "traced", "edited"])
def test_graphs_with_memory_nodes(check, column):
    """The driver's pools in a graph are memory nodes: DMI leaves the graph alone, by name, so an edit in force changes nothing."""
    programs, allocator = ("graph",), "driver_pools"
    folder, done = ran(column, programs, allocator)
    check_all(check, done)
    check(done.returncode == (column == "edited"), f"{column}: it ends well, or dmi-run says by its status that no row was edited", (done.returncode, done.stderr[-2000:]))
    check_outputs(check, column, folder, programs, ran("hooks", programs, allocator)[0])
    if column == "traced":
        check_traced(check, column, folder, programs)
    if column in ("captured", "off", "edited"):
        check("holds a memory node" in done.stderr, "a line names the reason", done.stderr[-1000:])
    if column == "edited":
        check("no row was edited" in done.stderr and "18 unsupported" in done.stderr, "dmi-run says why", done.stderr[-1000:])
    if column == "captured":
        run, = harness.runs_of(folder / "RUN")
        reasons = {reason for site in harness.Counters(run).dropped for reason in site}
        check(reasons == {"unsupported"}, "what is dropped is dropped by its name", reasons)
        told = (run / "manifest.json").read_text()
        check("unsupported" in told and "bad_pointer" not in told, "the run gives no other reason", told[-1000:])
