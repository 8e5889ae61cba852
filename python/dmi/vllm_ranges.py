# SPDX-License-Identifier: Apache-2.0
"""What vLLM does when, for a trace: ranges around its own methods, by the names of StriaTrace's catalogue (docs/trace.md).

V1's runner has scopes with texts, which NVTX shows where VLLM_NVTX_SCOPES_FOR_PROFILING is set; else they are ranges here. V2's has none, so its
methods are wrapped.

Source: vLLM 0.33.0 and 0.27.1, the modules that METHODS names.
"""
import contextlib
import functools
import inspect
import os
import re

import dmi
from dmi import adapters, ranges

V1, V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
OUTPUTS, FACTORY = "vllm.v1.engine.output_processor", "vllm.distributed.kv_transfer.kv_connector.factory"


def _scheduled(output, *_):
    return {"requests": len(output.num_scheduled_tokens), "new": len(output.scheduled_new_reqs), "tokens": output.total_num_scheduled_tokens,
            "drafts": sum(map(len, output.scheduled_spec_decode_tokens.values()))}


# (module, class, method, range, facts)
METHODS = [
    ("vllm.v1.engine.core", "EngineCore", "step", "EngineCore::Step", None),
    ("vllm.v1.engine.core", "EngineCore", "step_with_batch_queue", "EngineCore::Step", None),
    ("vllm.v1.core.sched.scheduler", "Scheduler", "schedule", "EngineCore::Schedule", _scheduled),
    ("vllm.v1.core.sched.scheduler", "Scheduler", "update_from_output", "EngineCore::Output", None),
    *((f"vllm.v1.executor.{module}", kind, method, f"EngineCore::{name}", None)
      for module, kind in (("uniproc_executor", "UniProcExecutor"), ("multiproc_executor", "MultiprocExecutor"))
      for method, name in (("execute_model", "Execute"), ("collective_rpc", "CollectiveRpc"))),
    ("vllm.v1.executor.multiproc_executor", "WorkerProc", "enqueue_output", "Worker::Response", None),
    (V2, "GPUModelRunner", "prepare_inputs", "ModelRunner::Preprocess", None),
    (V2, "GPUModelRunner", "execute_model", "ModelRunner::Forward", None),
    (V2, "GPUModelRunner", "sample", "ModelRunner::Sample", None),
    (V2, "GPUModelRunner", "postprocess_sampled", "ModelRunner::Postprocess", None),
    (V2, "GPUModelRunner", "sample_tokens", "ModelRunner::Output", None),
    ("vllm.v1.worker.gpu.eplb_utils", "EPLBController", "step", "ModelRunner::EpLB", None),
]
# {text of V1's scope: range}, as preload/trace/range_names.def
SCOPES = {f"gpu_model_runner: {text}": f"ModelRunner::{name}" for text, name in (
    ("preprocess", "Preprocess"), ("forward", "Forward"), ("postprocess", "Postprocess"), ("sample", "Sample"), ("draft", "Draft"),
    ("bookkeep", "Bookkeep"), ("eplb", "EpLB"), ("ModelRunnerOutput", "Output"))}
# {method of a connector of KV caches: range}
CONNECTORS = {"start_load_kv": "CacheEngine::Load", "wait_for_layer_load": "CacheEngine::Load", "save_kv_layer": "CacheEngine::Save",
              "wait_for_save": "CacheEngine::Save"}
REQUESTS = {"add_request": ("request",), "abort_requests": (), "_finish_request": ("req_state",)}  # of OutputProcessor
CLIENTS = re.compile(r"(.+)-[0-9a-f]{8}", re.S)  # what InputProcessor gives to a client's id


def use(adapter):
    """Ranges from here on, where a trace is on."""
    if not ranges.wanted():
        return
    catalogue = ranges.Catalogue(adapter)
    catalogue.use(METHODS)
    adapters.when_imported(OUTPUTS, functools.partial(_follow_requests, catalogue))
    adapters.when_imported(FACTORY, functools.partial(_follow_connectors, catalogue))
    if os.environ.get("VLLM_NVTX_SCOPES_FOR_PROFILING", "0") == "0":
        adapters.when_imported(V1, functools.partial(_follow_scopes, catalogue))


# ---------------------------------------------------------------------------------------- V1's scopes


@contextlib.contextmanager
def _both(own, scope):
    """A range, and in it the scope that vLLM's own profiler has in its place."""
    with own, scope:
        yield


def _follow_scopes(catalogue, module):
    scope = getattr(module, "record_function_or_nullcontext", None)
    if scope is None:
        for name in SCOPES.values():
            catalogue.lack(name, "record_function_or_nullcontext()")
        return
    catalogue.has.update(SCOPES.values())

    @functools.wraps(scope)
    def scoped(text):
        own, name = scope(text), SCOPES.get(text)
        if name is None:
            return own
        catalogue.came.add(name)
        return dmi.range(name) if isinstance(own, contextlib.nullcontext) else _both(dmi.range(name), own)
    module.record_function_or_nullcontext = scoped


# ---------------------------------------------------------------------------------------- connectors of KV caches


def _follow_connectors(catalogue, module):
    """Classes of connectors are known from the first object."""
    factory = getattr(module, "KVConnectorFactory", None)
    create = vars(factory).get("create_connector") if factory else None
    if not isinstance(create, classmethod):
        for name in set(CONNECTORS.values()):
            catalogue.lack(name, "KVConnectorFactory.create_connector()")
        return
    seen = set()

    @functools.wraps(create.__func__)
    def creating(cls, *args, **kwargs):
        made = create.__func__(cls, *args, **kwargs)
        for owner in inspect.getmro(type(made)):
            if owner not in seen:
                seen.add(owner)
                _put_connector(catalogue, owner)
        return made
    factory.create_connector = classmethod(creating)


def _put_connector(catalogue, owner):
    for method, name in CONNECTORS.items():
        if method in vars(owner) and not getattr(vars(owner)[method], "__isabstractmethod__", False):
            catalogue.put(owner, method, name, said=f"{owner.__name__}.{method}()")


# ---------------------------------------------------------------------------------------- requests


def _client_name(request):
    found = CLIENTS.fullmatch(request)
    return found[1] if found else request


def _follow_requests(catalogue, module):
    if owner := catalogue.owner(module, "OutputProcessor", REQUESTS, ranges.REQUEST):
        owner.add_request = _around_add(catalogue, owner.add_request)
        owner._finish_request = _around_finish(catalogue, owner._finish_request)
        owner.abort_requests = _around_abort(catalogue, owner.abort_requests)


def _around_add(catalogue, add):
    @functools.wraps(add)
    def adding(self, request, *args, **kwargs):
        catalogue.request_begins(request.request_id)
        return add(self, request, *args, **kwargs)
    return adding


def _facts(state):
    facts = {"prompt": getattr(state, "prompt_len", None), "generated": getattr(getattr(state, "stats", None), "num_generation_tokens", None)}
    return {key: value for key, value in facts.items() if isinstance(value, int)}


def _around_finish(catalogue, finish):
    @functools.wraps(finish)
    def finishing(self, req_state, *args, **kwargs):
        result = finish(self, req_state, *args, **kwargs)
        catalogue.request_ends(req_state.request_id, _client_name(req_state.request_id), **_facts(req_state))
        return result
    return finishing


def _around_abort(catalogue, abort):
    @functools.wraps(abort)
    def aborting(self, *args, **kwargs):
        ended = abort(self, *args, **kwargs)
        for request in ended or ():
            catalogue.request_ends(request, _client_name(request), aborted=1)
        return ended
    return aborting
