# SPDX-License-Identifier: Apache-2.0
"""What tests share: where things are, running programs under the library, and reading what they left.

The build folder comes from the environment that meson.build sets (DMI_TEST_BUILD); by hand it is build/meson.
Nothing here imports from the library's own code: counters are read by the layout that
include/dmi/counters.h gives, so that a mistake in a tool cannot hide one in the library.
"""
import json
import os
import pathlib
import resource
import struct
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DMI_TEST_BUILD", ROOT / "build" / "meson"))
# What Python itself loads, which is not sanitized: the plain build's libraries read what sanitized programs wrote.
LIBRARIES = ROOT / "build" / "meson" if os.environ.get("DMI_TEST_RUNTIME") else BUILD
DMI_RUN, DMI_DUMP = BUILD / "tools" / "dmi-run", BUILD / "tools" / "dmi-dump"
PRELOAD = BUILD / "preload" / "libdmi_preload.so"
# Drivers of several versions; the newest one has no folder of its own.
STANDIN_VERSIONS = (11080, 12020, 12040, 12080, 13000)
STANDIN_VERSION = int(os.environ.get("DMI_STANDIN_VERSION") or STANDIN_VERSIONS[-1])


def standin_folder(version):
    """Where the stand-in driver of @version is, for LD_LIBRARY_PATH."""
    folder = BUILD / "tests" / "standin"
    return folder if version == STANDIN_VERSIONS[-1] else folder / str(version)


STANDIN = standin_folder(STANDIN_VERSION)
DROP_REASONS = ("ring_full", "too_large", "bad_pointer", "bad_expr", "copy_failed", "not_run", "device_error", "unsupported",
                "write_failed", "exit_timeout", "context_gone", "mismatch", "no_memory", "lost", "shed")


# The stand-in's modes are those of the whole run.
KEPT = ("DMI_STANDIN_CACHE", "DMI_STANDIN_VERSION", "DMI_DRIVER", "DMI_STANDIN_HANDLES", "DMI_STANDIN_LOAD_WAITS")


def environment(**more):
    """The caller's environment, less what would steer the library or the stand-in, plus @more."""
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("DMI_") or k in KEPT}
    env.pop("LD_PRELOAD", None)
    env["LD_LIBRARY_PATH"] = str(STANDIN)
    env.update({k: str(v) for k, v in more.items()})
    if runtime := os.environ.get("DMI_TEST_RUNTIME"):
        # A sanitizer's runtime must come first, also in programs that are not sanitized themselves; our tools put the
        # library before it. Leaks: what the library keeps until the end, and all of Python's.
        env["LD_PRELOAD"] = ":".join(filter(None, [runtime, env.get("LD_PRELOAD")]))
        env["ASAN_OPTIONS"] = "detect_leaks=0:allow_user_segv_handler=1:handle_segv=0:verify_asan_link_order=0"
    return env


def run(command, env=None, timeout=600, check=True, **options):
    """subprocess.run with text output; a failure shows what the program said."""
    result = subprocess.run([str(word) for word in command], env=env, timeout=timeout, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **options)
    if check and result.returncode != 0:
        print(result.stdout[-4000:], result.stderr[-4000:], sep="\n")
        raise AssertionError(f"{' '.join(map(str, command))}: exit code {result.returncode}")
    return result


def cpu_seconds():
    """What the programs took that this process has run and waited for; unlike the time of day, no load of the machine changes it much."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def runs_of(out):
    """The runs in an --out folder, without the link to the latest. A hidden folder is one whose making was interrupted: nothing was captured yet."""
    return [path for path in pathlib.Path(out).glob("*") if not path.name.startswith(".") and not path.is_symlink() and (path / "counters").exists()]


def only_run(out):
    """The one run folder in an --out folder."""
    runs = runs_of(out)
    if len(runs) != 1:
        raise AssertionError(f"{out} holds {len(runs)} runs, one was expected")
    return runs[0]


class Tally:
    """struct dmi_tally: records, rows, bytes"""

    def __init__(self, records=0, rows=0, n_bytes=0):
        self.records, self.rows, self.bytes = records, rows, n_bytes

    def tuple(self):
        return self.records, self.rows, self.bytes

    def __add__(self, other):
        return Tally(*(a + b for a, b in zip(self.tuple(), other.tuple())))

    def __eq__(self, other):
        return self.tuple() == other.tuple()

    def __repr__(self):
        return "{} records, {} rows, {} bytes".format(*self.tuple())


class Counters:
    """The file `counters` of a run (include/dmi/counters.h); sites in the spec's order."""

    HEADER = struct.Struct("<QII16sQQQQQQQ40x")
    CLOSED = 2

    def __init__(self, folder):
        data = (folder / "counters").read_bytes()
        (magic, self.version, n_sites, self.uuid, self.state, self.pid, _, self.forwards, self.launches_matched,
         self.steps, self.steps_refused) = self.HEADER.unpack_from(data)
        if magic != int.from_bytes(b"DMICNT1\0", "little") and magic != 0x31544e43494d44:
            raise AssertionError(f"{folder}/counters: wrong magic {magic:#x}")
        self.expected, self.captured, self.dropped, self.launches = [], [], [], []
        for i in range(n_sites):
            fields = struct.unpack_from("<64Q", data, self.HEADER.size + 512 * i)
            tallies = [Tally(*fields[j:j + 3]) for j in range(0, 54, 3)]
            self.expected.append(tallies[0])
            self.captured.append(tallies[1])
            self.dropped.append({reason: t for reason, t in zip(DROP_REASONS, tallies[2:]) if t.tuple() != (0, 0, 0)})
            self.launches.append(fields[54])

    def dropped_sum(self, site):
        return sum(self.dropped[site].values(), Tally())


def export(out, path):
    """{key: array} of all that a run holds, by way of `dmi-dump export`."""
    from safetensors.numpy import load_file
    run([DMI_DUMP, "export", "--format", "safetensors", out, "--force", "-o", path])
    return load_file(path)


def dump_json(*words, check=True):
    result = run([DMI_DUMP, *words, "--json"], check=check)
    return json.loads(result.stdout)
