# SPDX-License-Identifier: Apache-2.0
"""The structs and tables of include/dmi as Python has them: the headers are the only place that says them. Any thread.

They lie in include/dmi of a clone, or of the prefix where this package lies. tests/python/test_structs.py compares each field with the compiler's.
"""
from __future__ import annotations

import ctypes
import pathlib
import re

_TYPES = {name: getattr(ctypes, f"c_{name.removesuffix('_t')}") for name in ("int32_t", "int64_t", "uint32_t", "uint64_t", "double", "float")}
_MEMBER = re.compile(r"(?:const )?(?:struct )?(\w+)\s*(.*)")
_DECLARED = re.compile(r"(\*?) ?(\w+) ?(?:\[(\d+)\])?")


class Struct(ctypes.Structure):
    """One that says its own size, where it has a member for it."""

    def __init__(self, *values: object) -> None:
        super().__init__(*values)
        if hasattr(self, "size"):
            self.size = ctypes.sizeof(self)


def _text(header: str) -> str:
    """Without comments."""
    for folder in pathlib.Path(__file__).resolve().parents:
        if (path := folder / "include" / "dmi" / header).exists():
            return re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
    raise ImportError(f"include/dmi/{header} is in no folder above {__file__}")


def _type(kind: str, pointer: str, n: str, known: dict, is_counted: bool) -> type:
    of = known.get(kind, _TYPES.get(kind))
    if pointer:
        return ctypes.c_char_p if kind == "char" and not is_counted else ctypes.POINTER(of) if of else ctypes.c_void_p
    return of * int(n) if n else of


def structs(header: str) -> dict[str, type]:
    """{tag without "dmi_": class} of each struct that @header defines. `const char *x` beside `x_bytes` ends with no zero: its address."""
    found: dict[str, type] = {}
    for tag, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", _text(header), re.S | re.M):
        lines = (_MEMBER.fullmatch(" ".join(line.split())).groups() for line in body.split(";")[:-1])
        members = [(kind, *_DECLARED.fullmatch(name).groups()) for kind, names in lines for name in names.split(", ")]
        fields = [(name, _type(kind, pointer, n, found, f" {name}_bytes" in body)) for kind, pointer, name, n in members]
        found[tag] = type(tag, (Struct,), {"_fields_": fields})
    return {tag.removeprefix("dmi_"): kind for tag, kind in found.items()}


def rows(header: str, table: str) -> list[list[str]]:
    """The columns of each row ROW(...) of a table `#define DMI_@table(ROW)`, as they are spelled."""
    row, text = re.search(rf"#define DMI_{table}\((\w+)\)(.*?[^\\])\n", _text(header), re.S).groups()
    return [columns.split(", ") for columns in re.findall(rf"\b{row}\((.*?)\)", text)]
