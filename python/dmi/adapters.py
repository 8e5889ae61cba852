# SPDX-License-Identifier: Apache-2.0
"""What adapters of engines share: they never raise into the engine, and say once what they cannot do.

An adapter that fails, or meets an engine that it does not know, turns itself off: records then have no request ids, and
everything else goes on. Any thread.
"""
import collections
import functools
import importlib.abc
import importlib.machinery
import inspect
import itertools
import json
import re
import sys
import types

from dmi import calls
from dmi.calls import text_of_tags  # noqa: F401
from dmi.saying import say


CACHES = ("cache", "past_key_values", "past_key_value", "layer_past")  # what transformers' methods call a cache, in one version or another


class Adapter:
    """Of one engine. name: of its module, which begins each warning. on: False after a failure, and then for good."""

    def __init__(self, name):
        self.name, self.on, self._said = name, True, set()

    def warn(self, text):
        """One line on stderr, once for each text; at most 20 texts."""
        if text not in self._said and len(self._said) < 20:
            self._said.add(text)
            say(f"{self.name}: {text}")

    def turn_off(self, why):
        self.on = False
        calls.step_end()
        self.warn(f"{why}: records have no request ids from here on")

    def describe(self, runner, tokenizer):
        """Note the config of an engine's model, and the path or name of its @tokenizer. Without them records are what they are."""
        from dmi.torch import config
        try:
            config.describe(getattr(runner, "model", None), getattr(getattr(runner, "model_config", None), "hf_config", None), tokenizer)
        except Exception as error:
            self.warn(f"the model's config is not noted: {error!r}")

    def guarded(self, body):
        """@body for use inside an engine: the first exception turns the adapter off, and None is returned."""
        @functools.wraps(body)
        def call(*args, **kwargs):
            if not self.on:
                return None
            try:
                return body(*args, **kwargs)
            except Exception as error:
                self.turn_off(f"{body.__name__.strip('_')}() failed: {error!r}")
                return None
        return call


class Trial:
    """Of a version of an engine that nobody tried: its records carry no ids until three steps agree with what the adapter would say.

    @package: the engine's; @tried: versions of it, or their first two numbers, of which nothing is to be tried.
    """

    def __init__(self, adapter, package, tried):
        text, numbers = version_of(package)
        known = numbers in tried or re.sub(r"(\.post\d+)?(\+.*)?$", "", text) in tried  # how it was built does not matter
        self.adapter, self.what, self.left = adapter, f"{package} {text}", 0 if known else 3

    def passed(self, rows, scheduled, prompts, tokens):
        """May a step's records carry ids? Compares the step unless the trial is over; where something differs the adapter is off, by name.

        rows       [(request, position of its first token, tokens)], in the order of the batch's rows
        scheduled  {request: tokens}, as the scheduler says
        prompts    {request: ids of its prompt, or None}
        tokens     a function: the runner's own ids, by row
        """
        if not self.left:
            return True
        wrong, n_compared = None, 0
        if sorted((name, int(n)) for name, _, n in rows) != sorted((name, int(n)) for name, n in scheduled.items()):
            wrong = "the requests of a step, or how many tokens they have,"
        else:
            at, ids = 0, list(map(int, tokens()))
            for name, first, n in rows:
                prompt = list(prompts.get(name) or ())[int(first):int(first) + int(n)]
                if ids[at:at + len(prompt)] != prompt:
                    wrong = f"tokens of request {name}"
                    break
                at, n_compared = at + int(n), n_compared + len(prompt)
        if wrong:
            self.adapter.turn_off(f"{self.what} is not known, and {wrong} are not where versions that are known have them")
        elif n_compared:
            self.left -= 1
            if not self.left:
                self.adapter.warn(f"{self.what} is not known: 3 steps agree with versions that are, and records have request ids from here on")
        return False


def lacks(owner, methods):
    """The first of @methods, {name: its parameters that are needed}, that the class @owner has not so: "name()", "name(parameter)"; None: none."""
    for name, parameters in methods.items():
        if not callable(method := getattr(owner, name, None)):
            return f"{name}()"
        has = inspect.signature(method).parameters
        if any(one.kind is one.VAR_KEYWORD for one in has.values()):
            continue
        if missing := [one for one in parameters if one not in has]:
            return f"{name}({missing[0]})"
    return None


