#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of vLLM and SGLang that a trace puts ranges around, as far as it sees them: ranges_client.py vllm|sglang [lacks | touched]

lacks: a version whose scheduler and requests have other methods. touched: prints methods that were wrapped. The package's modules, which
test_engine_ranges.py writes, import what they hold from here. test_engine_sources.py compares names with the engines' sources.
"""
import asyncio
import contextlib
import importlib
import sys
from types import SimpleNamespace as Some

MODULES = {
    "vllm": {"v1.engine.core": "EngineCore", "v1.core.sched.scheduler": "Scheduler", "v1.executor.uniproc_executor": "UniProcExecutor",
             "v1.worker.gpu_model_runner": "GPUModelRunner, nullcontext as record_function_or_nullcontext",
             "distributed.kv_transfer.kv_connector.factory": "KVConnectorFactory", "v1.engine.output_processor": "OutputProcessor"},
    "sglang": {"srt.managers.scheduler": "Turns as Scheduler", "srt.managers.tokenizer_manager": "TokenizerManager",
               "srt.model_executor.forward_batch_info": "ForwardBatch", "srt.managers.cache_controller": "HiCacheController"}}
nullcontext = contextlib.nullcontext


class EngineCore:
    def __init__(self, scheduler, executor):
        self.scheduler, self.executor, self.step_fn = scheduler, executor, self.step_with_batch_queue

    def step_with_batch_queue(self):
        output = getattr(self.scheduler, "schedule", None) or self.scheduler.plan
        self.executor.execute_model(output())
        self.scheduler.update_from_output(None, None)


class Scheduler:
    def schedule(self):
        return Some(num_scheduled_tokens={"a": 3, "b": 1}, scheduled_new_reqs=["a"], total_num_scheduled_tokens=4, scheduled_spec_decode_tokens={"b": [1, 2]})

    def update_from_output(self, output, said):
        pass


class UniProcExecutor:
    def __init__(self, runner):
        self.runner = runner

    def collective_rpc(self, method):
        return getattr(self.runner, method)()

    def execute_model(self, output):
        return self.collective_rpc("execute_model")


class OwnExecutor(UniProcExecutor):
    """As vLLM's executor for external launchers: it calls its parent's."""

    def collective_rpc(self, method):
        return super().collective_rpc(method)


class GPUModelRunner:
    def execute_model(self):
        scope = importlib.import_module("vllm.v1.worker.gpu_model_runner").record_function_or_nullcontext
        with scope("gpu_model_runner: preprocess"), scope("another scope"):
            pass
        with scope("gpu_model_runner: forward"):
            pass


class Connector:
    def wait_for_save(self):
        pass


class OwnConnector(Connector):
    def start_load_kv(self, context):
        pass

    def wait_for_save(self):
        super().wait_for_save()


class KVConnectorFactory:
    @classmethod
    def create_connector(cls, config):
        return OwnConnector()


class OutputProcessor:
    def __init__(self):
        self.states = {}

    def add_request(self, request, prompt):
        self.states[request.request_id] = Some(request_id=request.request_id, prompt_len=7, stats=Some(num_generation_tokens=2))

    def _finish_request(self, req_state):
        self.states.pop(req_state.request_id)

    def abort_requests(self, names, internal):
        return [name for name in names if self.states.pop(name, None)]


class Turns:
    """SGLang's scheduler: two turns of its loop have a batch, two have none."""

    def __init__(self):
        self.left = [["a", "b"], [], ["b"], []]

    def get_next_batch_to_run(self):
        reqs = self.left.pop(0)
        return Some(batch_to_run=Some(reqs=reqs) if reqs else None)

    def run_batch(self, batch):
        return batch.reqs

    def process_batch_result(self, batch, result):
        pass


class TokenizerManager:
    def _init_req_state(self, obj, request=None):
        pass

    async def _handle_batch_output(self, recv_obj):
        return 5


class ForwardBatch:
    @classmethod
    def init_new(cls, batch, runner):
        return cls()


class HiCacheController:
    def start_loading(self):
        return -1


def serve_vllm():
    outputs, names = OutputProcessor(), [f"req{i}-0123456{i}" for i in range(3)]
    for name in names:
        outputs.add_request(Some(request_id=name), None)
    EngineCore(Scheduler(), OwnExecutor(GPUModelRunner())).step_fn()
    for _ in range(2):
        connector = KVConnectorFactory.create_connector(None)
    connector.start_load_kv(None)
    connector.wait_for_save()
    finish = getattr(outputs, "_finish_request", None) or outputs.end
    finish(outputs.states[names[1]])
    outputs.abort_requests([names[0], "another"], internal=True)


def serve_sglang():
    manager, scheduler = TokenizerManager(), Turns()
    manager._init_req_state(Some(rid=["a", "b"]))
    manager._init_req_state(Some(rid="c"))
    HiCacheController().start_loading()
    while scheduler.left:
        batch = scheduler.get_next_batch_to_run().batch_to_run
        if batch:
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
    ended = Some(rids=["b", "c"], finished_reasons=["stop", None], prompt_tokens=[9, 1], completion_tokens=[4, 1])
    assert asyncio.run(manager._handle_batch_output(ended)) == 5


def rename(kind, name, other):
    setattr(kind, other, vars(kind)[name])
    delattr(kind, name)


def main():
    package, *options = sys.argv[1:]
    sys.modules["ranges_client"] = sys.modules["__main__"]
    if "lacks" in options:
        rename(Scheduler, "schedule", "plan")
        rename(OutputProcessor, "_finish_request", "end")
    importlib.import_module(f"dmi.{package}").register()
    modules = [importlib.import_module(f"{package}.{name}") for name in MODULES[package]]
    {"vllm": serve_vllm, "sglang": serve_sglang}[package]()
    if "touched" in options:
        kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
        print(sorted(name for kind in kinds for name, method in vars(kind).items() if hasattr(getattr(method, "__func__", method), "__wrapped__")))


if __name__ == "__main__":
    main()
