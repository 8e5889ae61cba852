# SPDX-License-Identifier: Apache-2.0
"""A function or a file that a comment or a document names, as in "name()" or "folder/NAME.c", exists.

A function exists if code of this project defines, declares or calls it (what it calls and does not define, the compiler and the
linker have found elsewhere), or if FOREIGN names it. A file exists if the project has it by this path or the end of it; a name
without a folder is that of a file below the same top folder, or in a document of any file. FOREIGN_FILES names the others.
"""
import ast
import functools
import pathlib
import re

from sources import DATA, c_comments, code_of, hash_comments, line_of, python_texts, read, tracked

NAMED = re.compile(r"(?<![\w.>$])([A-Za-z_]\w*)\(\)")
CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
IN_TABLE = re.compile(r"\b(?:cu|nv|cupti)[A-Z]\w+")
KERNEL = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?(\w+)")  # in PTX within strings
# Functions of others that no code here calls: whose they are.
FOREIGN = {
    "module_verb": "the form of our own names (CONTRIBUTING.md)",
    "ask_NAME": "the form of the questions' names (tests/gpu/facts/questions.def)",
    "this_grid": "CUDA's cooperative groups'",
    "wait_for_layer_load": "vLLM's", "save_kv_layer": "vLLM's", "postprocess_sampled": "vLLM's",
    "llama_model_default_params": "llama.cpp's",
    "llama_context_default_params": "llama.cpp's",
}
C = (".c", ".h", ".cu", ".cuh", ".S", ".def", ".inc")
FILE = re.compile(r"(?<![\w/.$%{}<>*~-])((?:(?:\.\.?|[\w.-]+)/)*[\w-]+(?:\.[\w-]+)*\.(?:c|h|cuh|cu|S|py|md|def|build|yaml|toml))(?![\w/*(-]|\.\w)")
PLACEHOLDER = re.compile(r"(?<![A-Z])(?:NAME|SUBJECT|SUITE|MODULE)(?![A-Z])")
DOCUMENTS = (".", "docs", "docs/man")
# Files of others, and of users: whose they are.
FOREIGN_FILES = {
    "F.cu": "a user's, in a usage", "best-effort.yaml": "a user's", "engine.yaml": "a user's", "my.yaml": "a user's", "my_engine.c": "a user's", "my_model.py": "a user's", "one.yaml": "a user's", "without.yaml": "a user's",
    "look.py": "a user's", "read.py": "a user's", "small_engine.py": "a user's", "inside.py": "a user's", "your_script.py": "a user's", "first.py": "a user's", "make_vector.py": "a user's",
    "spec.yaml": "a run's", "dlpack.h": "of DLPack",
    "impl.h": "generated (tests/standin/gen_entries.py)",
    "runtime_calls.h": "generated (tests/standin/runtime/gen_runtime.py)", "runtime_own.h": "generated (tests/standin/runtime/gen_runtime.py)",
    "runtime_exports.c": "generated (tests/standin/runtime/gen_runtime.py)",
    "cuda.h": "CUDA's", "cudaTypedefs.h": "CUDA's", "cuda_occupancy.h": "CUDA's", "library_types.h": "CUDA's", "cupti_activity.h": "CUPTI's", "fatbinary_section.h": "CUDA's",
    "cublas_api.h": "cuBLAS's", "cublasLt.h": "cuBLAS's",
    "nvtx3/nvToolsExt.h": "NVTX's", "nvtx3/nvtxDetail/nvtxTypes.h": "NVTX's",
    "dlfcn.h": "libc's", "fenv.h": "libc's", "curl/curl.h": "libcurl's", "docs/gguf.md": "ggml's",
    "curandom.py": "PyCUDA's", "setup.py": "PyCUDA's", "generation/utils.py": "transformers'", "tinygrad/llm/model.py": "tinygrad's",
    "gpu/model_runner.py": "vLLM's", "v1/core/sched/output.py": "vLLM's", "v1/engine/input_processor.py": "vLLM's",
    "vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py": "vLLM's",
    "vllm/model_executor/models/llama.py": "vLLM's", "vllm/v1/worker/gpu_model_runner.py": "vLLM's",
    "graph/artifact_writer.py": "vLLM Hook's", "run_utils.py": "vLLM Hook's",
    "sglang/srt/model_executor/model_runner.py": "SGLang's", "forward_batch_info.py": "SGLang's",
}


