#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gen_functors.py FUNCTORS REDUCTIONS: table.py's functors as structs, and their kernels; the kernels of its reductions."""
import sys

import table


def of(functor):
    """The function that computes one element of numbers in what is computed in."""
    names = "abc"[:len(functor.ins)]
    arguments = ", ".join(f"{table.math(type_)} {name}" for type_, name in zip(functor.ins, names))
    kind = table.math(next((type_ for type_ in functor.ins if type_ != "bool"), functor.ins[0] if functor.ins else functor.out))
    return f"""    __device__ out of({arguments}) const
    {{
        typedef {kind} M;
        return out({functor.code});
    }}
"""


def struct(functor):
    loads = ", ".join(f"{table.math(type_)}(load.template get<{type_}>({n}))" for n, type_ in enumerate(functor.ins))
    own = "" if functor.body else of(functor)
    return f"""
struct {functor.own} {{
    {functor.fields}
    typedef {functor.out} out;
    enum {{ n = {len(functor.ins)} }};
{own}    template <class L>
    __device__ out from(const L &load) const
    {{
        return {functor.body or f'of({loads})'};
    }}
}};
"""


def kinds(functor):
    return ["dense", "strided"] + (["dense_cast", "strided_cast"] if functor.casts else [])


def main():
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write('#include "functions.cuh"\n#include "elementwise.cuh"\n')
        for functor in table.FUNCTORS:
            file.write(struct(functor))
            for kind in kinds(functor):
                file.write(f"{kind.upper()}({functor.own})\n")
    with open(sys.argv[2], "w", encoding="ascii") as file:
        file.write('#include "reduce.cuh"\n')
        for own, code, _ in table.REDUCTIONS:
            file.write(f"REDUCE({own}, {code})\n")


main()
