# SPDX-License-Identifier: Apache-2.0
"""Operators whose own kernels are generated: elementwise ones and reductions, with PyTorch's whole names.

Elementwise kernels are functors under four wrappers (elementwise.cuh). A functor's row has its name, its fields, its
expression and, for each type, how PyTorch names it: `lam("exp_kernel_cuda(TIB&)", "2/4")` is the lambda that is found in the
fourth lambda of the second one of at::native::exp_kernel_cuda(at::TensorIteratorBase&). kernels.py has the names of all others.
"""

TYPES = {  # ours: PyTorch's, what is computed in, how that is named there
    "f32": ("float", "f32", "float"), "f64": ("double", "f64", "double"),
    "bf16": ("c10::BFloat16", "f32", "float"), "f16": ("c10::Half", "f32", "float"),
    "i64": ("long", "i64", "long"), "i32": ("int", "i32", "int"), "i16": ("short", "i16", "short"),
    "i8": ("signed char", "i8", "signed char"), "u8": ("unsigned char", "u8", "unsigned char"), "bool": ("bool", "bool", "bool"),
}
FLOATS = ["f32", "bf16", "f64"]
NUMBERS = ["f32", "bf16", "f64", "i64", "i32"]


def named(type_):
    return TYPES[type_][0]


def math(type_):
    return TYPES[type_][1]


def spelled(text):
    """PyTorch's name for what stands here in short."""
    for short, whole in (("TIB&", "at::TensorIteratorBase&"), ("TI&", "at::TensorIterator&"), ("Scalar", "c10::Scalar"),
                         ("ANON", "(anonymous namespace)")):
        text = text.replace(short, whole)
    return "at::native::" + text


def lam(function, path, types, last=1):
    """The lambda of @types in lambdas without arguments, @path, in a function."""
    inner = "".join(f"{{lambda()#{n}}}::operator()() const::" for n in path.split("/") if n)
    return f"{spelled(function)}::{inner}{{lambda({', '.join(named(t) for t in types)})#{last}}}"


class Functor:
    """One functor: @own is our name, @out and @ins its types, @fields its fields in C.

    @code is an expression of a, b and c, which have the type M. @body is one of load, for functors that hold another.
    """

    def __init__(self, own, name, out, ins, code, fields="", *, body=None, casts=True):
        self.own, self.name, self.out, self.ins, self.code, self.fields, self.body, self.casts = own, name, out, ins, code, fields, body, casts


FUNCTORS = []


def unary(own, function, paths, code, *, out=None, fields="", last=1):
    for type_, path in paths.items():
        FUNCTORS.append(Functor(f"{own}_{type_}", lam(function, path, [type_], last), out or type_, [type_], code,
                                fields.replace("T", type_).replace("M", math(type_))))


def binary_lambda(own, function, paths, code, *, fields="", last=1):
    for type_, path in paths.items():
        FUNCTORS.append(Functor(f"{own}_{type_}", lam(function, path, [type_, type_], last), type_, [type_, type_], code,
                                fields.replace("T", type_).replace("M", math(type_))))


def paths(f32, bf16, f64, **more):
    return {"f32": f32, "bf16": bf16, "f64": f64, **more}


# The usual order of types in PyTorch's lambdas over floating types; others name their own.
HALF_FIRST = paths("2/2", "2/4", "2/1")
ONE = paths("1/2", "1/4", "1/1")

for own_, code_ in (("exp", "exp(a)"), ("sin", "sin(a)"), ("cos", "cos(a)"), ("sqrt", "sqrt(a)"), ("log", "log(a)"), ("tanh", "tanh(a)"),
                    ("sigmoid", "M(1) / (M(1) + exp(-a))")):
    unary(own_, f"{own_}_kernel_cuda(TIB&)", HALF_FIRST, code_)
