#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write dmi_preload.map, the linker's version script, from preload/hooks.def: map.py [--check] DEF MAP"""
import re
import sys

OTHER = ["dlsym", "_exit", "_Exit", "execve", "execv", "execvp", "execvpe", "fexecve", "execveat", "execl", "execlp", "execle", "dmi_step_begin", "dmi_step_resume", "dmi_step_end", "dmi_accept", "dmi_request_end", "dmi_tap", "dmi_tap_at", "dmi_moment_take", "dmi_moment_release",
         "dmi_site_enable", "dmi_describe", "dmi_flush", "dmi_edits_missed",
         "dmi_range_begin", "dmi_range_begin_at", "dmi_range_fact", "dmi_range_end", "InitializeInjectionNvtx2",
         "cuptiActivityRegisterCallbacks", "cuptiActivityRegisterCallbacks_v2", "cuptiActivityEnable", "cuptiActivityEnable_v2", "cuptiActivityEnableAndDump",
         "cuptiActivityEnableAndDump_v2", "cuptiActivityEnableContext", "cuptiActivityDisable", "cuptiActivityDisableContext",
         "cuptiActivityRegisterTimestampCallback", "cuptiSubscribe",
         "cuptiSubscribe_v2", "cuptiUnsubscribe", "cuptiFinalize"]


def script(definitions):
    hooks = re.findall(r"^HOOK\((\w+)\)$", definitions, flags=re.M)
    names = "\n".join(f"        {name};" for name in OTHER + hooks)
    return ("/* Made by preload/hook/map.py from preload/hooks.def: do not edit. */\n"
            f"{{\n    global:\n{names}\n    local:\n        *;\n}};\n")


def main():
    args = [a for a in sys.argv[1:] if a != "--check"]
    with open(args[0], encoding="utf-8") as file:
        text = script(file.read())
    if "--check" in sys.argv:
        with open(args[1], encoding="utf-8") as file:
            same = file.read() == text
        print("ok 1 - the map is what hooks.def gives" if same else
              f"not ok 1 - run preload/hook/map.py {args[0]} {args[1]}")
        print("1..1")
        return 0 if same else 1
    with open(args[1], "w", encoding="utf-8") as file:
        file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
