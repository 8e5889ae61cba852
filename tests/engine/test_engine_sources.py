# SPDX-License-Identifier: Apache-2.0
"""What dmi.vllm and dmi.sglang rely on is in the sources of the versions that were tried.

Nothing of them is imported here.
"""
import ast
import pathlib

import pytest

import engine_env
import versions

# {file: {class: its methods with parameters that are used, its fields}}
NEEDED = {
    "vllm/v1/worker/gpu_model_runner.py": {"GPUModelRunner": ({
        "execute_model": ["scheduler_output"], "_dummy_run": [], "sample_tokens": [], "load_model": [],
        "_determine_batch_execution_and_padding": ["num_reqs", "num_scheduled_tokens_np"]}, [])},
    "vllm/v1/worker/gpu/model_runner.py": {"GPUModelRunner": (
        {"execute_model": ["scheduler_output", "dummy_run"], "_dummy_run": [], "sample_tokens": [], "sample": [], "prepare_inputs": [], "load_model": []}, [])},
    "vllm/v1/worker/gpu/input_batch.py": {"InputBatch": ({}, [
        "req_ids", "num_reqs", "num_tokens", "num_tokens_after_padding", "query_start_loc_np", "num_computed_tokens_np",
        "num_draft_tokens_per_req", "input_ids"])},
    "vllm/v1/core/sched/output.py": {
        "NewRequestData": ({}, ["req_id", "prompt_token_ids", "prompt_embeds", "sampling_params", "pooling_params", "num_computed_tokens", "lora_request", "mm_features"]),
        "SchedulerOutput": ({}, ["num_scheduled_tokens", "scheduled_new_reqs", "finished_req_ids", "scheduled_spec_decode_tokens"])},
    "vllm/v1/outputs.py": {"ModelRunnerOutput": ({}, ["req_ids", "sampled_token_ids"])},
    "vllm/forward_context.py": {"BatchDescriptor": ({}, ["num_tokens"])},
    "vllm/sampling_params.py": {"SamplingParams": ({}, ["extra_args"])},
    "vllm/config/parallel.py": {"ParallelConfig": ({"use_ubatching": []}, [
        "prefill_context_parallel_size", "decode_context_parallel_size", "data_parallel_rank", "data_parallel_size", "enable_expert_parallel"])},
    "sglang/srt/model_executor/model_runner.py": {"ModelRunner": ({"forward": ["forward_batch"]}, [])},
    "sglang/srt/model_executor/forward_batch_info.py": {
        "ForwardBatch": ({"init_new": ["batch"]}, [
            "rids", "forward_mode", "seq_lens_cpu", "extend_prefix_lens_cpu", "extend_seq_lens_cpu", "spec_algorithm", "global_num_tokens_cpu",
            "attn_cp_metadata", "attn_dcp_metadata", "tbo_split_seq_index", "encoder_lens", "input_ids"]),
        "ForwardMode": ({"is_decode": [], "is_idle": [], "is_extend_without_speculative": [], "is_split_prefill": [], "is_dllm_extend": []}, [])},
}
# (file, function, what it calls): who calls what an adapter wraps.
CALLED = [("vllm/v1/worker/gpu_model_runner.py", "execute_model", "_determine_batch_execution_and_padding"),
          ("vllm/v1/worker/gpu_model_runner.py", "_dummy_run", "_determine_batch_execution_and_padding"),
          ("vllm/v1/worker/gpu/model_runner.py", "execute_model", "prepare_inputs"), ("vllm/v1/worker/gpu/model_runner.py", "sample_tokens", "sample")]
TEXT = [("vllm/v1/worker/gpu_model_runner.py", "self.input_batch.num_computed_tokens_cpu"), ("vllm/v1/worker/gpu_model_runner.py", "self.input_batch.req_ids"),
        ("vllm/v1/worker/gpu_model_runner.py", "self.input_ids.cpu[:total_num_scheduled_tokens]"), ("vllm/v1/engine/input_processor.py", 'f"{request.external_req_id}-{random_uuid():.8}"'), ("vllm/plugins/__init__.py", '"vllm.general_plugins"'),
        ("vllm/distributed/parallel_state.py", "def get_ep_group()"), ("sglang/srt/plugins/__init__.py", '"sglang.srt.plugins"'),
        ("sglang/srt/runtime_context.py", "def get_parallel()"), ("sglang/srt/model_executor/runner/decode_cuda_graph_runner.py", "self.capture_bs"),
        ("sglang/srt/model_executor/runner/prefill_cuda_graph_runner.py", "self.capture_num_tokens")]


