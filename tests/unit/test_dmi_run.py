#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dmi-run does with options, specs and environment: test_dmi_run.py DMI-RUN"""
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/static"))
from tap import Tap  # noqa: E402

GOOD = """hookspec: 1
name: good
vars: {a: 1}
sites:
  - {name: q, kernel: k, pointer: 'arg[0]', dtype: f32, dims: [{row: true, count: a}]}
"""
BAD = GOOD.replace("f32", "f33").replace("kernel", "kernal")


def any_library(folder):
    """A shared library that does nothing to a program, under a name of ours."""
    for line in open("/proc/self/maps", encoding="ascii"):
        path = line.split()[-1]
        if "/libc.so" in path or "/libc-" in path:
            return shutil.copy(pathlib.Path(path).with_name("libm.so.6"), folder / "libdmi_preload.so")
    raise FileNotFoundError("libm.so.6")


class Case:
    def __init__(self, program, folder, library):
        self.program, self.folder, self.library = program, folder, library

    def run(self, *args, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DMI_", "LD_"))}
        clean.update({"DMI_PRELOAD_PATH": str(self.library), **env})
        # only for a dmi-run built with AddressSanitizer, which wants to be the first library of all
        clean["ASAN_OPTIONS"] = "verify_asan_link_order=0"
        return subprocess.run([self.program, *map(str, args)], cwd=self.folder, env=clean, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)

    def environment(self, *args, **env):
        """(the command's environment, what dmi-run printed on stderr)"""
        done = self.run(*args, "--", "env", "-0", **env)
        return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry), done.stderr


def check(tap, name, *facts):
    """facts: (true or false, what to print if false)"""
    tap.ok(name, [str(detail) for fact, detail in facts if not fact])


def usage(tap, case):
    done = case.run("--help")
    check(tap, "help goes to stdout, status 0", (done.returncode == 0 and "--strict" in done.stdout, done))
    done = case.run("--version")
    check(tap, "version is printed", (done.returncode == 0 and done.stdout.startswith("dmi-run "), done))
    for name, args, part in [
            ("no spec", ["--", "true"], "--spec FILE"),
            ("no command", ["--spec", "good.yaml"], "no command"),
            ("--check with a command", ["--spec", "good.yaml", "--check", "true"], "runs no command"),
            ("an unknown option", ["--sepc", "good.yaml", "true"], "--sepc"),
            ("a ring size that is none", ["--ring-bytes", "12X", "--spec", "good.yaml", "true"], "12X"),
            ("a ring size of 0", ["--ring-bytes", "0", "--spec", "good.yaml", "true"], "--ring-bytes 0"),
            ("a ring size too large", ["--ring-bytes", "9999999999999G", "--spec", "good.yaml", "true"], "9G")]:
        done = case.run(*args)
        check(tap, f"{name} is wrong usage", (done.returncode == 2 and part in done.stderr and not done.stdout, done))


def checking(tap, case):
    done = case.run("--spec", "good.yaml", "--check")
    check(tap, "--check accepts a good spec", (done.returncode == 0 and not done.stderr, done),
          ('"good": 1 site, 0 kinds' in done.stdout, done.stdout))
    done = case.run("--spec", "bad.yaml", "--check")
    check(tap, "--check shows all errors of a bad one, status 2", (done.returncode == 2 and not done.stdout, done),
          ("bad.yaml:5:15: " in done.stderr and "bad.yaml:5:52: " in done.stderr, done.stderr),
          ("2 errors" in done.stderr, done.stderr))
    done = case.run("--spec", "good.yaml", "-D", "b=1", "--check")
    check(tap, "-D of an undeclared variable is an error", (done.returncode == 2 and '"b=1"' in done.stderr, done))
    done = case.run("--spec", "good.yaml", "--check", DMI_VARS="a=x")
    check(tap, "so is a wrong value in DMI_VARS", (done.returncode == 2 and '"a=x"' in done.stderr, done))
    done = case.run("--check", DMI_SPEC="good.yaml")
    check(tap, "DMI_SPEC stands in for --spec", (done.returncode == 0, done))
    check(tap, "--check makes no folder", (not (case.folder / "dmi-out").exists(), "dmi-out exists"))


def arming(tap, case):
    env, err = case.environment("--spec", "good.yaml", "--out", "a/b/out", "-D", "a=5", "-Da=6", "--log", "l.txt",
                                "--ring-bytes", "2M")
    want = {"LD_PRELOAD": str(case.library), "DMI_SPEC": str(case.folder / "good.yaml"),
            "DMI_OUT": str(case.folder / "a/b/out"), "DMI_VARS": "a=5,a=6", "DMI_LOG": str(case.folder / "l.txt"),
            "DMI_RING_BYTES": "2097152"}
    check(tap, "the command's environment is what the options say", (not err, err),
          *((env.get(k) == v, f"{k}={env.get(k)}, expected {v}") for k, v in want.items()))
    mode = stat.S_IMODE((case.folder / "a/b/out").stat().st_mode)
    check(tap, "the folder is made for the user alone", (mode & 0o077 == 0, oct(mode)))
    env, err = case.environment("--spec", "good.yaml", "--out", "a/b/out", "-D", "a=2", DMI_VARS="a=1")
    check(tap, "-D comes behind DMI_VARS, so it counts", (env.get("DMI_VARS") == "a=1,a=2", env.get("DMI_VARS")))
    check(tap, "what no option says stays unset", ("DMI_LOG" not in env and "DMI_RING_BYTES" not in env, env))
    env, _ = case.environment("--spec", "good.yaml", "--log", "none")
    check(tap, "--log none is no file, dmi-out is the default folder",
          (env.get("DMI_LOG") == "none", env.get("DMI_LOG")),
          (env.get("DMI_OUT") == str(case.folder / "dmi-out"), env.get("DMI_OUT")))
    other = shutil.copy(case.library, case.folder / "other.so")
    env, _ = case.environment("--spec", "good.yaml", LD_PRELOAD=str(other))
    check(tap, "other preloads stay, behind ours", (env.get("LD_PRELOAD") == f"{case.library}:{other}", env))
    env, _ = case.environment("--spec", "good.yaml", LD_PRELOAD=f"{other}:{case.library}")
    check(tap, "ours is not put there twice", (env.get("LD_PRELOAD") == f"{other}:{case.library}", env))
    done = case.run("--spec", "good.yaml", "sh", "-c", 'echo "$1"; exit 7', "sh", "--check")
    check(tap, "-- may be left out; the command's options are its own",
          (done.returncode == 7 and done.stdout == "--check\n" and not done.stderr, done))