@functools.cache
def texts(path):
    """(line, text) of what the file says to people."""
    text = read(path)
    if path.suffix in C:
        return c_comments(text)
    if path.suffix == ".py" or text.startswith("#!") and "python" in text.splitlines()[0]:
        return python_texts(text)
    if path.suffix in (".md", ".1"):
        return list(enumerate(text.replace("\\-", "-").splitlines(), 1))
    if path.suffix == ".map":
        return c_comments(text)
    return hash_comments(text) if path.name == "meson.build" or path.suffix in (".yaml", ".toml", "") else []


def docstrings(text):
    """(line, text) of the docstrings of Python."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            yield node.body[0].lineno, ast.get_docstring(node, clean=False)


def explanations(path):
    """As texts(), of Python without other strings: these hold names of files that tests write."""
    text = read(path)
    if path.suffix != ".py" and not (text.startswith("#!") and "python" in text.splitlines()[0]):
        return texts(path)
    return hash_comments(re.sub(r'"[^"\n]*"', lambda m: m.group(0).replace("#", " "), text)) + list(docstrings(text))


@functools.cache
def code_names():
    """The functions that exist: every name that code of the project has before a parenthesis, or has in a table."""
    names = set()
    for path in tracked(*C, ".py"):
        text = read(path)
        if path.suffix == ".py":
            names.update(re.findall(r"\bdef (\w+)\(", text))
            names.update(CALLED.findall(re.sub(r'"""(?:.|\n)*?"""|#[^\n]*', "", text)))
        else:
            code = code_of(text)
            names.update(CALLED.findall(code))
            names.update(IN_TABLE.findall(code))
            names.update(re.findall(r"\(\*(\w+)\)\s*\(", code))
            names.update(KERNEL.findall(text))
            names.update(re.findall(r"#\s*define\s+(\w+)", code))
    return names


def files():
    return [path for path in tracked() if not str(path).startswith(DATA) and path.name != "LICENSE"]


def test_functions_named_in_comments_exist():
    known = code_names() | set(FOREIGN)
    complaints = [f"{path}:{line + text.count(chr(10), 0, match.start())}: {match.group(0)}"
                  for path in files() for line, text in texts(path) for match in NAMED.finditer(text)
                  if match.group(1) not in known]
    assert not complaints, "\n".join(complaints)


def ends(paths):
    """Every path, and each end of one that begins after a slash."""
    return {"/".join(path.parts[i:]) for path in paths for i in range(len(path.parts))}


def is_there(path, name, known, below):
    """@known: ends of all paths; @below: (top folder, file's name) of all."""
    if "/" in name or str(path.parent) in DOCUMENTS:
        return name in known or resolved(path, name) in known
    return (path.parts[0], name) in below


def resolved(path, name):
    """The path that a link in a document means, from the project's root."""
    parts = list(path.parent.parts)
    for part in name.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


@functools.cache
def unknown_files():
    """(where, name) of each file that is named and is not there, but for placeholders."""
    paths = list(tracked())
    known, below = ends(paths), {(path.parts[0], path.name) for path in paths}
    return [(f"{path}:{line + line_of(text, match.start()) - 1}", match.group(1))
            for path in files() for line, text in explanations(path) for match in FILE.finditer(text)
            if not PLACEHOLDER.search(match.group(1)) and not is_there(path, match.group(1), known, below)]


def test_files_named_in_comments_exist():
    complaints = [f"{where}: {name}" for where, name in unknown_files() if name not in FOREIGN_FILES]
    assert not complaints, "\n".join(complaints)


def test_foreign_files_are_needed():
    spare = sorted(set(FOREIGN_FILES) - {name for _, name in unknown_files()})
    assert not spare, "\n".join(spare)


def test_foreign_names_are_needed():
    named = {name for path in files() for _, text in texts(path) for name in NAMED.findall(text)}
    spare = sorted(set(FOREIGN) - named | set(FOREIGN) & code_names())
    assert not spare, "\n".join(spare)


def test_the_check_sees_what_is_wrong():
    assert NAMED.findall("see a_b" + "(), x.c" + "(), d(1) and\ne" + "()") == ["a_b", "e"]
    assert FILE.findall("see a/b.c, x.py. and /c/d.h, e.c.o, *.md, ../f.md") == ["a/b.c", "x.py", "../f.md"]
    assert resolved(pathlib.Path("docs/a.md"), "../b/c.h") == "b/c.h" and ends([pathlib.Path("a/b/c.h")]) == {"a/b/c.h", "b/c.h", "c.h"}
    assert c_comments("/* a\n * b */ f(); // c\n// d\n") == [(1, " a\nb "), (2, " c\n d")]
    known = code_names()
    assert "ring_reserve" in known and "cuGraphLaunch" in known and "no_such_function_anywhere" not in known
