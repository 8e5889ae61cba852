# SPDX-License-Identifier: Apache-2.0
"""Runs of programs whose adapters say whose the rows are: their HookSpec, how they are started, and what they need."""
import json

import pytest

import harness
import versions
from harness import DMI_RUN, PRELOAD, ROOT, STANDIN

HERE = ROOT / "tests" / "engine"
LIBRARY = harness.BUILD / "read" / "libdmi_read.so.1"
SPEC = """hookspec: 1
name: adapters
ring: {bytes: 16M, slots: 4096}
overload: {mode: complete, wait_ms: 60000}
forward:
  - {kind: step, begin: step}
sites:
  - {tap: '*'}
  - {tap: final_logits, row: request}
"""
# Of a module of tests: dmi.open() finds the library (conftest.py), and all that a run takes is built.
MARKS = [pytest.mark.usefixtures("reading"), pytest.mark.built(PRELOAD, DMI_RUN, LIBRARY, STANDIN / "libcuda.so.1")]


def asking(tag):
    """SPEC for requests with the @tag alone."""
    return SPEC.replace("{tap: '*'}", f"{{tap: '*', requests: 'tag:{tag}'}}").replace("row: request", f"row: request, requests: 'tag:{tag}'")


def cached_ids(run):
    """{request: the ids that were said of its cached tokens}"""
    from dmi.run.tables import _request, _steps_of
    return {_request(span): span.cached_ids[:span.n_cached] for _, spans in _steps_of(run) for span in spans if span.cached_ids}


def check_config(check, run, folder):
    """The engine's own config of the model in @folder (engine_env.py), and where its tokenizer is, are noted in the run."""
    config, wanted = json.loads(run.about("config") or "{}"), json.loads((folder / "config.json").read_text())
    sizes = ("model_type", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "hidden_size")
    check({name: config.get(name) for name in sizes} == {name: wanted[name] for name in sizes}, "the model's config", config)
    check("rope_theta" in str(config), "with the base of its RoPE", config)
    check(run.about("tokenizer") == str(folder), "its tokenizer's folder", run.about("tokenizer"))


def start(folder, command, spec, env, options=(), timeout=600):
    """@command under dmi-run with @spec and more of its @options; runs are left in folder/RUN."""
    (folder / "spec.yaml").write_text(spec)
    return harness.run([DMI_RUN, "--spec", folder / "spec.yaml", "--out", folder / "RUN", *options, "--", *command], env=env, timeout=timeout)


def serve(engines, folder, command, spec=SPEC, options=(), version=None):
    """(JSON that the client printed last, what was said on stderr) of a client of this folder in an engine's environment (engine_env.py), or
    with another @version of the engine (versions.py)."""
    python, env = engines
    env = versions.before(version, env)
    env = env | {"PYTHONPATH": f"{ROOT / 'python'}:{HERE}:{folder / 'site'}:{env['PYTHONPATH']}",
                 "LD_LIBRARY_PATH": f"{STANDIN}:{env['LD_LIBRARY_PATH']}"}
    client, *words = command
    done = start(folder, [python, HERE / client, *words], spec, env, options)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr
