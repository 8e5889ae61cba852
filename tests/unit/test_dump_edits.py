# SPDX-License-Identifier: Apache-2.0
"""Notes of changes of edits that nobody's library wrote: dmi-dump shows those that can be, and a file's name in one leads to nothing else."""
import json
import shutil
import subprocess

import pytest

from harness import BUILD, DMI_DUMP

MAKE = BUILD / "tests" / "unit" / "make_schedule"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE)
EDIT = '{"name": "e", "site": "q", "uid": 1, "hash": "0", "number": 0}'
STEP = ["step 0 1 a:0:1:0:2:1:0", "rec 0 0 0 2 1"]
NOTES = {  # a note's members: is it one of a change of edits?
    f', "version": 2, "edits": [{EDIT}]': True, ', "version": 2, "edits": []': True, ', "version": "2", "edits": []': False, ', "version": 2, "edits": {}': False,
    ', "version": 2, "edits": [7]': False, ', "version": 2, "edits": [{"name": ""}]': False, ', "version": -1, "edits": [{"name": "e", "off": 7, "times": "x", "number": -3}]': True,
    ', "version": 2, "edits": [{"name": "\\u001b[31m\\n", "site": [], "uid": {}, "hash": 5}]': True, ', "edit": "e", "request": "r", "missed": {"odd": 1}': False, "": False}
FILES = ["manifest.json", "seg-000000.dmi", "../x", "edits-1.pack", "edits-000000.pack/x", "edits-9999999999.pack", ""]


def make(folder, lines):
    done = subprocess.run([MAKE, folder, "job", "0", "1", "0", "1"], input="".join(f"{line}\n" for line in lines), text=True, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done.stderr
    return next(p for p in folder.iterdir() if p.is_dir()) if not (folder / "manifest.json").exists() else folder


def dump(*words):
    done = subprocess.run([DMI_DUMP, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, errors="surrogateescape")
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("i", range(len(NOTES)))
def test_odd_notes(check, tmp_path, i):
    note, is_one = list(NOTES.items())[i]
    run = make(tmp_path / "run", [*STEP, f"change {note}"] if note else STEP)
    code, said, wrong = dump("edits", run, "--json")
    check(code == 0 and len(json.loads(said)["changes"]) == is_one, "it is shown where it is one", (said, wrong))
    code, said, wrong = dump("edits", run)
    check(code == 0 and "\x1b" not in said and ("THEN IN FORCE" in said) == is_one, "in text", (said, wrong))
    for words in (["list", run], ["verify", run], ["diff", run, run]):
        check(dump(*words)[0] == 0, f"{words[0]} goes on", dump(*words))
    code, said, wrong = dump("edits", run, "--export", tmp_path / "out.yaml")
    in_force = is_one and '"edits": []' not in note
    check((code, (tmp_path / "out.yaml").exists()) == ((2, False) if in_force else (0, True)), "what no file has is not exported", (code, wrong))


def test_names_of_files(check, tmp_path):
    """A note may name any file: verify says so, and recover copies none that is not of edits."""
    for n, name in enumerate(FILES):
        run = make(tmp_path / f"run{n}", [*STEP, f', "version": 2, "edits": [], "file": {json.dumps(name)}, "bytes": 1, "xxh3": "0"'.join(["change ", ""])])
        code, _, wrong = dump("verify", run)
        check(code == 1 and "names a file of edits that is none" in wrong, f"{name!r} is named", (code, wrong))
        code, _, wrong = dump("recover", run, "-o", tmp_path / "new")
        verified = dump("verify", tmp_path / "new")
        check("seg-000000.dmi" not in verified[2] and "manifest.json" not in verified[2] and verified[1].count("record") > 0, f"{name!r}: the new run is a run", (wrong, verified))
        shutil.rmtree(tmp_path / "new")