unary("rsqrt", "rsqrt_kernel_cuda(TIB&)", paths("2/2", "2/3", "2/1"), "M(1) / sqrt(a)")
unary("reciprocal", "reciprocal_kernel_cuda(TIB&)", paths("1/2", "1/6", "1/1"), "M(1) / a")
unary("neg", "neg_kernel_cuda(TIB&)", paths("2/7", "2/9", "2/6", i32="2/3", i64="2/4"), "-a")
unary("silu", "ANON::silu_kernel(TIB&)", paths("1/2", "1/6", "1/1"), "a / (M(1) + exp(-a))")
unary("gelu_tanh", "GeluCUDAKernelImpl(TIB&, at::native::GeluType)", ONE,
      "M(0.5) * a * (M(1) + tanh(M(0.7978845608028654) * (a + M(0.044715) * a * a * a)))")
unary("gelu", "GeluCUDAKernelImpl(TIB&, at::native::GeluType)", paths("2/2", "2/4", "2/1"), "a * M(0.5) * (M(1) + erf(a * M(0.7071067811865476)))")
unary("logical_not", "logical_not_kernel_cuda(TIB&)", paths("2/7", "2/12", "2/6", bool="2/10", i32="2/3", i64="2/4"), "!a", out="bool")
unary("bitwise_not", "bitwise_not_kernel_cuda(TIB&)", {"i32": "1/3", "i64": "1/4"}, "~a")
unary("bitwise_not", "bitwise_not_kernel_cuda(TIB&)", {"bool": ""}, "!a")
unary("isneginf", "ANON::isneginf_kernel_impl(TIB&)", ONE, "a < M(0) && a - a != M(0)", out="bool")
unary("copy", "direct_copy_kernel_cuda(TIB&)", paths("3/7", "3/12", "3/6", f16="3/10", i32="3/3", i64="3/4", bool="3/11"), "a")
# Two copies that convert, each a lambda of its own.
FUNCTORS.append(Functor("copy_to_bf16", lam("bfloat16_copy_kernel_cuda(TIB&)", "", ["f32"]), "bf16", ["f32"], "a", casts=False))
FUNCTORS.append(Functor("copy_to_f16", lam("float16_copy_kernel_cuda(TIB&)", "", ["f32"]), "f16", ["f32"], "a", casts=False))

for type_ in TYPES:
    FUNCTORS.append(Functor(f"fill_{type_}", f"at::native::FillFunctor<{named(type_)}>", type_, [], "value", f"{type_} value;", casts=False))
for type_ in NUMBERS + ["bool"]:
    whole_ = named(type_)
    FUNCTORS.append(Functor(f"abs_{type_}", f"at::native::AbsFunctor<{whole_}>", type_, [type_], "a < M(0) ? -a : a == M(0) ? M(0) : a"))
    scaled = f"{math(type_)} scale;"
    FUNCTORS.append(Functor(f"add_{type_}", f"at::native::CUDAFunctor_add<{whole_}>", type_, [type_] * 2, "a + scale * b", scaled))
    FUNCTORS.append(Functor(f"add_other_{type_}", f"at::native::CUDAFunctorOnSelf_add<{whole_}>", type_, [type_], "a + scale * other",
                            f"{math(type_)} other; {scaled}"))
    FUNCTORS.append(Functor(f"add_to_{type_}", f"at::native::CUDAFunctorOnOther_add<{whole_}>", type_, [type_], "self + scale * a",
                            f"{math(type_)} self; {scaled}"))
    orders = "order == 0 ? a >= b : order == 1 ? a > b : order == 2 ? a <= b : a < b"
    FUNCTORS.append(Functor(f"compare_{type_}", f"at::native::(anonymous namespace)::CompareFunctor<{whole_}>", "bool", [type_] * 2, orders, "int order;"))
    FUNCTORS.append(Functor(
        f"compare_scalar_{type_}",
        f"at::native::compare_scalar_kernel<{whole_}>(at::TensorIteratorBase&, at::native::(anonymous namespace)::OpType, {whole_})::{{lambda({whole_})#1}}",
        "bool", [type_], orders.replace("b", "M(right)"), f"int order; {type_} right;"))

