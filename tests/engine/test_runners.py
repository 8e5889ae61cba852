# SPDX-License-Identifier: Apache-2.0
"""dmi.vllm, dmi.sglang: a serving engine's steps, by slot order, are captured as the right requests' rows.

model_runners.py stands for the engine: its forwards tap rows that say whose they are. With --long names and fields that the adapter
relies on are looked up in vLLM's own sources.
"""
import json
import re
import sys
from types import SimpleNamespace as Some

import numpy as np
import pytest

import harness
from adapter_runs import HERE, MARKS, SPEC, asking, cached_ids, start
from harness import PRELOAD, ROOT, STANDIN
from model_runners import CONFIG


def check_nobody(check, folder, run):
    captured = harness.Counters(harness.only_run(folder / "RUN")).captured
    check(sum(tally.rows for tally in captured) > 300 and not [request.id for request in run.requests if request.id.startswith("req")], "records are there, without request ids",
          ([*run], [request.id for request in run.requests]))


VLLM = {"vllm/__init__.py": "", "vllm/v1/__init__.py": "", "vllm/v1/worker/__init__.py": "", "vllm/v1/worker/gpu/__init__.py": "",
        "vllm/v1/worker/gpu_model_runner.py": "from model_runners import V1 as GPUModelRunner\n",
        "vllm/v1/worker/gpu/model_runner.py": "from model_runners import V2 as GPUModelRunner\n", "vllm/distributed/__init__.py": "",
        "vllm/distributed/parallel_state.py": """from types import SimpleNamespace as Group
def get_tp_group(): return Group(rank_in_group=1, world_size=2)
def get_pp_group(): return Group(rank_in_group=0, world_size=1)
def get_ep_group(): return Group(rank_in_group=3, world_size=4)
"""}
SGLANG = {"sglang/__init__.py": "", "sglang/srt/__init__.py": "", "sglang/srt/model_executor/__init__.py": "",
          "sglang/srt/model_executor/forward_batch_info.py": "from model_runners import ForwardBatch\n",
          "sglang/srt/model_executor/model_runner.py":
              "from sglang.srt.model_executor import forward_batch_info\nfrom model_runners import SGLang as ModelRunner\n",
          "sglang/srt/runtime_context.py": """from types import SimpleNamespace
def get_parallel(): return SimpleNamespace(tp_rank=1, tp_size=2, pp_rank=0, pp_size=1, dp_rank=None, dp_size=1, moe_ep_rank=0, moe_ep_size=1)
"""}
OF_SGLANG = {"files": SGLANG, "package": "sglang", "version": "0.5.23"}
pytestmark = MARKS


def serve(folder, *words, spec=SPEC, version="0.33.0", files=VLLM, package="vllm"):
    """(what the client printed, what it said on stderr) of a run in folder/RUN"""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    env = harness.environment(PYTHONPATH=f"{ROOT / 'python'}:{HERE}:{folder}", LD_LIBRARY_PATH=STANDIN)
    done = start(folder, [sys.executable, HERE / "runners_client.py", *words], spec, env, timeout=300)
    return json.loads(done.stdout), done.stderr


def opened(folder):
    import dmi
    return dmi.open(folder / "RUN")


def check_rows(check, run, told):
    """Each row is its request's, at its position; none is missing."""
    for name, about in told["requests"].items():
        positions = list(range(about["first"], about["n"]))
        for layer in range(2):
            tensor = run[f"{name}/resid_pre.{layer}"]
            values = tensor.numpy()
            check(tensor.positions == positions, f"{name}, layer {layer}: positions", (tensor.positions, positions))
            check(values.shape == (len(positions), 4) and np.all(values[:, 0] == about["number"]) and values[:, 1].tolist() == positions,
                  f"{name}, layer {layer}: rows", values[:, :2].tolist())
        logits = run[f"{name}/final_logits"]
        values = logits.numpy()
        check(np.all(values[:, 0] == about["number"]) and values[:, 1].tolist() == logits.positions, f"{name}: logits", values[:, :2].tolist())
        check(set(range(about["n_prompt"] - 1, about["n"])) <= set(logits.positions), f"{name}: each token that was sampled has some", logits.positions)


def check_requests(check, run, told, state="finished"):
    requests = {request.id: request for request in run.requests}
    check(set(requests) == set(told["requests"]), "each request is there under its client's id", set(requests) ^ set(told["requests"]))
    for name, about in told["requests"].items():
        request = requests[name]
        check((request.n_prompt, request.n_cached, request.state) == (about["n_prompt"], about["cached"], state), f"{name}: prompt, cache, end",
              request)
    want = {name: [1000 * about["number"] + i for i in range(about["cached"])] for name, about in told["requests"].items() if about["cached"]}
    check(cached_ids(run) == want, "cached tokens are said by their ids", cached_ids(run))
    check((json.loads(run.about("config")), run.about("tokenizer")) == (CONFIG, "name/model"), "the model's config and its tokenizer", run.about("config"))
    nobody = [tensor.key for tensor in run.values() if tensor.site.name in ("drafted",) and tensor.request]
    check(not nobody, "a draft model's rows are nobody's", nobody)


