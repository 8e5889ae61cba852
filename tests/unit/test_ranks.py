# SPDX-License-Identifier: Apache-2.0
"""Random schedules of an engine (chunks, drafts, preemption, ends) on several ranks: what readers make of the runs is
what a model of a few lines says."""
import json
import random
import shutil
import struct
import subprocess

import pytest

from harness import BUILD, DMI_DUMP

MAKE = BUILD / "tests" / "unit" / "make_schedule"
pytestmark = pytest.mark.built(DMI_DUMP, MAKE)
PREFILL, DECODE, DRAFT = 1, 2, 3
LAYERS, WIDTH = 4, 6


def dump(*words, status=0):
    done = subprocess.run([DMI_DUMP, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == status, (words, done.returncode, done.stdout[-900:], done.stderr[-900:])
    return done


def facts(*words, status=0):
    return json.loads(dump(*words, "--json", status=status).stdout)


def exported(out, path, *words, status=0):
    """{key: [(position, [values])]}"""
    dump("export", out, "--force", "-o", path, *words, status=status)
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + n]), data[8 + n:]
    metadata = header.pop("__metadata__")
    about, lists = json.loads(metadata["tensors"]), json.loads(metadata["positions"])
    tensors = {}
    for key, entry in header.items():
        positions = [first + i for first, count in lists[about[key]["positions"]] for i in range(count)]
        begin, end = entry["data_offsets"]
        values = struct.unpack(f"<{(end - begin) // 4}{'i' if entry['dtype'] == 'I32' else 'f'}", body[begin:end])
        width = len(values) // max(1, len(positions))
        tensors[key] = [(p, list(map(int, values[i * width:(i + 1) * width]))) for i, p in enumerate(positions)]
    path.unlink()
    return tensors


class Request:
    def __init__(self, name, prompt):
        self.name, self.prompt, self.at, self.left, self.preempted, self.rejected = name, prompt, 0, random.randint(1, 12), 0, 0
        self.end = 0