# {version: {range of a trace: methods that it has not}}; None: the newest of both engines
LACKING = {None: {}, "vllm-0.27.1": {}, "sglang-0.5.22": {}}


@pytest.fixture(name="sources", scope="module", params=[None, "vllm-0.27.1", "sglang-0.5.22"])
def fixture_sources(long, request):
    """The folder of the newest engines, or of another version of one of them."""
    if not long:
        pytest.skip("--long only")
    return versions.folder_of(request.param) if request.param else engine_env.sources()


def of_these(sources, entries):
    """Of @entries, which begin with a file, those of the engines that are there."""
    return [entry for entry in entries if (sources / entry[0].partition("/")[0]).is_dir()]


def parsed(path):
    return ast.parse(pathlib.Path(path).read_text(encoding="utf-8"))


def names_of(function):
    return {argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}


def functions(tree):
    return {node.name: node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_names(check, sources):
    for file, classes in of_these(sources, NEEDED.items()):
        found = {node.name: node for node in parsed(sources / file).body if isinstance(node, ast.ClassDef)}
        for kind, (methods, fields) in classes.items():
            has = functions(found[kind]) if kind in found else {}
            wrong = [f"{name}({', '.join(wanted)})" for name, wanted in methods.items() if name not in has or not set(wanted) <= names_of(has[name])]
            declared = {node.target.id for node in ast.walk(found[kind]) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)} \
                if kind in found else set()
            check(kind in found and not wrong and set(fields) <= declared, f"{file}: {kind}", (wrong, set(fields) - declared))


def methods_of(package):
    """(module, class, method, range, parameters that are used) of what a trace puts ranges around."""
    from dmi import ranges, sglang_ranges, vllm_ranges
    of = {"vllm": vllm_ranges, "sglang": sglang_ranges}[package]
    entries = [(*entry[:4], ()) for entry in of.METHODS]
    if package == "vllm":
        entries += [(of.OUTPUTS, "OutputProcessor", name, ranges.REQUEST, words) for name, words in of.REQUESTS.items()]
        entries += [(of.FACTORY, "KVConnectorFactory", "create_connector", name, ()) for name in sorted(set(of.CONNECTORS.values()))]
        return entries + [("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1", method, name, ()) for method, name in of.CONNECTORS.items()]
    entries += [(of.REQUESTS, "TokenizerManager", name, ranges.REQUEST, words) for name, words in of.STATES.items()]
    return entries + [(of.SCHEDULER, "Scheduler", method, name, ()) for method in of.TURNS for name in (of.STEP, of.SCHEDULE)]


def test_ranges(check, sources, request):
    """Each method that a trace looks for is there; what a version has not is listed in LACKING."""
    lacking = {}
    for package in ("vllm", "sglang"):
        for module, kind, method, name, words in methods_of(package) if (sources / package).is_dir() else ():
            path = sources / (module.replace(".", "/") + ".py")
            found = {node.name: functions(node) for node in parsed(path).body if isinstance(node, ast.ClassDef)} if path.exists() else {}
            if method not in found.get(kind, ()) or not set(words) <= names_of(found[kind][method]):
                lacking.setdefault(name, []).append(f"{kind}.{method}()")
    check(lacking == LACKING[request.node.callspec.params["sources"]], "methods for ranges", lacking)
    texts = "\n".join(path.read_text(encoding="utf-8") for path in [sources / "vllm/v1/worker/gpu_model_runner.py"] if path.exists())
    if texts:
        from dmi.vllm_ranges import SCOPES
        check(all(f'record_function_or_nullcontext("{text}")' in texts for text in SCOPES), "scopes of vLLM's V1 runner", list(SCOPES))


def test_calls(check, sources):
    for file, function, called in of_these(sources, CALLED):
        calls = {node.func.attr for node in ast.walk(functions(parsed(sources / file))[function]) if isinstance(node, ast.Call)
                 and isinstance(node.func, ast.Attribute)}
        check(called in calls, f"{file}: {function}() calls {called}()")


def test_texts(check, sources):
    for file, text in of_these(sources, TEXT):
        check(text in (sources / file).read_text(encoding="utf-8"), f"{file}: {text}")
