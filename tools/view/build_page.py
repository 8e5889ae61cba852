#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pack the files of the page into two pieces of HTML, before and after the data of a report, and into what the linker takes.

The page allows itself one style sheet and one script, by their SHA-256, and nothing else. Sources: https://www.w3.org/TR/CSP3/ ("hash-source");
https://html.spec.whatwg.org/multipage/scripting.html (a script of type application/json is data, and is not run).
"""
import argparse
import base64
import hashlib
import pathlib

ASM = """.section .rodata
.macro piece name file
    .globl \\name, \\name\\()_end
    .hidden \\name, \\name\\()_end
\\name:
    .incbin "\\file"
\\name\\()_end:
    .byte 0
.endm
piece view_page_before "{before}"
piece view_page_after "{after}"
.section .note.GNU-stack,"",%progbits
"""
POLICY = "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"


def hash_of(text):
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def script_of(paths):
    """The page's script: its files, in this order, without comments of their own lines and without indentation."""
    lines = (line.strip() for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return '"use strict";\n(() => {\n' + "".join(f"{line}\n" for line in lines if line and not line.startswith("//")) + "})();\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("html", "style", "before", "after", "asm"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--script", type=pathlib.Path, nargs="+", required=True, help="in this order")
    opt = parser.parse_args()
    style = opt.style.read_text(encoding="utf-8")
    script = script_of(opt.script)
    for text, what in ((style, "</style"), (script, "</script"), (script, "<!--")):
        if what in text.lower():
            parser.error(f"the page's own text holds {what}")
    page = opt.html.read_text(encoding="utf-8").replace("@POLICY@", POLICY.format(script=hash_of(script), style=hash_of(style)))
    page = page.replace("@STYLE@", style).replace("@SCRIPT@", script)
    before, after = page.split("@DATA@")
    opt.before.write_text(before, encoding="utf-8")
    opt.after.write_text(after, encoding="utf-8")
    opt.asm.write_text(ASM.format(before=opt.before.resolve(), after=opt.after.resolve()), encoding="ascii")


if __name__ == "__main__":
    main()
