# SPDX-License-Identifier: Apache-2.0
"""The answers of a run on a GPU, a row each, and the file that holds each row from the moment at which it is known.

The file has a JSON object a line: {"machine": ...}; {"begin": ...}, {"row": ...} and {"end": ...} of an entry of the queue; {"kept": ...},
with which later entries compare. Each line is written at once and synced; a line that a kill has cut is none.
"""
import collections
import json
import os
import threading

# ok, differs: there was an expectation. figure: there was none; off: it is off its estimate by half. crashed: a process died of a
# signal, or did not end.
VERDICTS = ("ok", "differs", "crashed", "skipped", "figure", "off")
Row = collections.namedtuple("Row", "entry question answer expected verdict reason relied_on")
End = collections.namedtuple("End", "entry answered seconds log")
FILE_BYTES = 16 << 20
LOG_BYTES = 12 << 20   # beyond this, the file takes rows alone
PRINTED = 12000        # characters of the table that is printed at the end


class Lines:
    """Lines appended to a file. It prints one sentence at the first failure, and tries what was not written again with the next line."""

    def __init__(self, path, goes_on):
        self.path, self.fd, self.unwritten, self.told = path, None, b"", False
        try:
            self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | (0 if goes_on else os.O_TRUNC), 0o644)
            if os.fstat(self.fd).st_size:
                self.unwritten = b"\n"  # after a line that a kill has cut
        except OSError as problem:
            self.tell(problem)

    def tell(self, problem):
        if not self.told:
            print(f"{self.path} cannot be written: {problem.strerror}. The run goes on; its rows are printed at the end.", flush=True)
        self.told = True

    def add(self, line):
        if self.fd is None:
            return
        data = self.unwritten + line.encode() + b"\n"
        try:
            if self.size() + len(data) > FILE_BYTES:
                raise OSError(0, f"it has {FILE_BYTES >> 20} MiB")
            n = os.write(self.fd, data)
            self.unwritten = data[n:]
            os.fsync(self.fd)
        except OSError as problem:
            self.unwritten = data if len(data) < LOG_BYTES else b""
            self.tell(problem)

    def size(self):
        return os.fstat(self.fd).st_size if self.fd is not None else 0

    def is_whole(self):
        return self.fd is not None and not self.unwritten.strip()


def read(path):
    """[(kind, value)] of the lines of a file; a line that is none of ours is left out."""
    found = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                (kind, value), = json.loads(line).items()
                found.append((kind, {"row": lambda v: Row(**v), "end": lambda v: End(**v)}.get(kind, lambda v: v)(value)))
            except (ValueError, TypeError, AttributeError):
                continue
    return found


def rows_of(found):
    """The rows of what read() found; of an entry that was asked twice, those of the last time."""
    rows = []
    for kind, value in found:
        if kind == "begin":
            rows = [row for row in rows if row.entry != value]
        elif kind == "row":
            rows.append(value)
    return rows


