# SPDX-License-Identifier: Apache-2.0
"""A small serving engine, for tests: continuous batching, a paged KV cache, captured graphs, ranks.

tests/engine/README.md says how to run it, and what it does as vLLM and SGLang do. It needs numpy and
cuda.bindings alone, and knows nothing of DMI but what steps.py tells it.
"""
