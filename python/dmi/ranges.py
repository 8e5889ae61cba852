# SPDX-License-Identifier: Apache-2.0
"""Ranges around methods of engines, by the names of StriaTrace's catalogue, where a trace is on (docs/trace.md).

Methods are found by what the package has, not by its version. At its end a process says which ranges a version has no method for, and which ones
its methods never made. Any thread.
"""
import atexit
import functools
import os
import threading
import time

import dmi
from dmi import adapters

REQUEST = "LLMEngine::Request"


def wanted():
    """Is the library in this process, and a trace on?"""
    return dmi.loaded() and bool(os.environ.get("DMI_TRACE"))


class Catalogue:
    """The ranges of one engine in this process. adapter: whose warnings name what is missing.

    came   names of ranges that came
    has    names of ranges for which a class that was imported has a method
    lacks  {name: methods that the engine's version has not}
    """

    def __init__(self, adapter):
        self.adapter, self.came, self.has, self.lacks = adapter, set(), set(), {}
        self._open, self._begun = threading.local(), {}

    def use(self, entries):
        """@entries: (module, class, method, name of the range, facts); facts(result, *arguments) gives numbers, None: there are none."""
        atexit.register(self.report)
        for module, *entry in entries:
            adapters.when_imported(module, functools.partial(self._put, *entry))

    def _put(self, kind, method, name, facts, module):
        owner = getattr(module, kind, None)
        self.put(owner, method, name, facts, f"{kind}.{method}()")

    def put(self, owner, method, name, facts=None, said=None):
        """@method of the class @owner makes ranges, if it has it itself. @said: what it is called where it is missing."""
        found = vars(owner).get(method) if owner is not None else None
        inner = getattr(found, "__func__", found)
        if not callable(inner):
            self.lack(name, said)
            return
        around = self.around(inner, name, facts)
        setattr(owner, method, type(found)(around) if inner is not found else around)
        self.has.add(name)

    def lack(self, name, said):
        """The engine's version has no @said, which would make ranges."""
        self.lacks.setdefault(name, []).append(said)

    def owner(self, module, kind, methods, *names):
        """The class @kind of @module, if it has @methods, as adapters.lacks() takes them; they make the ranges @names. None: it lacks one."""
        owner = getattr(module, kind, None)
        if missing := adapters.lacks(owner, methods):
            for name in names:
                self.lack(name, f"{kind}.{missing}")
            return None
        self.has.update(names)
        return owner

    def around(self, method, name, facts=None):
        """@method in a range. One that calls another with the same name, as a subclass does, makes one range."""
        @functools.wraps(method)
        def ranged(*args, **kwargs):
            is_open = self._open.__dict__  # this thread's
            if is_open.get(name):
                return method(*args, **kwargs)
            is_open[name] = True
            self.came.add(name)
            try:
                with dmi.range(name) as one:
                    result = method(*args, **kwargs)
                    if facts:
                        self._say(one, facts, result, args)
                return result
            finally:
                is_open[name] = False
        return ranged

    def _say(self, one, facts, result, args):
        try:
            one.say(**facts(result, *args))
        except Exception as error:
            self.adapter.warn(f"{one.name} has no facts: {error!r}")

    # ---- requests

    def request_begins(self, request):
        self._begun.setdefault(request, time.monotonic_ns())

    def request_ends(self, request, name=None, **facts):
        """@name: what its client calls it."""
        begin = self._begun.pop(request, None)
        if begin is not None:
            self.came.add(REQUEST)
            with dmi.range_since(f"{REQUEST} {name or request}", begin, True, **facts):
                pass

    # ---- what did not come

    def missing(self):
        """[(name, why)] of parts of the engine that work in this process: some ranges of theirs came."""
        parts = {name.partition("::")[0] for name in self.came}
        for name in sorted(self.has | self.lacks.keys()):
            if name in self.came or name.partition("::")[0] not in parts:
                continue
            yield name, "it was not called" if name in self.has else f"this version has no {' and no '.join(self.lacks[name])}"

    def report(self):
        for name, why in self.missing():
            self.adapter.warn(f"no range {name} came: {why}")