class Schedule:
    """Steps, each with spans in rows; what each rank captures of them is the same, but for its part."""

    def __init__(self, seed, n_steps=30):
        random.seed(seed)
        self.steps, self.lines, self.requests = [], [], []
        running = []
        for number in range(n_steps):
            if random.random() < 0.5 and len(running) < 5:
                self.requests.append(Request(f"r{len(self.requests)}", random.randint(1, 9)))
                running.append(self.requests[-1])
            if running and random.random() < 0.12:
                victim = random.choice(running)
                if victim.at:
                    victim.at = random.choice([0, random.randrange(victim.at)])
                    victim.preempted += 1
            self.step(number, running)

    def step(self, number, running):
        spans, later, row = [], [], random.randint(0, 1)
        for r in random.sample(running, random.randint(0, len(running))):
            known = max(r.prompt, r.end)  # tokens that there are
            if r.at < known:
                n, phase = random.randint(1, known - r.at), PREFILL
                accepted = n
            else:
                n, phase = (1, DECODE) if random.random() < 0.5 else (random.randint(1, 4), DRAFT)
                accepted = n if phase == DECODE else random.randint(1, n)
                said = phase == DRAFT and (accepted < n or random.random() < 0.5)
                later += [("accept", r, number, accepted)] if said else []
            spans.append((r, row, n, r.at, phase, accepted))
            row += n
            r.rejected += n - accepted
            r.at += accepted
            r.end = max(r.end, r.at)
            if r.at > r.prompt:
                r.left -= 1
            if r.left <= 0:
                later.append(("end", r, 1))
                running.remove(r)
        row += random.randint(0, 2)
        if row > 60:
            row = max(s[1] + s[2] for s in spans)
        random.shuffle(spans)
        self.steps.append((number, row, spans, later))

    def script(self, tp=0, sizes=(WIDTH,), layers=range(LAYERS), outcomes=True, lose=lambda step, site, layer: False):
        """What rank @tp writes; sizes: columns of `q` on each rank."""
        lines = []
        for index, (number, rows, spans, later) in enumerate(self.steps):
            words = [f"{r.name}:{row}:{n}:{at}:{phase}:{r.prompt}:0" for r, row, n, at, phase, _ in spans]
            lines.append(f"step {number} {rows} " + " ".join(words))
            for layer in layers:
                lines += [f"rec {site} {layer} {column} {n} {times}" for site, column, n, times in (
                    (0, sum(sizes[:tp]), sizes[tp], 1), (1, 0, WIDTH, tp + 1), (2, 0, WIDTH, 1)) if not lose(index, site, layer)]
            if 0 in layers and not lose(index, 3, -1):
                lines.append("rec 3 -1 0 3 1")
            for what, r, *more in later if outcomes else []:
                lines.append(" ".join(map(str, (what, r.name, *more))))
        return "\n".join(lines) + "\n"

    def expected(self, n_ranks=1, layers=range(LAYERS), lost=lambda step, site, layer: False):
        tensors = {}
        factor = {0: 1, 1: n_ranks * (n_ranks + 1) // 2, 2: 1, 3: 1}
        for index, (_, _, spans, _) in enumerate(self.steps):
            for slot, (r, row, n, at, _, accepted) in enumerate(spans):
                for site, name in enumerate(("q", "o", "h")):
                    for layer in layers:
                        if lost(index, site, layer):
                            continue
                        rows = tensors.setdefault(f"{r.name}/{name}.{layer}", {})
                        for i in range(accepted):
                            base = (((layer + 1) * 128 + index) * 64 + row + i) * 64
                            rows[at + i] = [factor[site] * (base + c) for c in range(WIDTH)]
                if 0 in layers and accepted == n:
                    rows = tensors.setdefault(f"{r.name}/head", {})
                    rows[at + n - 1] = [(index * 64 + slot) * 64 + c for c in range(3)]
        return {key: sorted(rows.items()) for key, rows in tensors.items()}


def write(out, script, tp=0, n_tp=1, pp=0, n_pp=1, job="job", more=()):
    subprocess.run([MAKE, out, job, str(tp), str(n_tp), str(pp), str(n_pp), *more], input=script, text=True, check=True,
                   stdout=subprocess.PIPE, timeout=60)


def differences(got, want):
    return [(k, got.get(k), want.get(k)) for k in sorted({**got, **want}) if got.get(k) != want.get(k)][:2]


@pytest.mark.parametrize("seed", range(8))
def test_random_schedules(seed, tmp_path, check):
    plan = Schedule(seed)
    write(tmp_path / "one", plan.script())
    got = exported(tmp_path / "one", tmp_path / "x")
    check(got == plan.expected(), "one rank", differences(got, plan.expected()))
    sizes = random.choice([(3, 3), (4, 2), (1, 5)])
    # the engine's first rank alone may know what was accepted, or the last one
    for tp in (0, 1):
        write(tmp_path / "two", plan.script(tp, sizes, outcomes=tp == seed % 2), tp, 2)
    got = exported(tmp_path / "two", tmp_path / "x")
    check(got == plan.expected(2), "two ranks, joined", differences(got, plan.expected(2)))
    told = {r["request"]: (r["rejected"], r["end_position"], r["prompt"]) for r in facts("list", tmp_path / "two", "--requests")["requests"]}
    want = {r.name: (r.rejected, r.end, r.prompt) for r in plan.requests if r.end}
    check(told == want, "requests are those of the command, not of each rank", (told, want))
    check(facts("verify", tmp_path / "two")["intact"], "and nothing is wrong")


def test_stages(tmp_path, check):
    plan = Schedule(100)
    for tp in (0, 1):
        for pp in (0, 1):
            write(tmp_path / "four", plan.script(tp, (2, 4), range(2 * pp, 2 * pp + 2)), tp, 2, pp, 2)
    got = exported(tmp_path / "four", tmp_path / "x")
    check(got == plan.expected(2), "two stages of two ranks", differences(got, plan.expected(2)))
    run = facts("list", tmp_path / "four")
    check([r["tp"] + r["pp"] for r in sorted(run["ranks"], key=lambda r: (r["pp"], r["tp"]))] ==
          [[0, 2, 0, 2], [1, 2, 0, 2], [0, 2, 1, 2], [1, 2, 1, 2]], "which ranks they are", run["ranks"])
    text = dump("list", tmp_path / "four").stdout
    check("tp 1 of 2, pp 0 of 2: " in text, "in text, too", text)


def test_one_rank_alone(tmp_path, check):
    plan = Schedule(101)
    for tp in (0, 1):
        write(tmp_path / "two", plan.script(tp, (4, 2)), tp, 2)
    whole, first, second = (exported(tmp_path / "two", tmp_path / "x", *words) for words in
                            ((), ("--rank", "0"), ("--rank", "tp=1")))
    joined = {key: [(p, a[1] + b[1]) for (p, _), a, b in zip(rows, first[key], second[key])] for key, rows in whole.items() if "/q." in key}
    check(joined == {key: whole[key] for key in joined}, "the parts of a divided tensor, in the order of ranks")
    check(all(len(rows[0][1]) == 2 for key, rows in second.items() if "/q." in key), "each by itself")
    key = next(key for key in whole if "/o." in key)
    check([[2 * v for v in a[1]] for a in first[key]] == [b[1] for b in second[key]], "and of a sum", (first[key], second[key]))
    check("the run has no rank tp=2; there is tp=0,pp=0,dp=0,ep=0; tp=1" in dump("list", tmp_path / "two", "--rank", "2", status=2).stderr, "a rank that is not there")
    check("neither a rank" in dump("list", tmp_path / "two", "--rank", "zp=1", status=2).stderr, "an axis that is none")


def test_what_is_missing_is_named(tmp_path, check):
    plan = Schedule(102)
    for tp in (0, 2):
        write(tmp_path / "gone", plan.script(tp, (2, 2, 2)), tp, 3)
    done = dump("list", tmp_path / "gone", status=1)
    check("no run of tensor parallel rank 1 of 3" in done.stderr, "a rank without a run", done.stderr)
    check("the part of tp rank 1 (of 3) is missing" in done.stderr, "and what it lacks")
    keys = exported(tmp_path / "gone", tmp_path / "x", status=1)
    check({key.split("/")[1].split(".")[0] for key in keys} == {"h", "head"}, "what every rank has is there", sorted(keys)[:3])

    write(tmp_path / "alone", plan.script(1, (3, 3)), 1, 2)
    done = dump("list", tmp_path / "alone")
    check("no run but that of tp rank 1 of 2 is here" in done.stderr, "one rank alone says so", done.stderr)
    check(not dump("list", next((tmp_path / "alone").iterdir())).stderr, "but not where it is named by its folder")

    def lost(step, site, layer):
        return (step * 7 + site + layer) % 5 == 0 and site < 2

    for tp in (0, 1):
        write(tmp_path / "some", plan.script(tp, (3, 3), lose=lost if tp else lambda *_: False), tp, 2)
    got = exported(tmp_path / "some", tmp_path / "x", status=1)
    check(got == plan.expected(2, lost=lost), "what was dropped on one rank is left out, and the rest is right",
          differences(got, plan.expected(2, lost=lost)))


def test_what_differs_is_named(tmp_path, check):
    plan = Schedule(103)
    write(tmp_path / "bits", plan.script(0, (3, 3)), 0, 2)
    other = plan.script(1, (3, 3)).replace("rec 2 3 0 6 1", "rec 2 3 0 6 2")
    write(tmp_path / "bits", other, 1, 2)
    done = dump("list", tmp_path / "bits", status=1)
    with_rows = sum(rows > 0 for _, rows, _, _ in plan.steps)
    check(f"site h: ranks that have all of it differ in {with_rows} records; first in layer 3, step " in done.stderr,
          "bits that should be alike", done.stderr)
    got = exported(tmp_path / "bits", tmp_path / "x", status=1)
    check(got == plan.expected(2), "the first rank's are shown", differences(got, plan.expected(2)))
    lines = plan.script(1, (3, 3)).split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("step 5 "))
    lines[at] = "step 5 20 other:0:2:0:1:2:0"
    write(tmp_path / "rows", plan.script(0, (3, 3)), 0, 2)
    write(tmp_path / "rows", "\n".join(lines), 1, 2)
    done = dump("list", tmp_path / "rows", status=1)
    check("step 5: rank tp 1, pp 0 says other rows than rank tp 0" in done.stderr, "rows of which ranks say different things", done.stderr)


