# SPDX-License-Identifier: Apache-2.0
"""The machine code of the library's kernels for sm_90, as it ships: how much there is, and which of it has fences, atomics and stores to the host.

Bytes are those of the ELF's sections. What is a fence NVIDIA's own disassembler says.
"""
import re
import struct
import subprocess

import pytest

from harness import BUILD, ROOT

FATBIN = BUILD / "kernels" / "dmi_kernels.fatbin"
pytestmark = pytest.mark.built(FATBIN)
DISASSEMBLER = ROOT / "build" / "toolchain" / "nvidia" / "cu13" / "bin" / "nvdisasm"
ALONE = ("dmi_copies_alone_packed", "dmi_copies_alone_any")
COPIES = ("dmi_copy_graph_packed", "dmi_copy_graph_rows", "dmi_copies_graph_packed", "dmi_copies_graph_any")


def images(data):
    """The ELF images in a fatbin that holds them as they are."""
    for found in re.finditer(re.escape(b"\x7fELF\2"), data):
        at = found.start()
        programs, sections = struct.unpack_from("<QQ", data, at + 32)
        program_bytes, n_programs, section_bytes, n_sections = struct.unpack_from("<HHHH", data, at + 54)
        yield data[at:at + max(programs + program_bytes * n_programs, sections + section_bytes * n_sections)]


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """{kernel: (bytes of its section, the disassembled lines)} of the image for sm_90"""
    path = tmp_path_factory.mktemp("code") / "image.cubin"
    for image in images(FATBIN.read_bytes()):
        path.write_bytes(image)
        text = subprocess.run([DISASSEMBLER, "-c", path], stdout=subprocess.PIPE, text=True, check=True).stdout
        if re.search(r"\.target\s+sm_90\b", text):
            break
    else:
        pytest.fail(f"no machine code for sm_90 in {FATBIN}")
    sections = subprocess.run(["readelf", "-SW", path], stdout=subprocess.PIPE, text=True, check=False).stdout
    sizes = {m[1]: int(m[2], 16) for m in re.finditer(r" \.text\.(\w+)\s+PROGBITS\s+\S+ \S+ (\S+)", sections)}
    bodies = {m[1]: [line for line in m[2].splitlines() if "/*" in line and ";" in line]
              for m in re.finditer(r"\.section\s+\.text\.(\w+),(.*?)(?=\.section|\Z)", text, re.S)}
    return {name: (sizes[name], bodies[name]) for name in sizes}


def count(lines, pattern):
    return sum(re.search(pattern, line) is not None for line in lines)


def test_bytes(check, code):
    for name, most in {"dmi_copy_graph_packed": 2048, "dmi_copies_graph_packed": 2560, "dmi_copies_alone_packed": 2560, "dmi_open": 1536, "dmi_close": 3072}.items():
        check(code[name][0] <= most, f"{name} has at most {most} bytes", code[name][0])
    check(code["dmi_copy_graph_packed"][0] * 4 < code["dmi_copy_graph_rows"][0], "the small kernel is what it is for",
          {name: code[name][0] for name in COPIES})


def test_fences(check, code):
    """A copy in a graph has none of them; what it takes for a launch to be published stands once, in dmi_close, or in the node that is alone."""
    for name in (*COPIES, "dmi_open"):
        found = [line for line in code[name][1] if re.search(r"MEMBAR|ATOM|\bRED\.|\.SYS", line)]
        check(not found, f"{name}: no fence, no atomic, no store at system scope", found)
    close, eager = code["dmi_close"][1], code["dmi_copy_eager"][1]
    check((count(close, "MEMBAR"), count(close, r"\.SYS"), count(close, r"\b(ATOMG|RED)\.")) == (1, 2, 0),
          "dmi_close: one fence, before one store at system scope", [line for line in close if "MEMBAR" in line or ".SYS" in line])
    for name in ALONE:
        lines = code[name][1]
        check((count(lines, "MEMBAR"), count(lines, r"\.SYS"), count(lines, r"\b(ATOMG|RED)\.")) == (2, 2, 1),
              f"{name}: one counter of blocks, and one store at system scope", [line for line in lines if "MEMBAR" in line or ".SYS" in line])
    check((count(eager, "MEMBAR"), count(eager, "ATOMG.E.ADD")) == (2, 1), "an eager copy publishes by itself", count(eager, "MEMBAR"))