CLAMP = "limits == 0 ? (a < M(low) ? M(low) : a) : limits == 1 ? (a > M(low) ? M(low) : a) : a < M(low) ? M(low) : a > M(high) ? M(high) : a"
for type_, path_ in paths("1/7", "1/9", "1/6", i32="1/3", i64="1/4").items():
    FUNCTORS.append(Functor(f"clamp_{type_}", lam("ANON::launch_clamp_scalar(TIB&, Scalar, Scalar, at::native::detail::ClampLimits)", path_, [type_]), type_, [type_],
                            f"a != a ? a : {CLAMP}", f"int limits; {math(type_)} low, high;"))
for type_, path_ in {"f32": "1/11", "f16": "1/2", "bf16": "1/3", "bool": "1/4", "i32": "1/7", "i64": "1/8"}.items():
    FUNCTORS.append(Functor(f"where_{type_}", lam("ANON::where_kernel_impl(TI&)", path_, ["bool", type_, type_]), type_, ["bool", type_, type_], "a ? b : c"))
for type_, path_ in {"f32": "1/7", "bf16": "1/12", "f64": "1/6", "bool": "1/10", "i32": "1/3", "i64": "1/4"}.items():
    FUNCTORS.append(Functor(f"masked_fill_{type_}", lam("ANON::masked_fill_kernel(TI&, Scalar const&)", path_, [type_, "bool"]), type_, [type_, "bool"],
                            "b ? M(value) : a", f"{type_} value;"))
for type_ in NUMBERS:
    whole_ = named(type_)
    power = f"at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<{whole_}, {whole_}>(at::TensorIteratorBase&, {whole_})::{{lambda({whole_})#"
    FUNCTORS.append(Functor(f"square_{type_}", power + "1}", type_, [type_], "a * a"))
    FUNCTORS.append(Functor(f"cube_{type_}", power + "2}", type_, [type_], "a * a * a"))
    if type_ in FLOATS:
        FUNCTORS.append(Functor(f"pow_{type_}", power + "4}", type_, [type_], "pow(a, M(exponent))", f"{type_} exponent;"))


def binary(own, operator, types, code, *, out=None, fields="", rounded=True, left=True, right=True):
    """A functor of two inputs, and those that hold it and one of the inputs. @operator(type) is its name.

    @rounded: it takes elements, and the input that is held is one; else both are what is computed in.
    """
    for type_ in types:
        name, result = operator(type_), out or type_
        shown = f"<{named(type_)}, {named(type_)}, {named(result)}, {name}{' ' if name.endswith('>') else ''}>"
        FUNCTORS.append(Functor(f"{own}_{type_}", f"at::native::BinaryFunctor{shown}", result, [type_] * 2, code, fields))
        loaded = f"load.template get<{type_}>(0)"
        for side, name, wanted, of in (("left", "A", left, f"fixed, {loaded}"), ("right", "B", right, f"{loaded}, fixed")):
            if wanted:
                FUNCTORS.append(Functor(f"{own}_{side}_{type_}", f"at::native::{name}UnaryFunctor{shown}", result, [type_], None,
                                        f"{own}_{type_} f; {type_ if rounded else math(type_)} fixed;", body=f"f.of({of})"))


def templated(name, on_math=False):
    return lambda type_: f"at::native::{name}<{TYPES[type_][2] if on_math else named(type_)}>"


def lambda_of(function, paths_):
    return lambda type_: lam(function, paths_[type_], [type_, type_])


