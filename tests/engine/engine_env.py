# SPDX-License-Identifier: Apache-2.0
"""Engines as they come from PyPI: vLLM and SGLang without what they have compiled, beside torch_env.py's PyTorch, and llama.cpp.

tools/setup/engines.txt lists the wheels of the two, which are fetched once; tools/setup/engine_imports.txt what their imports ask for.
"""
import contextlib
import fcntl
import hashlib
import inspect
import io
import json
import re
import shutil
import sys
import tarfile
import urllib.parse
import urllib.request
import zipfile

import columns
import harness
import torch_env

SETUP = harness.ROOT / "tools" / "setup"
LISTED, IMPORTS, LLAMA = SETUP / "engines.txt", SETUP / "engine_imports.txt", SETUP / "llama.txt"
FOLDER = harness.ROOT / "build" / "engines"
# Engines import torch in processes of their own, too, where it cannot be found without lazy binding (torch_env.py).
SITE = "import os, sys\nsys.setdlopenflags(os.RTLD_LAZY)\n"


@contextlib.contextmanager
def once(name, key):
    """Whether FOLDER/@name has to be filled: by one process at a time, and not again while the @key is the same."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    stamp = FOLDER / f"{name}.made-from"
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make = not stamp.exists() or stamp.read_text() != key
        if make:
            shutil.rmtree(FOLDER / name, ignore_errors=True)
        yield make
        stamp.write_text(key)


def pip(python, *words):
    return [python, "-m", "pip", "--disable-pip-version-check", *words, "-q", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]


def is_wanted(name):
    return name.endswith((".py", ".json")) or ".dist-info/" in name or name.startswith("sglang/kernels/jit/")


def sources():
    """The folder with the engines' Python code."""
    with once("code", LISTED.read_text() + inspect.getsource(is_wanted)) as make:
        if make:
            columns.step("fetching vLLM and SGLang from the Python package index",
                         [*pip(sys.executable, "download"), "-d", FOLDER / "wheels", "-r", LISTED], FOLDER / "fetch.log")
            for wheel in (FOLDER / "wheels").glob("*.whl"):
                with zipfile.ZipFile(wheel) as packed:
                    packed.extractall(FOLDER / "code", filter(is_wanted, packed.namelist()))
            shutil.rmtree(FOLDER / "wheels")
            (FOLDER / "code" / "sitecustomize.py").write_text(SITE)
    return FOLDER / "code"


def python_with_engines():
    """(interpreter, environment)"""
    python, env = torch_env.python_with_torch()
    code, packages = sources(), FOLDER / "packages"
    with once("packages", IMPORTS.read_text()) as make:
        if make:
            columns.step("fetching what vLLM and SGLang import from the Python package index",
                         [*pip(python, "install"), "--target", packages, "-r", IMPORTS], FOLDER / "install.log")
    return python, env | {"PYTHONPATH": f"{code}:{packages}", "VLLM_TARGET_DEVICE": "cpu", "TRITON_INTERPRET": "1", "NUMBA_DISABLE_JIT": "1",
                          "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CONFIG_ROOT": str(FOLDER / "config"),
                          "VLLM_CACHE_ROOT": str(FOLDER / "cache"), "SGLANG_EXTERNAL_MODEL_PACKAGE": "sglang_tapped",
                          "SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "7"}


def llama_cpp():
    """(llama.cpp as a library for Python processes, [folders of its headers])"""
    text = LLAMA.read_text()
    folder = FOLDER / "llama"
    with once("llama", text) as make:
        if make:
            columns.step("fetching llama.cpp from the Python package index",
                         [*pip(sys.executable, "install"), "--target", folder / "wheel", "-r", LLAMA], FOLDER / "llama.log")
            unpack_headers(*re.search(r"(?m)^# source: (\S+) (\S+) sha256=(\S+)$", text).groups(), folder / "source")
    return next(folder.glob("wheel/xllamacpp/*.so")), [*folder.glob("source/include"), *folder.glob("source/ggml/include")]


def unpack_headers(package, name, digest, folder):
    """llama.cpp's, of the source distribution @name, which pip would build before it gives it."""
    index = f"https://pypi.org/simple/{package}/"
    ask = urllib.request.Request(index, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(ask, timeout=60) as answer:
        url = next(file["url"] for file in json.load(answer)["files"] if file["filename"] == name)
    with urllib.request.urlopen(urllib.parse.urljoin(index, url), timeout=60) as answer:
        data = answer.read()
    assert hashlib.sha256(data).hexdigest() == digest, f"{name} is not what it was"
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        for member in packed:
            if found := re.fullmatch(r".*/vendor/llama\.cpp/((?:ggml/)?include/[^/]*\.h)", member.name):
                target = folder / found[1]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(packed.extractfile(member).read())


def write_version(folder, package, version):
    """In folder/site what @package would say of itself if it were another version."""
    info = folder / "site" / f"{package}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def write_site(folder, model):
    """In @folder a model's config.json, named @model, and in folder/site what a wheel of DMI says of itself."""
    info = folder / "site" / "dmi-0.1.dist-info"
    info.mkdir(parents=True)
    text = (SETUP / "wheel.py").read_text()
    (info / "entry_points.txt").write_text(re.search(r'ENTRY_POINTS = """(.*?)"""', text, re.S)[1])
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dmi\nVersion: 0.1\n")
    (folder / "config.json").write_text(f'{{"architectures": ["{model}"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, '
                                        '"num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 97, '
                                        '"max_position_embeddings": 256, "rms_norm_eps": 1e-5, "torch_dtype": "float32"}')
