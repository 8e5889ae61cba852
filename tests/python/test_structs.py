# SPDX-License-Identifier: Apache-2.0
"""Structs of include/dmi as Python takes them from the headers: each name, offset and size as the compiler lays them out."""
import ctypes
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
from dmi import dtypes, headers  # noqa: E402


@pytest.mark.parametrize("header, n_fields", [("read.h", 170), ("analyze.h", 50), ("analyze_heads.h", 20), ("analyze_stats.h", 60), ("analyze_vocabulary.h", 6)])
def test_each_field_lies_where_the_compiler_has_it(tmp_path, header, n_fields):
    structs = {f"dmi_{name}": kind for name, kind in headers.structs(header).items()}
    text = (ROOT / "include" / "dmi" / header).read_text()
    assert set(re.findall(r"^struct (\w+) \{", text, re.M)) == set(structs)
    fields = [(tag, name, getattr(kind, name)) for tag, kind in structs.items() for name, *_ in kind._fields_]
    lines = [f"#include <dmi/{header}>", "#include <stddef.h>", "#include <stdio.h>", "int main(void)", "{",
             *(f'    printf("{tag} %zu\\n", sizeof(struct {tag}));' for tag in structs),
             *(f'    printf("{tag} {name} %zu %zu\\n", offsetof(struct {tag}, {name}), sizeof(((struct {tag} *)0)->{name}));' for tag, name, _ in fields)]
    (tmp_path / "layout.c").write_text("\n".join([*lines, "}", ""]))
    subprocess.run(["cc", "-std=c17", "-I", ROOT / "include", "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True, timeout=60)
    theirs = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True, timeout=60).stdout.split("\n")[:-1]
    assert len(fields) >= n_fields and theirs == [*(f"{tag} {ctypes.sizeof(kind)}" for tag, kind in structs.items()),
                                                  *(f"{tag} {name} {field.offset} {field.size}" for tag, name, field in fields)]


def test_what_is_no_field_is_refused(tmp_path, monkeypatch):
    """Rather than read as another one."""
    for body in ("    int (*take)(void *arg, int n);\n", "    unsigned short x;\n", "    uint32_t n[ROOM];\n", "    struct dmi_other other;\n"):
        monkeypatch.setattr(headers, "_text", lambda _, body=body: f"struct dmi_some {{\n{body}}};\n")
        with pytest.raises((AttributeError, TypeError)):
            headers.structs("some.h")


def test_element_types(tmp_path):
    """As the compiler expands the table."""
    row = '#define ROW(word, number, name, safetensors, npy, torch, c, ...) printf("%d %s %s %s %s %zu\\n", number, name, safetensors, (char *)npy ? (char *)npy : "-", torch, sizeof(c));'
    (tmp_path / "types.c").write_text(f"#include <dmi/dtype.h>\n#include <stdio.h>\n{row}\nint main(void)\n{{\n    DMI_DTYPES(ROW)\n}}\n")
    subprocess.run(["cc", "-std=c17", "-I", ROOT / "include", "-o", tmp_path / "types", tmp_path / "types.c"], check=True, timeout=60)
    theirs = [line.split() for line in subprocess.run([tmp_path / "types"], check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()]
    assert len(theirs) >= 15 and theirs == [[str(number), *(str(value or "-") for value in row)] for number, row in dtypes.TABLE.items()]
