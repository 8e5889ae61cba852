# SPDX-License-Identifier: Apache-2.0
"""dmi-replay --policy: what a HookSpec's overload would have kept of a run, against models of the ring in Python, and what must hold of any answer."""
import json
import random

import pytest

from replay_kit import BUILT, replay, schedule

pytestmark = pytest.mark.built(*BUILT)
STEP_NS, LAST = 10_000_000, 2          # DMI_SPAN_LAST
PER_ROW = 4000


def spec(folder, overload, sites=("h",), more=""):
    entries = "".join(f"  - {{name: {name}, kernel: k, pointer: 'param[0]', dtype: i32, dims: [{{count: 1, row: true}}, {{count: 4}}]}}\n" for name in sites)
    path = folder / "policy.yaml"
    path.write_text(f"hookspec: 1\nname: tried\n{f'overload: {overload}' if overload else ''}\n{more}sites:\n{entries}")
    return path


def rehearse(run, path, link, ring, *words, status=0):
    done = replay(run, "--policy", path, "--link", link, "--ring", ring, *words, "--json", status=status)
    return json.loads(done.stdout)["runs"][0]


def serving(n_steps=400, n_requests=10, life=50, layers=2):
    """Requests of one row a step that come and go at different times, each with `life` steps."""
    lines = []
    for s in range(n_steps):
        spans = " ".join(f"r{(s + k * 5) // life}-{k}:{k}:1:{s}:2:0:{LAST if (s + 1 + k * 5) % life == 0 else 0}" for k in range(n_requests))
        lines += [f"at {10**9 + s * STEP_NS}", f"step {s} {n_requests} {spans}", *(f"wide {layer} {PER_ROW // 4}" for layer in range(layers))]
    return lines


@pytest.fixture(name="run", scope="module")
def fixture_run(tmp_path_factory):
    return schedule(tmp_path_factory.mktemp("policy") / "run", serving())


def check_sums(check, found):
    for unit in ("records", "rows", "bytes"):
        check(found["wanted"][unit] == sum(found[part][unit] for part in ("kept", "shed", "dropped")), f"{unit} balance", found)
    check(found["ring_most_full"] <= 1, "the ring holds what it holds", found["ring_most_full"])
    check(all((q["became"] == "kept") == (q["rows_kept"] == q["rows"]) and (q["became"] != "refused" or not q["rows_kept"]) for q in found["requests"]),
          "only a request that is not kept lacks rows", found["requests"])
    check(sum(q["rows_kept"] for q in found["requests"]) == found["kept"]["rows"], "rows of requests are the rows that are kept")


# ---------------------------------------------------------------------------------------------------- against models


def random_run(folder, seed):
    """Launches of one record each, of random sizes at random times. Return: the run, [(time in ns, bytes)]."""
    rng = random.Random(seed)
    lines, launches, time = [], [], 10**9
    for step in range(60):
        rows = rng.randint(1, 8)
        lines += [f"at {time}", f"step {step} {rows} " + " ".join(f"q{k}:{k}:1:{step}:2:0:0" for k in range(rows))]
        for _ in range(rng.randint(1, 4)):
            columns = rng.randint(1, 1000)
            lines += [f"at {time}", f"wide 0 {columns}"]
            launches.append((time, rows * columns * 4, rows))
            time += rng.randint(0, 4_000_000)
    return schedule(folder / f"run-{seed}", lines), launches


def padded(n):
    return (n + 15) // 16 * 16


def model(launches, link, ring, wait_s=0.0):
    """Records kept, bytes kept, launches that waited, seconds waited: a ring that a link empties, in the simplest words."""
    used, now, late, kept, kept_bytes, waits, in_vain, waited = 0.0, 0.0, 0.0, 0, 0, 0, 0, 0.0
    for time, n, _ in launches:
        at = (time - launches[0][0]) / 1e9 + late
        used, now = max(0.0, used - max(0.0, at - now) * link), max(now, at)
        missing = (used + padded(n) - ring) / link
        if missing > 0 and wait_s:
            waits += 1
            in_vain += missing > wait_s
            waits_here = min(missing, wait_s)
            waited, late, now = waited + waits_here, late + waits_here, now + waits_here
            used = max(0.0, used - waits_here * link) if missing > wait_s else ring - padded(n)
            missing = missing if missing > wait_s else 0
        if missing <= 0:
            used, kept, kept_bytes = used + padded(n), kept + 1, kept_bytes + n
    return kept, kept_bytes, waits, in_vain, waited