def counts_forwards(method, rows_of, last_step=lambda *args: -1):
    """@method of an engine whose rows the adapter cannot say the requests of: each call begins a step of nobody's rows, so that a HookSpec with
    `begin: step` captures them. rows_of(*args): how many tokens; a batch may be padded to the next power of two (to 512 at least).
    last_step(*args): the number of the step before the first one. A call of which these cannot say it (a dummy's) begins none."""
    steps = None

    @functools.wraps(method)
    def counting(*args, **kwargs):
        nonlocal steps
        try:
            steps = itertools.count(last_step(*args) + 1) if steps is None else steps
            calls.step_begin(next(steps), [], 1 << max(rows_of(*args) - 1, 511).bit_length())
        except Exception:
            calls.step_end()
        return method(*args, **kwargs)
    return counting


MOST_HELD = 20_000  # objects that held_by() looks at


def held_by(thing, is_wanted):
    """What @thing is, or holds in its attributes, lists and dicts (or they in theirs), and is_wanted(): the outermost, nearest first.

    A wrapper of a model keeps it in some attribute, whatever that is called: also one in __dict__ alone, or the object of a bound method.
    """
    found, seen, nearest = [], {id(thing)}, collections.deque([thing])
    while nearest and len(seen) < MOST_HELD:
        one = nearest.popleft()
        if is_wanted(one):
            found.append(one)
            continue
        for inside in _contents(one):
            if id(inside) not in seen:
                seen.add(id(inside))
                nearest.append(inside)
    return found


def _contents(one):
    """What is in a container, or in an object's attributes; nothing of classes, modules, functions, texts and numbers."""
    if isinstance(one, dict):
        return [value for value in one.values() if not isinstance(value, _PLAIN)]
    if isinstance(one, (list, tuple, set, frozenset)):
        return [value for value in one if not isinstance(value, _PLAIN)]
    if isinstance(one, types.MethodType):
        return [one.__self__]
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)):
        return []
    return [value for value in getattr(one, "__dict__", {}).values() if not isinstance(value, _PLAIN)]


_PLAIN = (str, bytes, int, float, complex, type(None))


_waiting = {}  # {module: what is called once it is imported, in this order}


def when_imported(name, then):
    """Call @then(module) once the module @name is imported: now, if it is. Imports nothing by itself."""
    if name in sys.modules:
        then(sys.modules[name])
    elif name in _waiting:
        _waiting[name].append(then)
    else:
        _waiting[name] = [then]
        sys.meta_path.insert(0, _Finder(name))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets those that wait for the module @name see it once its code has run."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        waiting = _waiting.pop(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                for then in waiting:
                    then(module)
            spec.loader.exec_module = exec_module
        return spec


ATTENTION, CACHE = "dmi.attention", "dmi.cache"  # tags that readers know: rows of cached tokens, docs/format.md 8


def marks(tags, cache=None, sees_later=False):
    """Text of tags with what a reader must know before it gives a request rows of another one's. @cache: what an engine's prefix cache
    is keyed by beside token ids; @sees_later: does attention see later tokens?"""
    tags = marked(tags, CACHE, cache) if cache else tags
    return marked(tags, ATTENTION, "bidirectional") if sees_later else tags


def marked(tags, key, value):
    """Text of tags, with a mark of ours beside the user's own: readers look for its key."""
    try:
        own = json.loads(tags) if tags else {}
    except ValueError:
        own = None
    return json.dumps({**(own if isinstance(own, dict) else {"text": tags}), key: value})


def version_of(package):
    """The version as it is written, and its first two numbers: ("5.19.0", (5, 19)); ("none", (0, 0)) where it has none."""
    import importlib.metadata
    try:
        text = importlib.metadata.version(package)
        return text, tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in (text.split(".") + ["0"])[:2])
    except importlib.metadata.PackageNotFoundError:
        return "none", (0, 0)
