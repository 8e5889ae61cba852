#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A wheel of a build folder: all that a machine with an engine needs.

    wheel.py BUILD OUT          # ./bootstrap wheel

`meson install` says what there is: programs become scripts of the environment, everything else lies under its prefix as it would
under any other; python/dmi is the package. Libraries that not every machine has go along, beside libdmi_preload.so, where the programs'
RPATH finds them. The wheel's name says the oldest glibc that it runs with: the newest version of a symbol that a file needs.
"""
import argparse
import json
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OLDEST_GLIBC = 34  # 2.34, which holds what were libraries of their own: libpthread, libdl, librt
# Of those that a manylinux wheel may need, since every machine has them: glibc's own, and zlib.
EVERYWHERE = re.compile(r"(libc|libm|libdl|librt|libpthread|ld-linux.*|libz)\.so\.\d+")
DOCUMENTS = pathlib.Path("/usr/share/doc")
LINKED = ("libzstd-dev", "liblz4-dev", "libyaml-dev", "libxxhash-dev", "libiberty-dev")  # statically
METADATA = """Metadata-Version: 2.4
Name: dmi
Version: {version}
Summary: Deep Model Inspector: activations of an LLM while it serves, with CUDA graphs, without a fork of the engine
License-Expression: Apache-2.0
License-File: LICENSE
{licenses}Requires-Python: >=3.10
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Description-Content-Type: text/markdown

{readme}"""
# Engines load these in each of their processes: nothing is done there without the library.
ENTRY_POINTS = """[vllm.general_plugins]
dmi = dmi.vllm:register

[sglang.srt.plugins]
dmi = dmi.sglang:register
"""
WHEEL = """Wheel-Version: 1.0
Generator: dmi {version}
Root-Is-Purelib: false
Tag: {tag}
"""


def run(*words, **more):
    return subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, check=True, **more).stdout


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def dynamic(path, tag):
    """[name] of NEEDED or SONAME"""
    return re.findall(rf"\({tag}\).*\[(.*)\]", run("readelf", "-W", "-d", path))


def glibc_of(path):
    return max((int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", run("readelf", "-W", "-V", path))), default=0)


def found_by_loader(path):
    """{library: its file on this machine}"""
    return dict(re.findall(r"(\S+) => (/\S+)", run("ldd", path)))


def license_of(library):
    """What Debian says of the package that a library is of, or None."""
    for path in (library.resolve(), library.resolve().relative_to("/usr") if library.resolve().is_relative_to("/usr") else library):
        owner = subprocess.run(["dpkg-query", "-S", pathlib.Path("/") / path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               check=False)
        if owner.returncode == 0:
            return DOCUMENTS / owner.stdout.partition(":")[0] / "copyright"
    return None


class Tree:
    """The wheel, unpacked."""

    def __init__(self, folder, installed, version, libraries):
        self.folder, self.version, self.libraries = folder, version, libraries
        self.data = folder / f"dmi-{version}.data"
        self.info = folder / f"dmi-{version}.dist-info"
        self.licenses, self.glibc = [(f"{name}.copyright", DOCUMENTS / name / "copyright") for name in LINKED], OLDEST_GLIBC
        shutil.copytree(installed / "bin", self.data / "scripts")
        for name in (pathlib.Path(libraries).parts[0], "include", "share"):  # lib, or lib64 where Debian's own tools are not
            shutil.copytree(installed / name, self.data / "data" / name, symlinks=True)
        shutil.copytree(ROOT / "python" / "dmi", folder / "dmi", ignore=shutil.ignore_patterns("__pycache__"))

    def elves(self):
        return [path for path in sorted(self.data.rglob("*")) if path.is_file() and not path.is_symlink() and is_elf(path)]

    def name_by_soname(self):
        """A wheel holds no links: a library has the one name that the loader looks for."""
        for path in sorted(self.data.rglob("*.so*")):
            if path.is_symlink():
                path.unlink()
        for path in self.elves():
            for soname in dynamic(path, "SONAME"):
                path.rename(path.with_name(soname))

    def add_foreign(self):
        """What the files need and not every machine has, and what that needs."""
        seen, todo = set(), self.elves()
        own = {path.name for path in todo}
        while todo:
            path = todo.pop()
            self.glibc = max(self.glibc, glibc_of(path))
            where = found_by_loader(path)
            for name in dynamic(path, "NEEDED"):
                if EVERYWHERE.fullmatch(name) or name in own | seen:
                    continue
                if name not in where:
                    raise SystemExit(f"wheel.py: {path.name} needs {name}, which is not on this machine")
                seen.add(name)
                library = pathlib.Path(where[name])
                copy = self.data / "data" / self.libraries / "dmi" / name
                shutil.copy(library.resolve(), copy)
                todo.append(copy)
                if text := license_of(library):
                    self.licenses.append((f"{name}.copyright", text))

    def write_info(self):
        (self.info / "licenses").mkdir(parents=True)
        found = [(name, text) for name, text in self.licenses if text.exists()]
        for name, text in [("LICENSE", ROOT / "LICENSE"), *found]:
            shutil.copy(text, self.info / "licenses" / name)
        lines = "".join(f"License-File: {name}\n" for name, _ in found)
        tag = f"py3-none-manylinux_2_{self.glibc}_{platform.machine()}"
        (self.info / "METADATA").write_text(METADATA.format(version=self.version, licenses=lines, readme=(ROOT / "README.md").read_text()))
        (self.info / "entry_points.txt").write_text(ENTRY_POINTS)
        (self.info / "WHEEL").write_text(WHEEL.format(version=self.version, tag=tag))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path, help="a build folder of meson's, compiled")
    parser.add_argument("out", type=pathlib.Path, help="the folder that gets the wheel")
    opt = parser.parse_args()
    options = {o["name"]: o["value"] for o in json.loads(run("meson", "introspect", "--buildoptions", opt.build))}
    version = json.loads(run("meson", "introspect", "--projectinfo", opt.build))["version"]
    opt.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=opt.out) as name:
        folder = pathlib.Path(name)
        run("meson", "install", "-C", opt.build, "--destdir", folder.resolve() / "installed", "--no-rebuild", "--strip", "--quiet")
        installed = folder / "installed" / pathlib.Path(options["prefix"]).relative_to("/")
        tree = Tree(folder / f"dmi-{version}", installed, version, options["libdir"])
        tree.name_by_soname()
        tree.add_foreign()
        tree.write_info()
        print(re.search(r"\S+\.whl", run(sys.executable, "-m", "wheel", "pack", tree.folder, "--dest-dir", opt.out))[0])


if __name__ == "__main__":
    main()
