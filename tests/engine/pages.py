# SPDX-License-Identifier: Apache-2.0
"""Run what a page shows, as a reader would: in a fresh shell, in a clone, with nothing set that the page does not set.

A page's blocks are read in order. A block of ```c, ```python or ```yaml becomes the file that the paragraph before it names
last ("`look.py` does ...:"). In a block of ```console a line "$ CMD" is typed, lines "> ..." continue it, and the other
lines are what it prints on a terminal, where "..." stands for any lines. Floats may vary by 3%, seconds and rates as they like.
"""
import collections
import os
import re
import shutil
import subprocess

from harness import BUILD, ROOT

Ran = collections.namedtuple("Ran", "command wanted printed status")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)
RUN_NAME = re.compile(r"[\w.-]+-\d+-\d{8}T\d{6}\.\d+Z")
FLOAT = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")
TIMED = re.compile(r"\d+(?:\.\d+)?(?= s\b| ms\b| a second)")
MARK = "<<status of "
ENTER = "cd ~/dmi && ./bootstrap exec -- bash"


def section(page, title=None):
    """The text of a page of this clone, or of its section @title."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text if title is None else text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def commands(console):
    """[(command, lines that it prints)]"""
    found = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.startswith("> ") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
        else:
            found[-1][1].append(line)
    return found


def script(text):
    """([(file, content)], [(command, lines)]) of a page's text."""
    files, typed, end = [], [], 0
    for block in FENCE.finditer(text):
        named = re.findall(r"`([\w-]+\.(?:c|py|yaml))`", text[end:block.start()].strip().split("\n\n")[-1])
        end = block.end()
        if block[1] == "console":
            typed += commands(block[2])
        elif named:
            files.append((named[-1], block[2]))
    return files, typed


def clone(folder):
    """A clone at ~/dmi of @folder: this source tree, built; what it writes stays there. ./bootstrap finds nothing to build."""
    home = folder / "dmi"
    (home / "build").mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in ("build", "demo", "bootstrap", ".git"):
            (home / path.name).symlink_to(path)
    for path in (ROOT / "build").iterdir():
        if path.name not in ("demo", "meson", "log", "man"):
            (home / "build" / path.name).symlink_to(path)
    (home / "build" / "meson").symlink_to(BUILD)
    shutil.copytree(ROOT / "demo", home / "demo")
    (home / "bootstrap").write_text(re.sub(r"(?m)^    prepare (build|product)$", "    :", (ROOT / "bootstrap").read_text()))
    (home / "bootstrap").chmod(0o755)
    return home


# What a command that wrote a file says the second time, and the commands that have the option.
THERE = "is there already: --force replaces it"
FORCED = re.compile(r"(?m)^((?:\$ )?(?:\./bootstrap exec -- )?(?:dmi-sites record|dmi-dump export|dmi-view|python \S+/difference_of_means\.py))(?= )")
# What tools, and Python, say of a folder with several runs: the latest is taken.
SEVERAL = re.compile(r"^.*holds \d+ runs; this is the latest, .*$|^  +with dmi\.open\(.*$")


def run(folder, text, timeout=300, installed=None, shell=("bash",), again=False):
    """
    Type the commands of @text in a fresh shell of /home/you, which is @folder. @installed: what a shell has in its environment where the wheel is installed, and no clone
    is; there the shell that ./bootstrap opens is left out. @shell: words that start it. @again: they were typed before in that folder. Return: a Ran of each; wanted and printed are lines.
    """
    home, (files, typed) = folder / "dmi", script(text)
    if installed:
        home.mkdir(exist_ok=True)
        typed = [one for one in typed if one[0] != ENTER]
    elif not again:
        clone(folder)
    for name, content in files:
        (home / name).write_text(content)
    env = {"HOME": str(folder), "LANG": "C.UTF-8", **(installed or {"PATH": "/usr/local/bin:/usr/bin:/bin", "DMI_DRIVER": "standin"})}
    lines = "".join(f"{command}\necho '{MARK}{i}:' $?\n" for i, (command, _) in enumerate(typed))
    # A pipe, so that a shell that a command starts reads the commands after it.
    done = subprocess.run([*shell], input=f"cd ~/dmi\n{lines}", env=env, cwd=folder, text=True, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    pieces = re.split(rf"{MARK}\d+: (\d+)\n", done.stdout.replace(str(folder), "/home/you"))
    printed, statuses = pieces[0::2], [int(status) for status in pieces[1::2]]
    statuses += [-1] * (len(typed) - len(statuses))
    return [Ran(command, wanted, said.splitlines(), status) for (command, wanted), said, status in zip(typed, printed + [""] * len(typed), statuses)]


def same(wanted, line):
    """Is @line what the page shows, but for what varies?"""
    def plain(text):
        return FLOAT.sub("#", " ".join(TIMED.sub("#", RUN_NAME.sub("RUN", text)).split()))

    def floats(text):
        return [float(x) for x in FLOAT.findall(TIMED.sub("", RUN_NAME.sub("", text)))]
    return plain(wanted) == plain(line) and all(
        abs(a - b) <= max(0.03 * abs(a), 0.01) for a, b in zip(floats(wanted), floats(line), strict=True))


def first_difference(wanted, printed):
    """None, or the first line of the page that was not printed in its place."""
    at, anywhere = 0, False
    for line in wanted:
        if line == "...":
            anywhere = True
            continue
        found = next((i for i in range(at, len(printed)) if same(line, printed[i])), None) if anywhere else (
            at if at < len(printed) and same(line, printed[at]) else None)
        if found is None:
            return line
        at, anywhere = found + 1, False
    return None if anywhere or at == len(printed) else f"(nothing, but it printed) {printed[at]}"


def check_page(check, folder, text, timeout=300, **more):
    """
    check() that each command of @text succeeds and prints what the page shows; and that it does so once more, as a reader does who types the page again: but for files
    that a command has written, of which it says that --force replaces them. @more and return: as of run(), of the first time.
    """
    ran = run(folder, text, timeout, **more)
    check(ran, "the page has commands")
    check_shown(check, ran, "")
    check_shown(check, without_several(run(folder, FORCED.sub(r"\1 --force", text), timeout, again=True, **more)), ", again")
    refused = [one for one in ran if FORCED.search(one.command)]
    for command, _, printed, status in run(folder, "```console\n" + "".join(f"$ {line}\n" for line in [ENTER, *(one.command for one in refused)]) + "```\n", timeout, again=True, **more)[
            0 if more.get("installed") else 1:] if refused else ():
        check(status == 2 and printed and printed[-1].endswith(THERE), f"{command}: overwrites nothing", [status, *printed])
    return ran


def check_shown(check, ran, when):
    for command, wanted, printed, status in ran:
        check(status == 0, f"{command}: succeeds{when}", [status, *printed[-20:]])
        difference = first_difference(wanted, printed)
        check(difference is None, f"{command}: prints what the page shows{when}", [f"not there: {difference}", *printed])


def without_several(ran):
    """Without the lines about a folder with several runs. A command that is the first to read one must have such a line: that is for tests of the tools."""
    return [one._replace(printed=[line for line in one.printed if not SEVERAL.match(line)]) for one in ran]


def have_environment():
    """Is there what ./bootstrap exec runs commands with?"""
    return (ROOT / "build" / "venv" / "bin" / "python").exists() and BUILD.resolve() == (ROOT / "build" / "meson").resolve() and \
        not os.environ.get("DMI_TEST_RUNTIME")
