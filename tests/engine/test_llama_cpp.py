# SPDX-License-Identifier: Apache-2.0
"""The example of docs/adapters.md in llama.cpp itself: SmolLM2 on the CPU, two sequences, with a library that prints its steps."""
import sys

import pytest

import engine_env
import harness
from harness import ROOT
from test_runners import STEPS, example
from tinygrad_client import model_path

PROGRAM = """
#include <stdio.h>

/* The same tokens at the same positions have the same logits, whosever they are. */
static int are_alike(struct llama_context *context, int n, int32_t a, int32_t b)
{
    for (int i = 0; i < n; i++) {
        float apart = llama_get_logits_ith(context, a)[i] - llama_get_logits_ith(context, b)[i];
        if (apart > 1e-3f || apart < -1e-3f)
            return 0;
    }
    return 1;
}

int serve(const char *path)
{
    static const char *const names[] = { "france", "spain" };
    struct llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 64;
    params.n_batch = params.n_ubatch = 32;
    params.n_seq_max = 2;
    params.kv_unified = true;
    params.n_threads = params.n_threads_batch = 1;
    struct llama_context *context = model ? llama_init_from_model(model, params) : NULL;
    if (!context)
        return 1;
    int n = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token tokens[] = { 504, 3575, 282, 504, 3575 };
    llama_seq_id first = 0, second = 1, *of[] = { &first, &first, &first, &second, &second };
    llama_pos at[] = { 0, 1, 2, 0, 1 };
    int32_t n_ids[] = { 1, 1, 1, 1, 1 };
    int8_t wanted[] = { 1, 1, 1, 1, 1 };
    struct llama_batch batch = { .n_tokens = 5, .token = tokens, .pos = at, .n_seq_id = n_ids, .seq_id = of, .logits = wanted };
    printf("%d\\n", decode(context, batch, names));
    printf("%d %d\\n", are_alike(context, n, 1, 4), are_alike(context, n, 1, 2));
    batch.n_tokens = 2;
    batch.pos = (llama_pos[]){ 3, 2 };
    batch.seq_id = (llama_seq_id *[]){ &first, &second };
    printf("%d\\n", decode(context, batch, names));
    fflush(stdout);
    return 0;
}
"""
IN_PYTHON = "import ctypes, sys; ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL); sys.exit(ctypes.CDLL(sys.argv[2]).serve(sys.argv[3].encode()))"


def test_the_example(check, tmp_path, long):
    if not long:
        pytest.skip("--long only")
    library, headers = engine_env.llama_cpp()
    (tmp_path / "program.c").write_text(example() + PROGRAM)
    (tmp_path / "steps.c").write_text(STEPS)
    flags = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", ROOT / "include", *(f"-I{path}" for path in headers)]
    harness.run([*flags, tmp_path / "program.c", "-o", tmp_path / "program.so", "-ldl"])
    harness.run([*flags, tmp_path / "steps.c", "-o", tmp_path / "steps.so"])
    command = [sys.executable, "-c", IN_PYTHON, library, tmp_path / "program.so", model_path()]
    env = harness.environment()
    said = harness.run(command, env=dict(env, LD_PRELOAD=tmp_path / "steps.so"), timeout=120).stdout
    check(said.splitlines() == ["step 0 of 5 rows: france 0+3 at 0 spain 0+2 at 3", "end", "0", "1 0",
                                "step 1 of 2 rows: france 3+1 at 0 spain 2+1 at 1", "end", "0"], "its steps", said)
    for more in ({}, {"LD_PRELOAD": harness.PRELOAD}):
        check(harness.run(command, env=dict(env, **more), timeout=120).stdout == "0\n1 0\n0\n", "it decodes as ever", more)