@pytest.mark.parametrize("seed", range(6))
def test_ring(tmp_path, seed, check):
    run, launches = random_run(tmp_path, seed)
    rng = random.Random(seed + 100)
    for mode, wait in (("", 0), ("{mode: drop}", 0), ("{mode: complete, wait_ms: 1}", 0.001), ("{mode: complete, wait_ms: 60000}", 60)):
        link, ring = rng.choice([500_000, 1_000_000, 3_000_000]), rng.choice([32768, 65536, 200_000])
        found = rehearse(run, spec(tmp_path, mode), link, ring)
        kept, kept_bytes, waits, in_vain, waited = model(launches, link, ring, wait)
        said = (found["kept"]["records"], found["kept"]["bytes"], found["waits"]["launches"], found["waits"]["in_vain"])
        check(said == (kept, kept_bytes, waits, in_vain), f"{mode or 'no overload'}: as the model", (said, (kept, kept_bytes, waits, in_vain)))
        check(abs(found["waits"]["all_s"] - waited) < 1e-6, f"{mode}: waits as long", (found["waits"], waited))
        check(found["shed"]["rows"] == 0 and found["wanted"]["bytes"] == sum(n for _, n, _ in launches), f"{mode}: nothing is shed")
        check(mode.endswith("60000}") <= (kept == len(launches)), "a wait that is long enough loses nothing", kept)
        check_sums(check, found)


def test_speed(run, tmp_path, check):
    path = spec(tmp_path, "{mode: drop}")
    slow, fast = rehearse(run, path, "4M", "256K", "--speed", "0.5"), rehearse(run, path, "8M", "256K", "--speed", "1")
    check(slow["kept"] == fast["kept"] and abs(slow["seconds"] - 2 * fast["seconds"]) < 1e-6, "half the speed is half the pressure", (slow, fast))
    check(fast["kept"]["bytes"] < fast["wanted"]["bytes"] or fast["link_wanted"] < 1, "a link that is too slow loses something", fast["link_wanted"])


# ---------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize("link", [20 << 20, 8 << 20, 4 << 20, 2 << 20, 800 << 10])
def test_best_effort(run, tmp_path, link, check):
    found = rehearse(run, spec(tmp_path, "{mode: best-effort}"), link, "1M")
    check_sums(check, found)
    check(found["dropped"]["rows"] == 0 and found["waits"]["launches"] == 0, "nothing is torn, nothing waits", found)
    kept = [q for q in found["requests"] if q["became"] == "kept"]
    cut = [q for q in found["requests"] if q["became"] == "cut"]
    if found["link_wanted"] < 1:
        check(len(kept) == len(found["requests"]), "a link that is fast enough gets all", found["link_wanted"])
    else:
        check(kept and len(kept) < len(found["requests"]), "some are kept, each with all its rows", len(kept))
        check(found["link_kept"] > 0.6, "most of the link is used", found["link_kept"])
        check(len(cut) <= 8, "few are cut, and only while the rate is not known", [(q["request"], q["step"]) for q in cut])
        check(all(q["step"] < 60 for q in cut), "later nobody is", [(q["request"], q["step"]) for q in cut])


def test_keep_by_pattern(run, tmp_path, check):
    found = rehearse(run, spec(tmp_path, "{mode: best-effort, strategy: keep-by-pattern, keep: ['r*-3', 'r*-7']}"), "2M", "1M")
    check_sums(check, found)
    wanted = [q for q in found["requests"] if q["request"].endswith(("-3", "-7"))]
    late = [q for q in wanted if not q["request"].startswith("r0")]
    check(len(late) > 10 and all(q["became"] == "kept" for q in late), "those that the patterns take are kept",
          [(q["request"], q["became"]) for q in wanted])
    check(any(q["became"] == "refused" for q in found["requests"]), "others are not")


def test_sample(run, tmp_path, check):
    shares = {}
    for share in (0.2, 0.5, 1.0):
        found = rehearse(run, spec(tmp_path, f"{{mode: drop, strategy: sample, share: {share}}}"), "100M", "1M")
        check_sums(check, found)
        shares[share] = {q["request"] for q in found["requests"] if q["became"] == "kept"}
        check(all(q["became"] in ("kept", "refused") for q in found["requests"]), "all of it or nothing", found["requests"])
    check(shares[0.2] < shares[0.5] < shares[1.0] and len(shares[1.0]) == 89, "a larger share has those of a smaller one", {k: len(v) for k, v in shares.items()})
    again = rehearse(run, spec(tmp_path, "{mode: best-effort, strategy: sample, share: 0.5}"), "100K", "64K")
    check({q["request"] for q in again["requests"] if q["rows_kept"]} <= shares[0.5], "pressure adds none")


