# SPDX-License-Identifier: Apache-2.0
"""Structs of <dmi/read.h> as Python's ctypes have them: each name, offset and size as the compiler lays them out."""
import ctypes
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
from dmi import edited, structs  # noqa: E402

OURS = {"run": structs._Run, "site": structs._Site, "tally": structs._Tally, "account": structs._Account, "tensor": structs._Tensor, "row": structs._Row,
        "edit": edited.Struct, "request": structs._Request, "name": structs._Name, "selection": structs._Selection, "finding": structs._Finding,
        "problem": structs._Problem, "step": structs._Step, "span": structs._Span, "record": structs._Record}


def test_each_field_lies_where_the_compiler_has_it(tmp_path):
    lines = ['#include <dmi/read.h>', "#include <stddef.h>", "#include <stdio.h>", "int main(void)", "{"]
    for name, ours in OURS.items():
        lines.append(f'    printf("{name} {{}} 0 %zu\\n", sizeof(struct dmi_read_{name}));')
        lines += [f'    printf("{name} {field} %zu %zu\\n", offsetof(struct dmi_read_{name}, {field}), sizeof(((struct dmi_read_{name} *)0)->{field}));'
                  for field, *_ in ours._fields_]
    (tmp_path / "layout.c").write_text("\n".join([*lines, "}", ""]).replace("{}", "-"))
    subprocess.run(["cc", "-std=c17", "-I", ROOT / "include", "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True, timeout=60)
    theirs = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True, timeout=60).stdout.split("\n")[:-1]
    wanted = []
    for name, ours in OURS.items():
        wanted.append(f"{name} - 0 {ctypes.sizeof(ours)}")
        wanted += [f"{name} {field} {getattr(ours, field).offset} {getattr(ours, field).size}" for field, *_ in ours._fields_]
    assert len(wanted) > 150 and wanted == theirs


def test_no_struct_of_the_header_is_left_out():
    """dmi_read_stretch, which analyses in C alone take, apart."""
    text = (ROOT / "include" / "dmi" / "read.h").read_text()
    assert set(re.findall(r"^struct dmi_read_(\w+) \{", text, re.M)) - {"stretch"} == set(OURS)
