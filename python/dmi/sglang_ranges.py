# SPDX-License-Identifier: Apache-2.0
"""What SGLang does when, for a trace: ranges around its own methods, by the names of StriaTrace's catalogue (docs/trace.md).

Each rank has a scheduler of its own whose loop never rests, so a turn of it is a step only where it has a batch.

Source: SGLang 0.5.23 and 0.5.22, the modules that METHODS names.
"""
import functools
import time

import dmi
from dmi import adapters, ranges

SCHEDULER, REQUESTS = "sglang.srt.managers.scheduler", "sglang.srt.managers.tokenizer_manager"
STEP, SCHEDULE = "EngineCore::Step", "EngineCore::Schedule"

# (module, class, method, range, facts)
METHODS = [
    (SCHEDULER, "Scheduler", "run_batch", "EngineCore::Execute", None),
    (SCHEDULER, "Scheduler", "process_batch_result", "EngineCore::Output", None),
    ("sglang.srt.managers.scheduler_components.output_streamer", "SchedulerOutputStreamer", "stream_output", "Worker::Response", None),
    ("sglang.srt.model_executor.forward_batch_info", "ForwardBatch", "init_new", "ModelRunner::Preprocess", None),
    ("sglang.srt.model_executor.model_runner", "ModelRunner", "forward", "ModelRunner::Forward", None),
    ("sglang.srt.model_executor.model_runner", "ModelRunner", "sample", "ModelRunner::Sample", None),
    ("sglang.srt.speculative.eagle_worker_v2", "EagleDraftWorker", "draft", "ModelRunner::Draft", None),
    ("sglang.srt.eplb.eplb_manager", "EPLBManager", "on_forward_pass_end", "ModelRunner::EpLB", None),
    ("sglang.srt.managers.cache_controller", "HiCacheController", "start_loading", "CacheEngine::Load", None),
    ("sglang.srt.managers.cache_controller", "HiCacheController", "start_writing", "CacheEngine::Save", None),
]
TURNS = {"get_next_batch_to_run": ()}                                # of Scheduler
STATES = {"_init_req_state": ("obj",), "_handle_batch_output": ("recv_obj",)}  # of TokenizerManager


def use(adapter):
    """Ranges from here on, where a trace is on."""
    if not ranges.wanted():
        return
    catalogue = ranges.Catalogue(adapter)
    catalogue.use(METHODS)
    adapters.when_imported(SCHEDULER, functools.partial(_follow_turns, catalogue))
    adapters.when_imported(REQUESTS, functools.partial(_follow_requests, catalogue))


# ---------------------------------------------------------------------------------------- turns of the scheduler's loop


def _follow_turns(catalogue, module):
    if owner := catalogue.owner(module, "Scheduler", TURNS, STEP, SCHEDULE):
        owner.get_next_batch_to_run = _around_choice(catalogue, owner.get_next_batch_to_run)


def _around_choice(catalogue, choose):
    """A turn begins with the choice of its batch, and ends where the next turn chooses."""
    @functools.wraps(choose)
    def choosing(self, *args, **kwargs):
        step = self.__dict__.pop("_dmi_step", None)
        if step is not None:
            step.__exit__()
        begin = time.monotonic_ns()
        plan = choose(self, *args, **kwargs)
        batch = getattr(plan, "batch_to_run", plan)
        if batch:
            catalogue.came |= {STEP, SCHEDULE}
            self._dmi_step = dmi.range_since(STEP, begin).__enter__()
            with dmi.range_since(SCHEDULE, begin, requests=len(getattr(batch, "reqs", None) or ())):
                pass
        return plan
    return choosing


# ---------------------------------------------------------------------------------------- requests


def _follow_requests(catalogue, module):
    if owner := catalogue.owner(module, "TokenizerManager", STATES, ranges.REQUEST):
        owner._init_req_state = _around_new(catalogue, owner._init_req_state)
        owner._handle_batch_output = _around_output(catalogue, owner._handle_batch_output)


def _around_new(catalogue, make):
    @functools.wraps(make)
    def making(self, obj, *args, **kwargs):
        result = make(self, obj, *args, **kwargs)
        for request in obj.rid if isinstance(obj.rid, list) else [obj.rid]:
            catalogue.request_begins(request)
        return result
    return making


def _around_output(catalogue, handle):
    @functools.wraps(handle)
    async def handling(self, recv_obj, *args, **kwargs):
        result = await handle(self, recv_obj, *args, **kwargs)
        counts = [getattr(recv_obj, f"{name}_tokens", None) or () for name in ("prompt", "completion")]
        for i, (request, reason) in enumerate(zip(recv_obj.rids, recv_obj.finished_reasons)):
            if reason is not None:
                catalogue.request_ends(request, **{key: n[i] for key, n in zip(("prompt", "generated"), counts) if i < len(n)})
        return result
    return handling
