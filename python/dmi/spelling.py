# SPDX-License-Identifier: Apache-2.0
"""Arguments that choose are called sites, layers and requests; what they were called before is taken for one version more."""
import functools
import warnings

FORMER = {"site": "sites", "layer": "layers", "request": "requests"}


def chooses(call):
    """A call with such arguments. A DeprecationWarning names what takes the place of a former one; TypeError where both are given."""
    @functools.wraps(call)
    def spelled(*args, **given):
        for former in FORMER.keys() & given.keys():
            now = FORMER[former]
            if now in given:
                raise TypeError(f"{call.__qualname__}(): {former}= is what {now}= was called before; one of them was expected")
            warnings.warn(f"{call.__qualname__}(): {former}= is called {now}= now, and goes with the next version", DeprecationWarning, stacklevel=2)
            given[now] = given.pop(former)
        return call(*args, **given)
    return spelled