def test_what_a_prefix_cache_is_keyed_by(check):
    """Requests with another adapter or another image have other rows of the same tokens."""
    from dmi import adapters, vllm
    plain = Some(prompt_token_ids=[1, 2, 3], prompt_embeds=None, num_computed_tokens=2, lora_request=None, mm_features=[], prefill_token_ids=None)
    check((vllm._cache_key(plain), vllm._cached_ids(plain)) == ({}, [1, 2]), "tokens alone", vllm._cache_key(plain))
    tuned = Some(**{**vars(plain), "lora_request": Some(lora_name="l", lora_path="/l"), "mm_features": [Some(identifier="i", mm_position=Some(offset=1))]})
    check(vllm._cache_key(tuned) == {"lora": ["l", "/l"], "inputs": [["i", 1]]}, "an adapter, and an image", vllm._cache_key(tuned))
    for name, more in {"embeddings": {"prompt_token_ids": None}, "embeddings among tokens": {"prompt_is_token_ids": [True, False, True]},
                       "more than the prompt": {"num_computed_tokens": 4}}.items():
        check(vllm._cached_ids(Some(**{**vars(plain), **more})) is None, f"{name}: no ids", more)
    resumed = Some(**{**vars(plain), "num_computed_tokens": 4, "prefill_token_ids": [1, 2, 3, 4, 5]})
    check(vllm._cached_ids(resumed) == [1, 2, 3, 4], "generated tokens that came back", vllm._cached_ids(resumed))
    check(json.loads(adapters.marks('{"n": 1}', {"lora": None}, True)) == {"n": 1, "dmi.cache": {"lora": None}, "dmi.attention": "bidirectional"},
          "as tags beside the user's", adapters.marks('{"n": 1}', {"lora": None}, True))
    check(adapters.marks(None) is None and vllm._sees_later(Some(hf_config=Some(is_causal=False))) and not vllm._sees_later(Some(hf_config=Some())),
          "what sees later tokens says so", None)


@pytest.mark.parametrize("options", [(), ("speculate",), ("speculate", "later")], ids=["plain", "speculate", "later"])
@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_vllm(check, tmp_path, kind, options):
    told, said = serve(tmp_path, kind, "5", "plugin", *options)
    check(told["preempted"] > 0 and (told["rejected"] > 0) == bool(options), "requests are preempted, drafts rejected", told)
    check("dmi.vllm" not in said, "the adapter complains of nothing", said)
    with opened(tmp_path) as run:
        check_rows(check, run, told)
        check_requests(check, run, told)
    counters = harness.Counters(harness.only_run(tmp_path / "RUN"))
    check(counters.steps == told["steps"] and counters.steps_refused == 0, "each step is taken, none refused", (counters.steps, counters.steps_refused))


def test_collected_from_the_engines_process(check, tmp_path):
    """The process that asks for tokens computes nothing, and has what the engine's process computed once its block ends."""
    told, _ = serve(tmp_path, "collect", "v1", "5", "plugin", "speculate", "later")
    check(set(told["collected"]) == set(told["requests"]), "each request, under its client's id", set(told["collected"]) ^ set(told["requests"]))
    for name, about in told["requests"].items():
        wanted = list(range(about["first"], about["n"]))
        for layer, (positions, rows) in told["collected"].get(name, {}).items():
            check(positions == wanted and [row[:2] for row in rows] == [[about["number"], p] for p in wanted], f"{name}, layer {layer}: rows", (positions, wanted))
        check(list(told["collected"].get(name, ())) == ["0", "1"], f"{name}: layers", told["collected"].get(name))


@pytest.mark.parametrize("tag", ["capture=*", "vllm_request_id=req5-*"])
def test_capture_on_request(check, tmp_path, tag):
    told, _ = serve(tmp_path, "v2", "5", "plugin", spec=asking(tag))
    wanted = {name for name, about in told["requests"].items() if about["fields"]} if "capture" in tag else {"req5"}
    with opened(tmp_path) as run:
        check({tensor.request for tensor in run.values()} == wanted, "those that a client asked for, and nothing else", [*run])


def test_sglang(check, tmp_path):
    told, said = serve(tmp_path, "sglang", "5", "plugin", **OF_SGLANG)
    check(told["preempted"] > 0 and "dmi.sglang" not in said, "requests are preempted; the adapter complains of nothing", said)
    with opened(tmp_path) as run:
        check_rows(check, run, told)
        check_requests(check, run, told, state="running")