def without(tensors, *sites):
    return {key: rows for key, rows in tensors.items() if key.split("/")[1] not in sites and key.split("/")[1].split(".")[0] not in sites}


@pytest.mark.parametrize("word, says, other", [
    ("sum", "that it is the sum over tp", "that dimension 1 is divided over tp"),
    ("none", "that each rank has all of it", "that dimension 1 is divided over tp"),
    ("dim", "that dimension 2 is divided over tp", "that dimension 1 is divided over tp"),
    ("over", "that dimension 1 is divided over dp", "that dimension 1 is divided over tp"),
    ("row", '"row: request"', '"row: token"'), ("scale", "scale 2", "scale 1")])
def test_a_site_of_which_ranks_say_different_things_is_left_out(tmp_path, check, word, says, other):
    plan, out = Schedule(105, 9), tmp_path / "two"
    write(out, plan.script(0, (3, 3)), 0, 2)
    write(out, plan.script(1, (3, 3)), 1, 2, more=[word])
    got, want = exported(out, tmp_path / "x", status=1), without(plan.expected(2), "q")
    check(got == want, "the others are joined", differences(got, want))
    sentence = f"site q: rank tp 1, pp 0, dp 0 says {says}, and rank tp 0, pp 0, dp 0 {other}: "
    for command in ("list", "verify", "stats"):
        done = dump(command, out, status=1)
        check(sentence in done.stderr + done.stdout, f"{command} names both ranks", done.stderr + done.stdout)
    alone = exported(out, tmp_path / "x", "--rank", "1")
    check(any("/q." in key for key in alone), "one rank alone has its part")