def hindered(tap, case):
    spaced = case.folder / "with space"
    spaced.mkdir()
    spaced_library = shutil.copy(case.library, spaced / "libdmi_preload.so")
    (case.folder / "file").write_text("")
    for name, args, env, part in [
            ("a bad spec", ["--spec", "bad.yaml"], {}, "bad.yaml:5:15: "),
            ("a missing spec", ["--spec", "none.yaml"], {}, "none.yaml: cannot read the HookSpec"),
            ("a wrong variable", ["--spec", "good.yaml", "-D", "x=1"], {}, '"x=1"'),
            ("an unusable folder", ["--spec", "good.yaml", "--out", "file/out"], {}, "Not a directory"),
            ("a file as the folder", ["--spec", "good.yaml", "--out", "file"], {}, "Not a directory"),
            ("a missing library", ["--spec", "good.yaml"], {"DMI_PRELOAD_PATH": "none.so"}, "cannot find"),
            ("a library that cannot be named", ["--spec", "good.yaml"], {"DMI_PRELOAD_PATH": str(spaced_library)},
             "space or colon")]:
        done = case.run(*args, "--", "sh", "-c", 'echo "out:$LD_PRELOAD"; exit 5', **env)
        check(tap, f"{name}: told, and the command runs without capture",
              (done.returncode == 5 and done.stdout == "out:\n", done),
              (part in done.stderr and 'running "sh" without capture' in done.stderr, done.stderr))
        done = case.run("--strict", *args, "--", "sh", "-c", "echo ran", **env)
        check(tap, f"{name}: with --strict it does not run", (done.returncode == 2 and not done.stdout, done),
              (part in done.stderr and "not running" in done.stderr, done.stderr))


def documents(tap, case):
    for path in sorted((ROOT / "specs").glob("*.yaml")):
        done = case.run("--spec", path, "--check")
        check(tap, f"specs/{path.name} has no error", (done.returncode == 0, done.stderr))
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/hookspec.md").read_text(encoding="utf-8"), re.M | re.S)
    whole = next(block for block in blocks if block.startswith("hookspec:"))
    kinds = "".join(f"  - {{kind: {kind}, begin: {{kernel: '{kind}'}}}}\n" for kind in ("decode", "x"))
    lines = ["hookspec: 1\nvars: {heads: 9, max_context: 512}\nforward:\n" + kinds + "sites:\n"]
    head = "    kernel: k\n    pointer: arg[0]\n    dtype: f32\n"
    for block in blocks:  # pieces of a spec become a whole one
        if block.startswith("  - name:"):
            lines.append(block)
        elif block.startswith("dims:"):
            for dims in re.split(r"^(?=dims:)", block, flags=re.M)[1:]:
                lines.append(f"  - name: d{len(lines)}\n{head}" + re.sub("^", "    ", dims.rstrip(), flags=re.M) + "\n")
        elif block.startswith("occurrences:"):
            for line in block.splitlines():
                lines.append(f"  - name: o{len(lines)}\n{head}    dims: [{{row: true, count: 1}}]\n    {line}\n")
    for name, text, sites in (("doc.yaml", whole, 1), ("pieces.yaml", "".join(lines), len(lines) - 1)):
        (case.folder / name).write_text(text, encoding="utf-8")
        done = case.run("--spec", name, "--check")
        check(tap, f"docs/hookspec.md: the examples ({name}) have no error",
              (done.returncode == 0 and f": {sites} site" in done.stdout, done.stderr + done.stdout + text))


def executing(tap, case):
    done = case.run("--spec", "good.yaml", "--", "no-such-program-here")
    check(tap, "a command that does not exist is 127",
          (done.returncode == 127 and "no-such-program-here: No such file" in done.stderr, done))
    done = case.run("--spec", "good.yaml", "--", case.folder / "file")
    check(tap, "one that cannot be executed is 126", (done.returncode == 126, done))
    done = case.run("--spec", "good.yaml", "--", "sh", "-c", "kill -9 $$")
    check(tap, "a signal that ends the command is seen", (done.returncode == -9, done))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        (folder / "good.yaml").write_text(GOOD)
        (folder / "bad.yaml").write_text(BAD)
        case = Case(str(pathlib.Path(sys.argv[1]).resolve()), folder, any_library(folder))
        tap = Tap()
        for part in (usage, checking, arming, hindered, documents, executing):
            part(tap, case)
        tap.done()


if __name__ == "__main__":
    main()