INTEGERS = ["i64", "i32"]
binary_lambda("silu_gradient", "ANON::silu_backward_kernel(TIB&)", ONE, "a / (M(1) + exp(-b)) * (M(1) + b * (M(1) - M(1) / (M(1) + exp(-b))))")
binary("mul", templated("binary_internal::MulFunctor", True), NUMBERS + ["bool"], "a * b", rounded=False, right=False)
binary("div", templated("binary_internal::DivFunctor"), FLOATS, "a / b")
for type_, path_ in paths("2/2", "2/4", "2/1").items(): # the divisor is a number, and its reciprocal is there, too
    FUNCTORS.append(Functor(f"floor_divide_by_{type_}", lam("binary_internal::div_floor_kernel_cuda(TIB&)", path_, [type_]), type_, [type_],
                            "floor_divide(a, M(by))", f"{math(type_)} by, inverse;"))
for type_ in FLOATS: # what divides by a number multiplies by its reciprocal
    held_ = f"<{named(type_)}, {named(type_)}, {named(type_)}, at::native::binary_internal::MulFunctor<{TYPES[type_][2]}> >"
    FUNCTORS.append(Functor(f"mul_right_{type_}", f"at::native::BUnaryFunctor{held_}", type_, [type_], None,
                            f"mul_{type_} f; {math(type_)} fixed;", body=f"f.of(load.template get<{type_}>(0), fixed)"))
binary("equal", templated("(anonymous namespace)::CompareEqFunctor"), NUMBERS + ["bool"], "differs ? a != b : a == b", out="bool", fields="int differs;",
       right=False)
for own_, code_ in (("And", "a & b"), ("Or", "a | b"), ("Xor", "a ^ b")):
    binary("bitwise_" + own_.lower(), templated(f"Bitwise{own_}Functor"), INTEGERS + ["bool"], code_, right=False)
for own_, code_ in (("and", "a && b"), ("or", "a || b")):
    binary("logical_" + own_, lambda_of(f"logical_{own_}_kernel_cuda(TI&)", {"f32": "2/7", "bf16": "2/10", "bool": "2/9", "i32": "2/3", "i64": "2/4"}),
           ["f32", "bf16", "bool"] + INTEGERS, code_, out="bool", right=False)
FLOORED = paths("3/2", "3/4", "3/1", i32="1/3", i64="1/4")
EXTREME = paths("2/2", "2/4", "2/1", i32="1/3", i64="1/4")
binary("maximum", lambda_of("maximum_kernel_cuda(TIB&)", EXTREME), NUMBERS, "a != a ? a : b != b ? b : a > b ? a : b", right=False)
binary("minimum", lambda_of("minimum_kernel_cuda(TIB&)", EXTREME), NUMBERS, "a != a ? a : b != b ? b : a < b ? a : b", right=False)
binary("floor_divide", lambda_of("binary_internal::div_floor_kernel_cuda(TIB&)", FLOORED), NUMBERS, "floor_divide(a, b)")
binary("remainder", lambda_of("remainder_kernel_cuda(TIB&)", EXTREME), NUMBERS, "remainder_of(a, b)")


def wrappers(functor):
    """(whole name, kernel) of each kernel of PyTorch's that applies @functor."""
    name, tensors = functor.name, len(functor.ins) + 1
    gap = " " if name.endswith(">") else ""
    data = f"std::array<char*, {tensors}ul>"
    for width in (2, 4, 8):
        yield f"void at::native::vectorized_elementwise_kernel<{width}, {name}, {data} >(int, {name}, {data})", "dense"
    rest = f"TrivialOffsetCalculator<{tensors - 1}, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::"
    for kind, load, store, end in (("dense", "LoadWithoutCast", "StoreWithoutCast", ""),
                                   ("dense_cast", f"LoadWithCast<{tensors - 1}>", "StoreWithCast<1>", " ")):
        more = f"{rest}{load}, at::native::memory::{store}"
        yield f"void at::native::unrolled_elementwise_kernel<{name}, {data}, 4, {more}{end}>(int, {name}, {data}, {more})", kind
    for kind, function in (("strided", "gpu_kernel_impl_nocast"), ("strided_cast", "gpu_kernel_impl")):
        inner = f"at::native::{function}<{name}{gap}>(at::TensorIteratorBase&, {name} const&)::{{lambda(int)#1}}"
        for elements in (2, 4):
            yield f"void at::native::elementwise_kernel<128, {elements}, {inner}>(int, {inner})", kind


