# SPDX-License-Identifier: Apache-2.0
"""tools/completion/dmi.bash against the tools themselves: what it offers is what they take, and all of it."""
import os
import re
import subprocess

import pytest

from harness import BUILD, ROOT

TOOLS = ("dmi-analyze", "dmi-ctl", "dmi-dump", "dmi-replay", "dmi-run", "dmi-sites", "dmi-top", "dmi-trace", "dmi-view")
FOLDER, FILE = BUILD / "tools", ROOT / "tools" / "completion" / "dmi.bash"
SOURCES = {"dmi-analyze": "analyze/options.c", "dmi-dump": "dump/options.c", "dmi-replay": "replay/options.c", "dmi-top": "top/main.c", "dmi-view": "view/main.c"}
pytestmark = pytest.mark.built(*(FOLDER / tool for tool in TOOLS))


def offered(*words):
    """What bash would offer for the last of @words."""
    script = f'source "{FILE}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dmi_complete "$1" "${{!#}}" "${{COMP_WORDS[COMP_CWORD - 1]}}";' \
             ' printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script, "bash", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=30, env={**os.environ, "PATH": f"{FOLDER}:{os.environ['PATH']}"})
    assert not done.stderr, done.stderr
    return done.stdout.split()


def tool(name, *words):
    return subprocess.run([FOLDER / name, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30,
                          cwd="/")


def commands(name):
    """By the first words of its usage."""
    return sorted(set(re.findall(rf"^(?:Usage:)? *{name} ([a-z]+)\b", tool(name, "--help").stdout, re.M)))


@pytest.mark.parametrize("name", TOOLS)
def test_commands(check, name):
    check(offered(name, "") == commands(name), "the commands of --help", offered(name, ""))
    for word in commands(name):
        check(offered(name, word[:3]) == [c for c in commands(name) if c.startswith(word[:3])], f"{word[:3]} is {word}", offered(name, word[:3]))


@pytest.mark.parametrize("name", TOOLS)
def test_every_option_of_the_help_and_no_other(check, name):
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", tool(name, "--help").stdout)) | {"--help", "--version"}
    named -= {"dmi-analyze": {"--out"}, "dmi-dump": {"--out"}, "dmi-ctl": {"--control", "--trace"}, "dmi-trace": {"--out", "--trace"}, "dmi-view": {"--out"}}.get(name, set())  # dmi-run's
    got = {o for o in offered(name, "--") + offered(name, "-") if o.startswith("--")}
    check(got == named, "what the help names is offered", sorted(got ^ named))
    if name in SOURCES:
        text = (ROOT / "tools" / SOURCES[name]).read_text(encoding="utf-8")
        table = re.search(r"struct option_row \w+\[\] = \{(.*?)\n\};", text, re.S).group(1)
        taken = {"--help", "--version"} | {option for words in re.findall(r'\{ "(--[^"]*)"', table) for option in re.findall(r"--[a-z][a-z-]*", words)}
        check(taken - got <= {"--layer", "--head"} and got - taken == set(), "and is what the tool takes", (sorted(taken ^ got)))
    for option in sorted(got - {"--prompt"}):  # another program's: dmi-sites reference
        said = tool(name, option).stdout
        check(not re.search(rf"(unknown|unrecognized|no) option '?{option}", said), f"{name} takes {option}", said[:300])


def test_options_of_a_command(check):
    show, export, recover = (set(offered("dmi-dump", c, "--")) for c in ("show", "export", "recover"))
    check({"--map", "--rows", "--all", "--json", "--rejected", "--help"} <= show and not show & {"--format", "--force", "--against", "--records"},
          "show has its own", sorted(show))
    check({"--format", "--force", "--layers", "--names"} <= export and not export & {"--map", "--rows"}, "export has its own", sorted(export))
    check(recover == {"--output", "--json", "--rank", "--from", "--help", "--version"}, "recover has few", sorted(recover))
    check("--against" in offered("dmi-dump", "verify", "--a") and "--tolerance" in offered("dmi-dump", "diff", "--t"), "verify and diff theirs")
    check(set(offered("dmi-sites", "match", "--")) == {"--reference", "--model", "--help", "--version"}, "and those of dmi-sites",
          offered("dmi-sites", "match", "--"))
    check("-o" in offered("dmi-dump", "export", "-") and "-D" in offered("dmi-run", "-"), "short ones, too")


def test_values(check):
    usage = tool("dmi-dump", "--help").stdout
    formats = re.findall(r"^  ([\w-]+) ", usage[usage.index("Formats of export"):], re.M)
    for words in (("dmi-dump", "export", "run", "--format", ""), ("dmi-dump", "export", "-f", "")):
        check(offered(*words) == sorted(formats), "the formats of --help", offered(*words))
    check(offered("dmi-dump", "export", "-f", "np") == ["npy", "npz"], "those that begin so")
    usage = tool("dmi-replay", "--help").stdout
    formats = re.findall(r"^  ([\w-]+) ", usage[usage.index("Formats, the default"):], re.M)
    check(offered("dmi-replay", "run", "-f", "") == sorted(formats), "of dmi-replay as well", offered("dmi-replay", "run", "-f", ""))
    check({"file:", "tcp:", "command:"} <= set(offered("dmi-replay", "run", "--to", "")), "its sinks", offered("dmi-replay", "run", "--to", ""))
    presets = re.search(r"--preset NAME +a group of taps: (.*)", tool("dmi-run", "--help").stdout).group(1).split(", ")
    check(offered("dmi-run", "--preset", "") == sorted(presets), "presets are those of the help", offered("dmi-run", "--preset", ""))
    check(offered("dmi-dump", "show", "q", "run", "--tokens", "") == ["all", "last", "prompt", "response"], "tokens")
    check(all(offered(*words, "--layers", "") == ["last", "middle"] for words in (("dmi-dump", "list", "run"), ("dmi-replay", "run"), ("dmi-run",))), "layers")
    check(not offered("dmi-dump", "list", "") and not offered("dmi-dump", "list", "--site", ""), "files and free words are left to bash")
    check("bash" in offered("dmi-run", "--spec", "x", "--", "ba") and not offered("dmi-run", "--", "bash", "--"), "after --, a command")


def test_it_is_installed_for_each(check):
    rules = (ROOT / "tools" / "meson.build").read_text(encoding="utf-8")
    built, installed = (rules[rules.index(begin):] for begin in ("tools = [", "foreach row : tools\n  install_man"))
    check("rename: row[0], install_dir: get_option('datadir') / 'bash-completion' / 'completions'" in installed, "by the name of each tool", installed)
    check(all(f"  ['{name}'," in built for name in TOOLS), "that is built", built)
    said = subprocess.run(["bash", "-c", f'source "{FILE}"; complete -p'], stdout=subprocess.PIPE, text=True, timeout=30).stdout
    check(all(re.search(rf"-F _dmi_complete {name}$", said, re.M) for name in TOOLS), "and bound to each", said)
