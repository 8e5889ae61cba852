#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the pack: what contact.py needs on a machine with a GPU, in one tar.gz that holds a script `run`.

Usage: pack.py BUILD FILE [--tinygrad FOLDER]

BUILD is a build folder of meson's; in the pack its files lie where they lie in the tree. Programs may need nothing of
libc that is newer than glibc 2.34; shared libraries besides libc's go into lib/. The model of the demo (98 MB) is left out.
"""
import argparse
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NEWEST_GLIBC = (2, 34)
# Those of libc, which every machine has.
OF_LIBC = re.compile(r"(lib(c|m|dl|pthread|rt|gcc_s)|ld-linux-[\w-]+)\.so\.\d+")
PROGRAMS = [
    "preload/libdmi_preload.so", "tools/dmi-run", "tools/dmi-dump", "tools/dmi-trace", "tests/gpu/facts", "tests/gpu/libwitness.so",
    "tests/preload/test_copy_kernel", "tests/preload/graph_calls",
    *(f"tests/bench/bench_{name}" for name in ("launch", "graph", "execs", "copy", "link", "tap", "trace", "overload", "nodes")),
]
DATA = ["kernels/dmi_kernels.ptx", "kernels/dmi_kernels.fatbin", "tests/bench/nodes.fatbin", "tests/bench/nodes_pdl.fatbin"]
NOT_THERE = re.compile("test_|pack|on_gpu|hugging_face_standin")  # Python files that only the tree uses


def below(folder, pattern):
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).rglob(pattern))]


SOURCES = [
    "LICENSE", "preload/hooks.def", "include/dmi/dtype.h", *below("python/dmi", "*.py"), "tools/setup/driver.py", "tests/engine/harness.py",
    *below("tests/bench", "*.yaml"), "tests/gpu/README.md", "tests/gpu/facts/questions.def",
    *(name for name in below("tests/gpu", "*.py") if not NOT_THERE.match(pathlib.Path(name).name)),
]
MAX_BYTES = 64 << 20

RUN = """#!/bin/sh
# All that this machine can tell, in one table: see tests/gpu/README.md. ./run --help
here=$(cd "$(dirname "$0")" && pwd -P) || exit 1
python=${DMI_GPU_PYTHON:-}
for name in ${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python"} ${CONDA_PREFIX:+"$CONDA_PREFIX/bin/python"} python3 python; do
    [ -n "$python" ] || ! "$name" -c 'import torch' 2>/dev/null || python=$name
done
for name in python3 python; do
    [ -n "$python" ] || ! "$name" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || python=$name
done
[ -n "$python" ] || { echo "run: no Python 3.9 or later was found; DMI_GPU_PYTHON may name one" >&2; exit 1; }
exec "$python" -B "$here/tests/gpu/contact.py" "$@"
"""


def output_of(*words):
    return subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True).stdout


def newest_glibc(path):
    """(2, 34) for a program whose newest symbol of glibc's is of GLIBC_2.34"""
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", output_of("objdump", "-T", path))
    return max(((int(a), int(b)) for a, b in found), default=(0, 0))


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-d", path))


def libraries_of(path):
    """{name: file} of what @path needs that is not of libc, and what that needs."""
    files = dict(re.findall(r"(\S+) => (/\S+)", output_of("ldd", path)))
    found, open_names = {}, needed(path)
    while open_names:
        name = open_names.pop()
        if OF_LIBC.fullmatch(name) or name in found:
            continue
        if name not in files:
            raise SystemExit(f"pack: {path} needs {name}, which was not found")
        found[name] = pathlib.Path(files[name])
        open_names += needed(files[name])
    return found


def check_age(path):
    newest = newest_glibc(path)
    if newest > NEWEST_GLIBC:
        raise SystemExit(f"pack: {path} needs GLIBC_{newest[0]}.{newest[1]}; the pack is for glibc {NEWEST_GLIBC[0]}.{NEWEST_GLIBC[1]} and "
                         "later: build it on an older system")


def stripped(path, folder):
    """A copy of @path without what only debuggers use."""
    copy = folder / path.name
    shutil.copy2(path, copy)
    subprocess.run(["strip", "--strip-debug", copy], check=True)
    return copy


class Pack:
    def __init__(self, archive, folder):
        self.archive, self.folder = archive, folder

    def file(self, path, name, mode=0o644):
        entry = self.archive.gettarinfo(path, f"dmi-gpu/{name}")
        entry.mode, entry.uid, entry.gid, entry.uname, entry.gname = mode, 0, 0, "", ""
        with open(path, "rb") as file:
            self.archive.addfile(entry, file)

    def text(self, text, name, mode=0o644):
        entry = tarfile.TarInfo(f"dmi-gpu/{name}")
        data = text.encode()
        entry.size, entry.mode = len(data), mode
        self.archive.addfile(entry, io.BytesIO(data))

    def programs(self, build):
        libraries = {}
        for name in PROGRAMS:
            if not (build / name).exists():
                raise SystemExit(f"pack: {build / name} was not built")
            check_age(build / name)
            libraries.update(libraries_of(build / name))
            self.file(stripped(build / name, self.folder), f"build/meson/{name}", 0o755)
        for name, path in libraries.items():
            check_age(path)
            self.file(path.resolve(), f"lib/{name}", 0o755)

    def tinygrad(self, folder):
        """As it is on PyPI (MIT), without compiled files. Its version says the folder beside it."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                self.file(path, f"site/tinygrad/{path.relative_to(folder)}")
        for path in folder.parent.glob("tinygrad-*.dist-info/licenses/LICENSE"):
            self.file(path, "site/tinygrad-LICENSE")


def version():
    try:
        return output_of("git", "-C", ROOT, "describe", "--always", "--dirty")
    except (OSError, subprocess.CalledProcessError):
        return "unknown\n"


def standins_answers(build):
    """What the stand-in driver says, for comparison."""
    os.environ["DMI_TEST_BUILD"] = str(build)
    sys.path.insert(0, str(HERE))
    import questions
    with tempfile.TemporaryDirectory() as cache:
        return "".join(questions.ask_standin(loading, cache) for loading in ("lazy", "eager"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--tinygrad", type=pathlib.Path, help="the folder of the package")
    options = parser.parse_args()
    build = options.build.resolve()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(options.file, "w:gz", compresslevel=6) as archive:
        pack = Pack(archive, pathlib.Path(folder))
        pack.text(RUN, "run", 0o755)
        pack.text(version(), "VERSION")
        pack.programs(build)
        for name in DATA:
            pack.file(build / name, f"build/meson/{name}")
        for name in SOURCES:
            pack.file(ROOT / name, name)
        pack.text(standins_answers(build), "build/meson/tests/gpu/standin-answers.tsv")
        if options.tinygrad and options.tinygrad.is_dir():
            pack.tinygrad(options.tinygrad)
        else:
            print("without tinygrad: its case will be skipped unless the machine has it")
    n_bytes = options.file.stat().st_size
    if n_bytes > MAX_BYTES:
        raise SystemExit(f"pack: {options.file} has {n_bytes >> 20} MiB, more than {MAX_BYTES >> 20}")
    print(f"{options.file}: {n_bytes / (1 << 20):.1f} MiB. There: tar xzf {options.file.name} && dmi-gpu/run")


if __name__ == "__main__":
    main()