def test_sglang_on_request(check, tmp_path):
    told, _ = serve(tmp_path, "sglang", "5", "plugin", spec=asking("capture=*"), **OF_SGLANG)
    with opened(tmp_path) as run:
        check({tensor.request for tensor in run.values()} == {name for name, about in told["requests"].items() if about["fields"]},
              "those that a client asked for, and nothing else", [*run])


def test_sglang_refused_by_name(check, tmp_path):
    _, said = serve(tmp_path, "sglang", "5", "plugin", "speculates", **OF_SGLANG)
    check(said.count("dmi.sglang: ") == 1 and "speculative decoding" in said, "one line says what is not supported", said)
    with opened(tmp_path) as run:
        check_nobody(check, tmp_path, run)


@pytest.mark.parametrize("kind", ["v1", "v2"])
@pytest.mark.parametrize("option, word", [("async", "asynchronous scheduling with speculative decoding"), ("ubatching", "ubatching"),
                                          ("context", "context parallelism")])
def test_refused_by_name(check, tmp_path, kind, option, word):
    _, said = serve(tmp_path, kind, "5", "plugin", option, *(["speculate"] if option == "async" else []))
    check(said.count("dmi.vllm: ") == 1 and word in said, "one line says what is not supported", said)
    with opened(tmp_path) as run:
        check_nobody(check, tmp_path, run)


ANOTHER = {"v1": {"version": "0.99.1"}, "v2": {"version": "0.99.1"}, "sglang": OF_SGLANG | {"version": "0.6.0"}}


@pytest.mark.parametrize("kind", ANOTHER)
def test_a_version_that_nobody_tried(check, tmp_path, kind):
    """Its first steps are nobody's. Three that agree give the others ids; each row that has one is that request's."""
    told, said = serve(tmp_path, kind, "5", "plugin", **ANOTHER[kind])
    check(len(re.findall("dmi.(?:vllm|sglang): ", said)) == 1 and "is not known: 3 steps agree" in said, "one line", said)
    n_rows = {"known": 0, "of nobody": 0}
    with opened(tmp_path) as run:
        for tensor in run.values():
            if tensor.site.name != "resid_pre" or not tensor.request:
                n_rows["of nobody"] += tensor.site.name == "resid_pre" and len(tensor)
                continue
            about, values = told["requests"][tensor.request], tensor.numpy()
            check(np.all(values[:, 0] == about["number"]) and values[:, 1].tolist() == tensor.positions, f"{tensor.key}: rows", values[:, :2].tolist())
            check(np.all(values[:, 3] >= 3), f"{tensor.key}: not before three steps", values[:, 3].tolist())
            n_rows["known"] += len(tensor)
    check(n_rows["known"] > 100, "records have ids after the trial", n_rows)
    counters = harness.Counters(harness.only_run(tmp_path / "RUN"))
    check((counters.steps, counters.steps_refused) == (told["steps"], 0), "each step is taken", (counters.steps, told["steps"]))


@pytest.mark.parametrize("kind", ANOTHER)
def test_a_version_that_disagrees(check, tmp_path, kind):
    """Tokens of two requests lie in each other's place."""
    told, said = serve(tmp_path, kind, "5", "plugin", "swaps", **ANOTHER[kind])
    check(len(re.findall("dmi.(?:vllm|sglang): ", said)) == 1 and "is not known, and tokens of request " in said, "one line", said)
    with opened(tmp_path) as run:
        check_nobody(check, tmp_path, run)
    counters = harness.Counters(harness.only_run(tmp_path / "RUN"))
    check(counters.steps >= told["steps"] and counters.steps_refused == 0, "its steps are counted all the same", (counters.steps, told["steps"]))


@pytest.mark.parametrize("kind, file, text, word", [
    ("v1", "vllm/v1/worker/gpu_model_runner.py", "from model_runners import V1\nclass GPUModelRunner(V1):\n    load_model = None\n", "load_model()"),
    ("v2", "vllm/v1/worker/gpu/model_runner.py", "from model_runners import V2\nclass GPUModelRunner(V2):\n"
     "    def execute_model(self, scheduler_output, dummy=False):\n        return V2.execute_model(self, scheduler_output, dummy_run=dummy)\n"
     "    def _dummy_run(self, n):\n        pass\n", "execute_model(dummy_run)"),
    ("sglang", "sglang/srt/model_executor/model_runner.py", "from model_runners import SGLang\nclass ModelRunner(SGLang):\n"
     "    def forward(self, batch):\n        return SGLang.forward(self, batch)\n", "forward(forward_batch)")])
def test_what_a_version_lacks_is_named(check, tmp_path, kind, file, text, word):
    given = ANOTHER[kind] | {"files": (SGLANG if kind == "sglang" else VLLM) | {file: text}}
    _, said = serve(tmp_path, kind, "5", "plugin", **given)
    check(len(re.findall("dmi.(?:vllm|sglang): ", said)) == 1 and f"has no {word}" in said, "one line", said)
    with opened(tmp_path) as run:
        check_nobody(check, tmp_path, run)


