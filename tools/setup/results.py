#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The totals of meson's test logs: results.py NAME=testlog.json ...

Prints a line a suite, then what was skipped and what failed, by name, and last of all
`N passed, N failed, N skipped`.  Counts checks inside a test program where its output tells them
(Check, TAP as tests/run_pytest.py prints it, or a line `N passed, N failed`), the program as one test otherwise.
Exit status 1 if anything failed or nothing ran at all.
"""
import json
import re
import sys

CHECK = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", re.M)
TAP = re.compile(r"^(not )?ok\b[ \t]*\d*[ \t]*-?[ \t]*([^#\n]*)(#[ \t]*skip\S*[ \t]*(.*))?", re.M | re.I)
TOTALS = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)


def tally(text):
    """Return (passed, [failed by name], [(name, reason) skipped]) inside one program's output, or None."""
    passed, failed, skipped = 0, [], []
    found = False
    for total, failures, errors in CHECK.findall(text):
        found = True
        failed += [""] * (int(failures) + int(errors))
        passed += int(total) - int(failures) - int(errors)
    if re.search(r"^1\.\.\d+", text, re.M):
        for bad, name, skip, reason in TAP.findall(text):
            found = True
            if skip:
                skipped.append((name.strip(), reason.strip()))
            elif bad:
                failed.append(name.strip())
            else:
                passed += 1
    for good, bad, left_out in TOTALS.findall(text):
        found = True
        passed += int(good)
        failed += [""] * int(bad)
        skipped += [("(unnamed)", "")] * int(left_out or 0)
    return (passed, failed, skipped) if found else None


def split_name(name):
    """meson's "dmi:unit+tsan / test_ring" -> ("unit", "test_ring")."""
    suite, _, test = name.rpartition(" / ")
    return suite.partition(":")[2].split("+")[0] or "other", test or name


def main():
    rows, failures, skips = {}, [], []
    for argument in sys.argv[1:]:
        label, _, path = argument.partition("=")
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                tests = [json.loads(line) for line in file if line.strip()]
        except OSError as error:
            failures.append((label, f"no test log: {error.strerror}: {path}"))
            rows.setdefault(label, [0, 0, 0, 0.0])[1] += 1
            continue
        for test in tests:
            suite, name = split_name(test["name"])
            if label != "plain":
                suite = label
            text = test.get("stdout", "") + "\n" + test.get("stderr", "")
            result = test["result"]
            row = rows.setdefault(suite, [0, 0, 0, 0.0])
            row[3] += test.get("duration", 0.0)
            if result == "SKIP":
                reason = text.strip().splitlines()
                skips.append((f"{suite}/{name}", re.sub(r"(?i)^(1\.\.0 # )?skip(ped)?:? *", "", reason[-1]) if reason else ""))
                row[2] += 1
                continue
            passed, failed, skipped = tally(text) or (int(result in ("OK", "EXPECTEDFAIL")), [], [])
            if result not in ("OK", "EXPECTEDFAIL"):
                failures.append((f"{suite}/{name}", f"{result.lower()}, exit status {test.get('returncode')}"))
                failures += [(f"{suite}/{name}: {inner}", "") for inner in failed if inner]
                failed = failed or [""]
            elif failed:
                failures.append((f"{suite}/{name}", f"{len(failed)} inside, though its exit status was 0"))
            skips += [(f"{suite}/{name}: {inner}", reason) for inner, reason in skipped]
            row[0] += passed
            row[1] += len(failed)
            row[2] += len(skipped)

    print(f"{'suite':<16}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for suite, (passed, failed, skipped, seconds) in rows.items():
        print(f"{suite:<16}{passed:>8}{failed:>8}{skipped:>9}{seconds:>9.1f}")
    for title, items in (("skipped", skips), ("FAILED", failures)):
        for name, reason in items:
            print(f"{title}: {name}" + (f": {reason}" if reason else ""))
    passed, failed, skipped = (sum(row[i] for row in rows.values()) for i in range(3))
    if passed == 0 and failed == 0:
        print("FAILED: no test ran")
        failed = 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