def test_parts_that_no_split_explains_are_left_out(tmp_path, check):
    plan = Schedule(106, 9)

    def changed(of, to, site, sentence):
        out = tmp_path / sentence[:3]
        script = plan.script(1, (3, 3))
        assert of in script
        write(out, plan.script(0, (3, 3)), 0, 2)
        write(out, script.replace(of, to), 1, 2)
        got, want = exported(out, tmp_path / "x", status=1), without(plan.expected(2), site)
        check(got == want, f"{site} is left out, and the rest is joined", differences(got, want))
        text = dump("verify", out, status=1)
        text = text.stdout + text.stderr
        check(f"site {site.split('.')[0]}: the parts of " in text and "rank tp 1, pp 0, dp 0 has " in text and
              "and rank tp 0, pp 0, dp 0 has " in text and sentence in text, "the two ranks are named", text)

    changed("rec 2 3 0 6 1", "rec 2 3 0 5 1", "h.3", "5], and rank")
    changed("rec 1 2 0 6 2", "rec 1 2 0 7 2", "o.2", "7], and rank")
    changed("rec 2 1 0 6 1", "put 2 1 6 i16", "h.1", "i16 [")
    changed("rec 0 0 3 3 1", "put 0 0 3 f64", "q.0", "f64 [")


def test_ranks_that_say_different_sizes_are_not_joined(tmp_path, check):
    plan = Schedule(107, 9)
    for tp, size in ((0, 2), (1, 4)):
        write(tmp_path / "sizes", plan.script(tp, (3, 3)), tp, size)
    got, want = exported(tmp_path / "sizes", tmp_path / "x", status=1), without(plan.expected(2), "q", "o")
    check(got == want, "what every rank has is there", differences(got, want))
    text = dump("list", tmp_path / "sizes", status=1).stderr
    check("(rank tp 1, pp 0, dp 0) says that there are 4 tp ranks, and " in text and "(rank tp 0, pp 0, dp 0) says 2" in text, "sizes", text)
    check("rank tp 1, pp 0, dp 0 is tp rank 1 of 4, and rank tp 0, pp 0, dp 0 is tp rank 0 of 2" in text, "why a tensor is left out", text)


def test_a_run_or_rank_that_is_there_twice_is_left_out(tmp_path, check):
    plan, out = Schedule(108, 9), tmp_path / "two"
    for tp in (0, 1):
        write(out, plan.script(tp, (3, 3)), tp, 2)
    first, second = sorted(out.iterdir(), key=lambda run: facts("list", run)["ranks"] if "ranks" in facts("list", run) else run.name)[:2]
    shutil.copytree(first, out / "a-copy")
    got = exported(out, tmp_path / "x", status=1)
    check(got == plan.expected(2), "a copy of a folder changes nothing", differences(got, plan.expected(2)))
    for command in ("list", "verify"):
        done = dump(command, out, status=1)
        check(f"is the run {first.name} again, by its UUID: it is left out" in done.stderr + done.stdout or
              f"{first.name} is the run a-copy again, by its UUID: it is left out" in done.stderr + done.stdout, f"{command} names both", done.stderr + done.stdout)
    shutil.rmtree(out / "a-copy")
    write(out, plan.script(1, (3, 3)), 1, 2)
    got = exported(out, tmp_path / "x", status=1)
    want = without(plan.expected(2), "q", "o")
    check(got == want, "of a rank that is there twice nobody knows which one is meant", differences(got, want))
    text = dump("list", out, status=1).stderr
    check(text.count("both say that they are rank tp 1, pp 0, dp 0: ") == 2, "both are named, and left out", text)


def test_runs_that_are_no_ranks(tmp_path, check):
    plan = Schedule(104)
    for job in ("a", "b"):
        write(tmp_path / "jobs", plan.script(job == "b", (3, 3)), int(job == "b"), 2, job=job)
    done = dump("stats", tmp_path / "jobs")
    check("holds 2 runs; this is the latest, " in done.stderr and "tp rank 1 of 2" in done.stderr, "of two commands the last one", done.stderr)
    for _ in range(2):
        write(tmp_path / "same", plan.script(), 0, 1)
    check("holds 2 runs of one command, name one" in dump("stats", tmp_path / "same", status=2).stderr, "of one rank, twice")
    check(len(facts("list", tmp_path / "same")["runs"]) == 2, "list lists them")
    runs = sorted((tmp_path / "same").iterdir(), key=lambda run: facts("list", run)["start_realtime_ns"])
    check(facts("list", tmp_path / "same" / "latest")["uuid"] == facts("list", runs[1])["uuid"], "latest is the one that began last")
    for rank in (0, 1):
        write(tmp_path / "same", plan.script(rank, (3, 3)), rank, 2, job="later")
    done = dump("stats", tmp_path / "same")
    check("holds 4 runs; these 2 are the latest, of one command" in done.stderr, "of a later command with ranks all of them", done.stderr)
    check(dump("stats", tmp_path / "same" / "latest").stdout == done.stdout, "by latest, too")