LLAMA = """#include <stdint.h>
#include <stddef.h>
/* llama.h of llama.cpp, as far as the example sees it */
typedef int32_t llama_token, llama_pos, llama_seq_id;
struct llama_context;
typedef struct llama_batch {
    int32_t n_tokens;
    llama_token *token;
    float *embd;
    llama_pos *pos;
    int32_t *n_seq_id;
    llama_seq_id **seq_id;
    int8_t *logits;
} llama_batch;
int32_t llama_decode(struct llama_context *ctx, struct llama_batch batch);
"""
PROGRAM = """
#include <stdio.h>

int32_t llama_decode(struct llama_context *ctx, struct llama_batch batch)
{
    (void)ctx;
    return batch.n_tokens;
}

int main(void)
{
    static const char *const names[] = { "france", "spain" };
    llama_seq_id first = 0, second = 1, *of[] = { &first, &first, &first, &second, &second };
    llama_pos at[] = { 4, 5, 6, 0, 1 };
    struct llama_batch batch = { .n_tokens = 5, .pos = at, .seq_id = of };
    printf("%d\\n", decode(NULL, batch, names));
    batch.n_tokens = 4;
    batch.pos = (llama_pos[]){ 7, 9, 2, 3 };
    batch.seq_id = (llama_seq_id *[]){ &first, &first, &second, &second };
    printf("%d\\n", decode(NULL, batch, names));
}
"""
STEPS = """#include <dmi/dmi.h>
#include <stdio.h>
__attribute__((visibility("default"))) int dmi_step_begin(const struct dmi_step *step)
{
    printf("step %d of %u rows:", (int)step->step, step->n_rows);
    for (uint32_t i = 0; i < step->n_spans; i++)
        printf(" %s %d+%u at %u", step->spans[i].request_id, (int)step->spans[i].first_position, step->spans[i].n_tokens, step->spans[i].first_row);
    return !printf("\\n");
}
__attribute__((visibility("default"))) int dmi_step_end(void)
{
    return !printf("end\\n");
}
"""


def example():
    """The C code of docs/adapters.md."""
    return re.search(r"```c\n(.*?)```", (ROOT / "docs" / "adapters.md").read_text(), re.S)[1]


def test_llama_cpp_as_written(check, tmp_path):
    """The example of docs/adapters.md, in a program of its own: with a library that prints its steps, with DMI's, and with none."""
    for name, text in (("llama.h", LLAMA), ("program.c", example() + PROGRAM), ("steps.c", STEPS)):
        (tmp_path / name).write_text(text)
    flags = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "include", "-I", tmp_path]
    harness.run([*flags, tmp_path / "program.c", "-o", tmp_path / "program", "-ldl"])
    harness.run([*flags, "-shared", "-fPIC", tmp_path / "steps.c", "-o", tmp_path / "steps.so"])
    env = harness.environment()
    said = harness.run([tmp_path / "program"], env=dict(env, LD_PRELOAD=tmp_path / "steps.so")).stdout
    check(said.splitlines() == ["step 0 of 5 rows: france 4+3 at 0 spain 0+2 at 3", "end", "5",
                                "step 1 of 4 rows: france 7+1 at 0 france 9+1 at 1 spain 2+2 at 2", "end", "4"], "its steps", said)
    for library in ({}, {"LD_PRELOAD": PRELOAD}):
        check(harness.run([tmp_path / "program"], env=dict(env, **library)).stdout == "5\n4\n", "it decodes as ever", library)


def test_a_runner_of_another_name_is_named(check, tmp_path):
    """No class to wrap at all."""
    (tmp_path / "gone.py").write_text("class Runner: pass\n")
    program = "import dmi.vllm, gone; gone.__name__ = dmi.vllm.V1; dmi.vllm._change(dmi.vllm._V1_METHODS, gone)"
    said = harness.run([sys.executable, "-c", program], env=harness.environment(PYTHONPATH=f"{ROOT / 'python'}:{tmp_path}")).stderr
    check(said.count("dmi.vllm: ") == 1 and "has no execute_model()" in said, "one line", said)


def test_inert_without_the_library(check, tmp_path):
    """Engines load their plugins in every process: nothing is imported, nothing changed."""
    program = "import sys; import dmi.vllm, dmi.sglang; dmi.vllm.register(); dmi.sglang.register(); " \
        "print([name for name in sys.modules if name.startswith(('vllm', 'sglang'))], sys.meta_path)"
    env = harness.environment(PYTHONPATH=str(ROOT / "python"))
    said = harness.run([sys.executable, "-c", program], env=env).stdout
    check(said.startswith("[] ") and "dmi" not in said, "no trace", said)
