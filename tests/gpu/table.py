# SPDX-License-Identifier: Apache-2.0
"""The table of a run on a GPU: one row an answer, as text for people and as JSON."""
import collections
import json

# ok, differs: there was an expectation. figure: there was none. crashed: a process ended by a signal, or did not end.
VERDICTS = ("ok", "differs", "crashed", "skipped", "figure")
Row = collections.namedtuple("Row", "group case question answer expected verdict reason relied_on")


class Table:
    def __init__(self, on_row=None):
        self.rows, self.facts, self.on_row = [], {}, on_row

    def add(self, group, case, question, answer, expected="", verdict=None, reason="", relied_on=True):
        """@verdict: by default, whether @answer is @expected. @relied_on: what differs here is a failure."""
        verdict = verdict or ("ok" if str(answer) == str(expected) else "differs")
        assert verdict in VERDICTS, verdict
        row = Row(group, case, question, str(answer), str(expected), verdict, str(reason), relied_on)
        self.rows.append(row)
        if self.on_row:
            self.on_row(row)
        return verdict in ("ok", "figure")

    def skip(self, group, case, reason):
        self.add(group, case, "", "", verdict="skipped", reason=reason)

    def failures(self):
        return [row for row in self.rows if row.relied_on and row.verdict in ("differs", "crashed")]

    def counts(self):
        return {verdict: sum(row.verdict == verdict for row in self.rows) for verdict in VERDICTS}

    def json(self):
        return json.dumps({"format": 1, **self.facts, "counts": self.counts(), "rows": [row._asdict() for row in self.rows]}, indent=1)

    def text(self):
        lines = [f"{key}: {value}" for key, value in self.facts.items()] + [""]
        lines += [text_of(row) for row in self.rows]
        lines += ["", ", ".join(f"{n} {verdict}" for verdict, n in self.counts().items())]
        failures = self.failures()
        lines += ["", "What the design relies on and is not so:" if failures else "Nothing that the design relies on is otherwise."]
        lines += [text_of(row) for row in failures]
        return "\n".join(lines) + "\n"


def text_of(row):
    mark = row.verdict + ("" if row.relied_on or row.verdict != "differs" else "*")
    text = f"{mark:8} {row.group}/{row.case}: {row.question}".rstrip(" :")
    if row.answer:
        text += f": {row.answer}"
    if row.expected and row.verdict in ("differs", "crashed"):
        text += f" (expected: {row.expected})"
    if row.reason:
        text += f" [{row.reason}]"
    return text
