# SPDX-License-Identifier: Apache-2.0
"""Comments, messages and documents use the words of docs/glossary.md, and none that it rules out."""
import re

from sources import DATA, c_comments, c_strings, hash_comments, line_of, python_texts, read, tracked

GLOSSARY = "docs/glossary.md"
# Pages whose sentences begin with their subject, and name it.
PLAIN = ("README.md", "CONTRIBUTING.md", "docs/", "include/dmi/")
NOT_YET_PLAIN = ("docs/format.md", "docs/glossary.md", "docs/measurements", "docs/man/", "docs/environment.md")
NOT_PLAIN = (
    re.compile(r"(?:^|[.;:|?!]\s+|\*\s)(Of (?!course\b)(?:[^.,;:|]+),)", re.M),  # what the sentence is about comes first
    re.compile(r"\b(whoever|whomever|nobody(?:'s)?|somebody(?:'s)?|no one|anybody)\b", re.I),  # who acts is named
    re.compile(r"\b((?:nobody|no \w+) (?:\w+ ){0,3}(?:is|was|be) (?:told|said))\b", re.I),
)
C = (".c", ".h", ".cu", ".cuh", ".S", ".def", ".inc")


def ruled_out(glossary):
    """The phrases in the columns "not" of the glossary's tables."""
    phrases, column = [], None
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 3:
            column = None
        elif "not" in cells:
            column = cells.index("not")
        elif column is not None:
            phrases += re.findall(r"`([^`]+)`", cells[column])
    return phrases


def pattern(phrases):
    words = (r"\s+".join(re.escape(word) for word in phrase.split()) for phrase in phrases)
    return re.compile(rf"(?<![\w-])({'|'.join(words)})(?![\w-])", re.I)


def texts(path):
    """(line, text) of what the file says to people: its comments and messages, or all of it."""
    text = read(path)
    first = text.partition("\n")[0]
    if path.suffix in C:
        return c_comments(text) + c_strings(text)
    if path.suffix == ".py" or first.startswith("#!") and "python" in first:
        return python_texts(text)
    if path.suffix == ".mutant":
        return [(1, text.partition("\nIn ")[0])]
    if path.suffix in (".md", ".1", ".yaml") or first.startswith("#!"):
        return [(1, text)]
    return hash_comments(text)


def found(paths, wrong):
    """(file, line, phrase) of each ruled out phrase in the files."""
    for path in paths:
        for line, text in texts(path):
            for match in wrong.finditer(text):
                phrase = " ".join(match.group(1).lower().split())
                yield str(path), line + line_of(text, match.start()) - 1, phrase


def files():
    return [path for path in tracked() if not str(path).startswith(DATA) and path.name != "LICENSE"
            and str(path) not in (GLOSSARY, "tests/static/test_words.py") and path.suffix not in (".safetensors", ".png")]


def test_no_word_that_the_glossary_rules_out():
    complaints = [f"{path}:{line}: {phrase}" for path, line, phrase in found(files(), pattern(ruled_out(read(GLOSSARY))))]
    assert not complaints, "\n".join(complaints)


def not_plain(text):
    """[(line, words)] of sentences that are to be turned round; code and quoted messages apart."""
    prose = re.sub(r"(?ms)^```.*?^```$", lambda code: "\n" * code[0].count("\n"), text)
    prose = re.sub(r'"[^"\n]*"', lambda quoted: '"' * len(quoted[0]), prose)  # messages have their own words
    return [(line_of(prose, match.start(1)), " ".join(match[1].split())) for wrong in NOT_PLAIN for match in wrong.finditer(prose)]


def test_rewritten_pages_name_the_subject_first():
    complaints = [f"{path}:{line + at - 1}: {words}" for path in tracked()
                  if str(path).startswith(PLAIN) and not str(path).startswith(NOT_YET_PLAIN)
                  for line, text in texts(path) for at, words in not_plain(text)]
    assert not complaints, "\n".join(complaints)


def test_the_check_of_sentences_sees_what_is_wrong():
    text = ("Of a range's last kernel, which this may be, nothing is said.\nIt ends. Of one without, an event does.\n| a | Of it, much |\n"
            "Whoever asks. Of course. A part of a run, or two.\n```\nnobody\n```\nIt says \"nobody knows\".\n")
    assert [(line, words.split(",")[0]) for line, words in sorted(not_plain(text))] == [
        (1, "Of a range's last kernel"), (2, "Of one without"), (3, "Of it"), (4, "Whoever")]


def test_the_check_sees_what_is_wrong():
    phrases = ruled_out("| term | meaning | not |\n|---|---|---|\n| a | `b` | `c d`, `e` |\n\n| not | but |\n|---|---|\n"
                        "| `f` | `g` |\n")
    assert phrases == ["c d", "e", "f"]
    wrong = pattern(phrases)
    assert [match.group(1) for match in wrong.finditer("C\n d, x-e, e_, ef; F.")] == ["C\n d", "F"]