def test_budget(run, tmp_path, check):
    budget = 2_000_000
    found = rehearse(run, spec(tmp_path, f"{{mode: drop, budget: {{process: {budget}}}}}"), "100M", "10M")
    check_sums(check, found)
    most = budget * (found["seconds"] + 1)
    check(0.5 * most < found["kept"]["bytes"] <= most, "a bucket of a second, and what comes a second", (found["kept"]["bytes"], most))
    other = rehearse(run, spec(tmp_path, "{mode: drop, budget: {sites: {q: 10}}}", ("h", "q")), "100M", "10M")
    check(other["kept"] == other["wanted"], "a budget of another site costs nothing", other["kept"])


def test_ids_come_again(tmp_path, check):
    """One that was shed and has ended comes as another request."""
    lines = []
    for s in range(300):
        at = [f"at {10**9 + s * STEP_NS}"]
        crowd = s < 20
        spans = [f"b{k}:{k}:1:0:2:0:0" for k in range(7 * crowd)] + [f"a:{7 * crowd}:1:0:2:0:0"]
        lines += [*at, f"step {s} {len(spans)} " + " ".join(spans), *(["wide 0 4000"] if not 20 <= s < 60 else [])]
        lines += [f"end {name} 1" for name in ("a", *(f"b{k}" for k in range(7)))] if s == 19 else []
    run = schedule(tmp_path / "run", lines)
    found = rehearse(run, spec(tmp_path, "{mode: best-effort}"), 20_000_00, 40_000)
    check_sums(check, found)
    first, second = (next(q for q in found["requests"] if q["request"] == name) for name in ("a", "a~2"))
    check(first["became"] != "kept" and first["rows_kept"] < 20 and second["became"] == "kept" and second["rows_kept"] >= 230, "the second one is kept",
          (first, second))


# ---------------------------------------------------------------------------------------------------- what it says


def test_words(run, tmp_path, check):
    words = replay(run, "--policy", spec(tmp_path, "{mode: best-effort}"), "--link", "2M", "--ring", "1M").stdout.decode()
    found = rehearse(run, spec(tmp_path, "{mode: best-effort}"), "2M", "1M")
    check("best-effort, drop-recent: link 2.0 MiB/s, ring 1.0 MiB" in words, "the terms", words.splitlines()[1])
    for name in ("wanted", "kept", "shed", "dropped"):
        line = next(line for line in words.splitlines() if line.strip().startswith(name + " "))
        check(f"{found[name]['rows']:,} rows" in line, name, line)
    missing = [q for q in found["requests"] if q["became"] != "kept"]
    check(all(any(line.endswith(q["request"]) and line.strip().startswith(q["became"]) for line in words.splitlines()) for q in missing), "every request that is not kept")
    check(f"requests: {len(found['requests']) - len(missing)} kept" in words, "how many are", words)


def test_sites(run, tmp_path, check):
    done = replay(run, "--policy", spec(tmp_path, "{mode: drop}", ("nothing.like",)), "--link", "2M", "--ring", "1M", status=2)
    check(b"none of the sites that were captured" in done.stderr, "a spec of other sites", done.stderr)
    ring = spec(tmp_path, "{mode: drop}", more="ring: {bytes: 1M}\n")
    by_spec = json.loads(replay(run, "--policy", ring, "--link", "2M", "--json").stdout)
    check(by_spec["ring"] == 1 << 20 and by_spec["runs"][0] == rehearse(run, ring, "2M", "1M"), "the ring of the spec", by_spec["ring"])


@pytest.mark.parametrize("words, said", [
    (["--link", "2M", "--to", "-"], "records go nowhere"), (["--ring", "1M"], "--policy needs --link"), (["--link", "fast", "--ring", "1M"], "'fast' is no size"),
    (["--link", "0", "--ring", "1M"], "'0' is no size"), (["--link", "2M", "--site", "h"], "does not go with a selection"), (["--link", "2M"], "--ring SIZE, or ring:"),
    (["--link", "2M", "-D", "x"], "write NAME=VALUE")], ids=str)
def test_wrong_words(run, tmp_path, words, said, check):
    done = replay(run, "--policy", spec(tmp_path, "{mode: drop}"), *words, status=2)
    check(said in done.stderr.decode() and not done.stdout, "one sentence", done.stderr)


def test_without_policy(run, check):
    check("are for --policy" in replay(run, "--to", "-", "--link", "1M", status=2).stderr.decode(), "--link without --policy")


def test_wrong_spec(run, tmp_path, check):
    path = spec(tmp_path, "{mode: sometimes}")
    done = replay(run, "--policy", path, "--link", "1M", "--ring", "1M", status=2)
    check(f"{path}:3:" in done.stderr.decode() and "sometimes" in done.stderr.decode(), "line and column", done.stderr)
    check("No such file" in replay(run, "--policy", tmp_path / "none.yaml", "--link", "1M", "--ring", "1M", status=2).stderr.decode(), "no such file")