REDUCTIONS = []  # (own name, its operation in reduce.cuh, PyTorch's whole names)


def reduction(own, code, in_, operation, out, sizes="4, 4"):
    """@operation as PyTorch names it, from @in_ to @out; a kernel for each number of outputs that a thread has there."""
    whole = f"at::native::ReduceOp<{named(in_)}, {operation}, unsigned int, {named(out)}, {sizes}>"
    REDUCTIONS.append((own, code, [f"void at::native::reduce_kernel<{threads}, {outputs}, {whole} >({whole})"
                                   for threads, outputs in ((512, 1), (256, 2), (128, 4))]))


for in_, out_ in (("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32"), ("f64", "f64"), ("i64", "i64"), ("i32", "i32")):
    sizes_, m_ = "4, 8" if in_ == "bf16" else "4, 4", math(in_)
    functor_ = f"at::native::sum_functor<{named(in_)}, {TYPES[in_][2]}, {named(out_)}>::operator()(at::TensorIterator&)"
    reduction(f"sum_{in_}_{out_}", f"sum_op<{in_}, {out_}, {m_}, char>", in_,
              f"at::native::func_wrapper_t<{named(out_)}, {functor_}::{{lambda({TYPES[in_][2]}, {TYPES[in_][2]})#1}}>", out_, sizes_)
    if in_ in FLOATS:
        reduction(f"mean_{in_}_{out_}", f"mean_op<{in_}, {out_}, {m_}>", in_,
                  f"at::native::MeanOps<{named(in_)}, {TYPES[in_][2]}, {TYPES[in_][2]}, {named(out_)}>", out_, sizes_)
for in_, out_ in (("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32")):
    reduction(f"norm_two_{in_}_{out_}", f"norm_two_op<{in_}, {out_}, f32>", in_, f"at::native::NormTwoOps<{named(in_)}, float, {named(out_)}, true>", out_)
    reduction(f"variance_{in_}_{out_}", f"variance_op<{in_}, {out_}>", in_,
              f"at::native::WelfordOps<{named(in_)}, float, int, cuda::std::__4::pair<{named(out_)}, {named(out_)}> >", out_, "2, 2")
for type_, path_ in {"bool": 12, "f32": 7, "bf16": 11, "i32": 3, "i64": 4}.items():
    for own_, all_ in (("and", "true"), ("or", "false")):
        reduction(f"reduce_{own_}_{type_}", f"logic_op<{type_}, {all_}>", type_,
                  f"at::native::func_wrapper_t<bool, {lam(f'{own_}_kernel_cuda(TI&)', f'1/{path_}', [type_] * 2)}>", "bool")
for type_ in NUMBERS:
    math_ = TYPES[type_][2]
    for own_, largest_ in (("Max", "true"), ("Min", "false")):
        lower_ = own_.lower()
        reduction(f"arg_{lower_}_{type_}", f"extreme_op<{type_}, {math(type_)}, i64, {largest_}, false, true>", type_,
                  f"at::native::Arg{own_}Ops<{math_}>", "i64")
        reduction(f"{lower_}_with_index_{type_}", f"extreme_op<{type_}, {type_}, i64, {largest_}, true, true>", type_,
                  f"at::native::{own_}Ops<{named(type_)}>", type_)
        reduction(f"{lower_}_{type_}", f"extreme_op<{type_}, {type_}, i64, {largest_}, true, false>", type_,
                  f"at::native::func_wrapper_t<{named(type_)}, at::native::{own_}NanFunctor<{named(type_)}> >", type_)
