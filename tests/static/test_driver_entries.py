# SPDX-License-Identifier: Apache-2.0
"""The library calls no entry point that the driver may lack: what is newer than the oldest driver is asked for first."""
import re

from harness import ROOT, STANDIN_VERSIONS
from tree import tracked

SINCE = {symbol: int(version) for symbol, version in
         re.findall(r"^DRIVER_ENTRY\((\w+), \w+, (\d+), \w+\)", (ROOT / "tests/standin/driver.def").read_text(), re.M)}
CALL = re.compile(r"\bdriver_table\.(cu\w+)\(|\bTRY\((cu\w+),")
GUARD = re.compile(r"\bdriver_table\.(cu\w+)\b(?!\()")


def test_newer_entry_points_are_guarded():
    files = [path for path in tracked(".c") if path.parts[0] == "preload"]
    calls, wrong = 0, []
    for path in files:
        text = (ROOT / path).read_text(encoding="utf-8")
        guarded = set(GUARD.findall(text))
        for name in {a or b for a, b in CALL.findall(text)}:
            calls += 1
            if SINCE[name] > STANDIN_VERSIONS[0] and name not in guarded:
                wrong.append(f"{path} calls {name} (since {SINCE[name]}) without asking whether there is one")
    assert calls > 40
    assert not wrong, "\n".join(wrong)


def test_the_table_knows_the_version_of_each():
    named = set(re.findall(r"^(?:HOOK|USE)\((\w+)\)", (ROOT / "preload/hooks.def").read_text(), re.M))
    assert not named - set(SINCE)