class Table:
    """Rows of entries, from any thread. @path: its file, or None; @goes_on: which has an earlier run's answers"""

    def __init__(self, path=None, goes_on=False):
        self.machine, self.rows, self.ends, self.kept = {}, [], {}, {}
        self.lines, self.lock, self.closed = Lines(path, goes_on) if path else None, threading.RLock(), False

    def go_on(self, earlier):
        """Take what read() found of an earlier run: the rows of entries that ended. The others are asked again."""
        for kind, value in earlier:
            if kind == "machine":
                self.machine = value
            elif kind == "end":
                self.ends[value.entry] = value
            elif kind == "kept":
                self.kept.update(value)
        self.ends = {name: end for name, end in self.ends.items() if end.answered}
        self.rows = [row for row in rows_of(earlier) if row.entry in self.ends]

    def copy(self):
        """Into the file: what go_on() took, if it came from another one."""
        for value in self.rows:
            self.write("row", value._asdict())
        for end in self.ends.values():
            self.write("end", end._asdict())
        if self.kept:
            self.write("kept", self.kept)

    def write(self, kind, value):
        if self.lines:
            self.lines.add(json.dumps({kind: value}))

    def begin(self, entry):
        self.write("begin", entry)

    def is_of(self, machine):
        self.machine = machine
        self.write("machine", machine)

    def add(self, entry, question, answer, expected="", verdict=None, reason="", relied_on=True):
        """@verdict: by default, whether @answer is @expected. @relied_on: what differs here is a failure."""
        verdict = verdict or ("ok" if str(answer) == str(expected) else "differs")
        assert verdict in VERDICTS, verdict
        row = Row(entry, question, str(answer)[:2000], str(expected)[:500], verdict, str(reason)[:500], relied_on)
        with self.lock:
            if not self.closed:
                self.rows.append(row)
                self.write("row", row._asdict())
        return verdict in ("ok", "figure")

    def keep(self, name, value):
        """For entries that compare with it, also in a later run."""
        with self.lock:
            self.kept[name] = value
            self.write("kept", {name: value})

    def end(self, entry, answered, seconds, log):
        with self.lock:
            if self.closed:
                return
            if self.lines and self.lines.size() > LOG_BYTES:
                log = "not kept: the file is full"
            self.ends[entry] = End(entry, answered, round(seconds, 1), log)
            self.write("end", self.ends[entry]._asdict())

    def close(self):
        with self.lock:
            self.closed = True

    # ---- as text

    def failures(self):
        return [row for row in self.rows if row.relied_on and row.verdict in ("differs", "crashed")]

    def counts(self, entry=None):
        rows = [row for row in self.rows if entry in (None, row.entry)]
        return {verdict: n for verdict in VERDICTS if (n := sum(row.verdict == verdict for row in rows)) or entry is None}

    def head(self):
        return [f"{key}: {value}" for key, value in self.machine.items()]

    def foot(self):
        failures = self.failures()
        return ["", ", ".join(f"{n} {verdict}" for verdict, n in self.counts().items()),
                "What the design relies on and is not so:" if failures else "Nothing that the design relies on is otherwise.",
                *map(text_of, failures)]

    def text(self):
        return "\n".join(self.head() + [""] + [text_of(row) for row in self.rows] + self.foot()) + "\n"

    def skipped(self):
        """A line for each reason."""
        names = {}
        for row in self.rows:
            if row.verdict == "skipped":
                names.setdefault(row.reason, []).append(row.entry)
        return [f"skipped  {reason}: {', '.join(dict.fromkeys(entries))}" for reason, entries in names.items()]

    def short(self):
        """What fits PRINTED characters: what is otherwise, then figures in the order of the queue."""
        foot = [cut(line, 300) for line in [""] + self.skipped() + self.foot()]
        lines, room = self.head() + [""], PRINTED - 300
        room -= sum(len(line) + 1 for line in lines)
        foot = within(foot, room)
        room -= sum(len(line) + 1 for line in foot)
        figures = [cut(text_of(row), 170) for row in self.rows if row.verdict in ("figure", "off")]
        shown = within(figures, room)
        if len(figures) > len(shown):
            shown.append(f"... and {len(figures) - len(shown)} more figures")
        return "\n".join(lines + shown + foot) + "\n"


def within(lines, n):
    """The first of @lines, as many as @n characters hold."""
    found = []
    for line in lines:
        n -= len(line) + 1
        if n < 0:
            break
        found.append(line)
    return found


def cut(text, n):
    return text if len(text) <= n else text[:n - 3] + "..."


def text_of(row):
    mark = row.verdict + ("" if row.relied_on or row.verdict != "differs" else "*")
    text = f"{mark:8} {row.entry}: {row.question}".rstrip(" :")
    if row.answer:
        text += f": {row.answer}"
    if row.expected and row.verdict in ("differs", "crashed", "off"):
        text += f" (expected: {row.expected})"
    if row.reason:
        text += f" [{row.reason}]"
    return text


def show(path, names=None):
    """Return: what a file holds, as text; of the entries @names their rows, and what their processes said."""
    found, table = read(path), Table()
    table.rows = [row for row in rows_of(found) if names is None or row.entry in names]
    table.machine = next((value for kind, value in reversed(found) if kind == "machine"), {})
    return table.text() + "".join(f"\n{value.entry}:\n{value.log}" for kind, value in found if kind == "end" and value.entry in (names or ()))
