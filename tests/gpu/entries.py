# SPDX-License-Identifier: Apache-2.0
"""The queue: what a machine with a GPU is asked, most worth first. README.md has the same table, minute by minute; test_queue.py compares.

A machine may be there for minutes and go at any second, so what the project is judged by comes first. An entry's seconds are what it
takes on a GPU, by estimate; the first run there says better. Entries that are alone are timed: nothing else runs beside them.
"""
import collections

import cases
import hugging_face
import hugging_face_plan as plan
import questions
from questions import bench, not_there_yet

# @minute at which it begins, @seconds that it may take; None: what is left
Block = collections.namedtuple("Block", "worth minute seconds what")
Entry = collections.namedtuple("Entry", "name seconds worth ask alone needs", defaults=(True, ()))

BLOCKS = (
    Block(100, 0, 25, "unmodified PyTorch, with the library alone, then with sites; the witness"),
    Block(90, 0.5, 75, "bits: driver programs; PyTorch eager, in graphs, with Triton, `launch_pdl`, compiled taps, attached"),
    Block(80, 2, 40, "costs of a node"),
    Block(70, 2.5, 120, "4B sizes in a graph, batch 1 and 32: no library, then sites off, 38, 252 in turns"),
    Block(60, 4.5, 90, "the same in pieces of a layer; 14B; a prefill of 16 x 512, 438 sites"),
    Block(50, 6, 30, "edits in a graph"),
    Block(40, 6.5, 40, "trace: `steps`, `kernels` with CUPTI"),
    Block(30, 7.5, 45, "launches that match nothing, and armed ones; overload, best effort; `complete` at the link's limit"),
    Block(20, 8.5, None, "facts that the design relies on"),
    Block(15, None, None, "the other facts"),
    Block(10, None, None, "the other programs, graph calls, the copy kernel, benchmarks, Qwen3-0.6B in all its ways"),
    Block(1, None, None, "facts that cross handles; facts with modules loaded eagerly"),
)
# Questions of `facts` whose answer the design relies on come first.
RELIED_ON = (
    "device resolver resolver_misses queued_params running_params exec_two_streams add_to_captured clone_captured clone_children node_order "
    "clone_of_clone programmatic_edges beside_programmatic captured_programmatic captured_handles kernel_functions parameter_info set_enabled "
    "template_alive original_of_clone exec_update release_order registered_memory registered_contexts address_range address_range_mapped "
    "capture_info capture_modes capture_calls capture_own_thread exit_order forked_child sticky_error embedded_nodes refused_update "
    "user_objects waits_for_kernel library_routes library_kernels kernel_info_early clone_attributes capture_queries").split()
ON_TORCH, ON_MODEL = ("torch",), ("torch", "transformers")


def programs(worth, seconds):
    """@seconds: {name: seconds} of cases.CASES"""
    return [Entry(name, n, worth, cases.ask(cases.CASES[name]), False, ON_TORCH if name.startswith("torch") else ()) for name, n in seconds.items()]


def models(worth, seconds, *configurations):
    return [Entry(f"model {c.name}", seconds, worth, hugging_face.ask(c), True, ON_MODEL) for c in configurations]


def facts(worth, names, loading=""):
    return [Entry(f"facts {name}{loading}", 3, worth, questions.ask_fact) for name in names]


def queue():
    sizes = {name: plan.of_size(name, *words) for name, words in plan.SIZED.items()}
    asked = questions.listed_facts()
    crossed = [name for name in asked if name.startswith("crossed_")]
    first = {"torch unmodified": 20, "torch eager_and_graph": 25}
    second = {"driver many_copies": 6, "driver pdl": 4, "driver capture_while_draining": 5, "driver libraries": 8, "driver mapped_pieces": 4,
              "driver pools": 4, "driver threads": 5, "tinygrad jit": 12, "torch triton": 30, "torch triton_pdl": 20, "torch compile_reduce_overhead": 60,
              "torch taps_compiled": 60, "torch attached": 40}
    second_smoke = [Entry("smoke plain", 8, 90, questions.ask_smoke, False), Entry("smoke torch", 30, 90, questions.ask_smoke, False, ON_TORCH)]
    return [
        *programs(100, first),
        *programs(90, second), *second_smoke,
        *(Entry(f"nodes {group}", 10, 80, bench("nodes", group, *questions.NODES)) for group in ("line", "beside", "gathered", "programmatic")),
        *models(70, 30, *sizes["4B batch 1"], *sizes["4B batch 32"]),
        Entry("model 4B ways of copying", 0, 70, not_there_yet("an exec has one way of copying")),
        *models(60, 15, *sizes["4B pieces"], *sizes["14B"], *sizes["4B prefill"]),
        Entry("edits idle", 6, 50, bench("graph", 31, spec="edits.yaml", standin=(3,))),
        Entry("edits values", 0, 50, not_there_yet("edits in PyTorch's graphs beside the same arithmetic in PyTorch")),
        Entry("edits of 16 requests", 0, 50, not_there_yet("a step with an edit of each of 16 requests")),
        Entry("trace steps", 8, 40, bench("trace", 31, trace="steps", standin=(3,))),
        Entry("trace kernels", 8, 40, bench("trace", 31, trace="kernels", standin=(3,))),
        Entry("trace records plain", 8, 40, questions.ask_trace_records),
        Entry("trace records torch", 16, 40, questions.ask_trace_records, True, ON_TORCH),
        Entry("bench launch", 5, 30, bench("launch", 31, spec="launch.yaml", standin=(3,))),
        Entry("bench overload", 12, 30, bench("overload", 120, 4000, "best-effort", 262144, spec="overload.yaml", standin=(12, 4000, "best-effort", 262144))),
        Entry("bench link normal", 8, 30, bench("link", "normal", 1, 4, spec="drain.yaml")),
        Entry("bench link noise", 8, 30, bench("link", "noise", 1, 4, spec="drain.yaml")),
        *facts(20, RELIED_ON),
        *facts(15, [name for name in asked if name not in RELIED_ON and name not in crossed]),
        *programs(10, {name: 30 for name in cases.CASES if name not in first and name not in second}),
        *(Entry(f"graph calls {seed}", 4, 10, questions.ask_graph_calls, False) for seed in range(1, 9)),
        Entry("copy kernel", 10, 10, questions.ask_copy_kernel, False),
        Entry("bench graph", 10, 10, bench("graph", 31, spec="launch.yaml", standin=(3,))),
        Entry("bench tap", 5, 10, bench("tap", 31, spec="tap.yaml", standin=(3,))),
        Entry("bench execs", 10, 10, bench("execs", 500, spec="launch.yaml", standin=(50,))),
        Entry("bench copy", 5, 10, bench("copy", 11, questions.FATBIN, standin=(1, questions.FATBIN))),
        *(Entry(f"model {c.name}", 40 if c.mode != "compiled" else 120, 10, hugging_face.ask(c), True, ON_MODEL) for c in plan.PLAN),
        *facts(1, crossed),
        *facts(1, [name for name in asked if name not in crossed], " eager"),
        *facts(1, crossed, " eager"),
    ]
