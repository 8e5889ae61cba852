# SPDX-License-Identifier: Apache-2.0
"""Which own kernel stands in the place of which of PyTorch's: whole names, as the demangler writes them.

KERNELS has the names of what is written in .cu files; names() adds those that table.py generates.
"""
from table import FUNCTORS, REDUCTIONS, named, wrappers

KERNELS = {}  # name of an own kernel: PyTorch's whole names


def kernel(own, *all_names):
    """PyTorch's names of an own kernel of a .cu file."""
    KERNELS.setdefault(own, []).extend(all_names)


# ---- ranges.cu ----
for type_, path_ in {"i32": 3, "i64": 4, "f64": 6, "f32": 7, "bf16": 9}.items():
    lambda_ = "at::native::arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)::{lambda()#1}::operator()() const::"
    lambda_ += f"{{lambda()#{path_}}}::operator()() const::{{lambda(long)#1}}"
    for index_ in ("int", "long") if type_ != "bf16" else ("int",):
        kernel(f"arange_{type_}" if index_ == "int" else f"arange_long_{type_}",
               f"void (anonymous namespace)::elementwise_kernel_with_index<{index_}, {lambda_}>({index_}, {lambda_}, function_traits<{lambda_}>::result_type*)")
for type_, elements_ in {"f32": 2, "bf16": 4, "bool": 8, "i64": 1, "i32": 2}.items():
    for index_ in ("int", "long"):
        for upper_ in ("true", "false"):
            for in_place_ in ("true", "false"):
                kernel(f"{'triu' if upper_ == 'true' else 'tril'}_{type_}_{index_}",
                       f"void at::native::triu_tril_kernel<{named(type_)}, {index_}, {upper_}, {elements_}, {in_place_}>(at::cuda::detail::TensorInfo<{named(type_)}, "
                       f"{index_}>, at::cuda::detail::TensorInfo<{named(type_)} const, {index_}>, long, long, {index_})")

# ---- softmax.cu ----
for in_, out_, width_ in (("f32", "f32", 4), ("bf16", "bf16", 8), ("bf16", "f32", 8)):
    both_ = f"({named(out_)}*, {named(in_)} const*"
    for log_ in (False, True):
        own_ = f"{'log_' if log_ else ''}softmax_{in_}_{out_}"
        for power_ in range(12):
            for masked_ in ("false",):
                kernel(f"warp_{own_}", f"void (anonymous namespace)::softmax_warp_forward<{named(in_)}, {named(out_)}, float, {power_}, "
                       f"{str(log_).lower()}, {masked_}>{both_}, int, int, int, bool const*, int, bool)")
        finish_ = f"at::native::(anonymous namespace)::{'Log' if log_ else ''}SoftMaxForwardEpilogue"
        kinds_ = f"{named(in_)}, float, {named(out_)}, {finish_}"
        kernel(f"block_{own_}", f"void at::native::(anonymous namespace)::cunn_SoftMaxForwardSmem<{width_}, {kinds_}, long>{both_}, long)",
               *(f"void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<{kinds_}, long, {n_}>{both_}, long)" for n_ in range(1, 10) if in_ == out_))
        kernel(f"large_{own_}", f"void at::native::(anonymous namespace)::cunn_SoftMaxForward<{width_}, {kinds_}>{both_}, int)")

# ---- norm.cu ----
for type_ in ("f32", "bf16", "f16"):
    t_ = named(type_)
    for own_, rms_ in (("layer", "false"), ("rms", "true")):
        kernel(f"{own_}_norm_{type_}", f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{t_}, float, {rms_}>(int, float, {t_} const*, {t_} const*, "
               f"{t_} const*, float*, float*, {t_}*)")
        kernel(f"{own_}_moments_{type_}", f"void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<{t_}, float, {rms_}>(long, float, {t_} const*, float*, float*)")
        kernel(f"{own_}_of_moments_{type_}", f"void at::native::(anonymous namespace)::LayerNormForwardCUDAKernel<{t_}, float, {rms_}>(long, {t_} const*, float const*, "
               f"float const*, {t_} const*, {t_} const*, {t_}*)")

# ---- scan.cu ----
CUB = "at_cuda_detail::cub::"
for type_ in ("i64", "i32", "f32", "bf16"):
    t_ = named(type_)
    tiles_, rest_ = f"{CUB}ScanTileState<{t_}, {str(type_ != 'bf16').lower()}>", f"std::plus<{t_}>, {CUB}NullType, unsigned int"
    kernel("begin_scan", f"void {CUB}detail::scan::DeviceScanInitKernel<{tiles_} >({tiles_}, int)")
    kernel(f"scan_all_{type_}", f"void {CUB}detail::scan::DeviceScanKernel<{CUB}detail::scan::policy_hub<{t_}, {t_}, {t_}, unsigned int, std::plus<{t_}> >::Policy1000, "
           f"{t_} const*, {t_}*, {tiles_}, {rest_}, {t_}, false, {CUB}NullType>({t_} const*, {t_}*, {tiles_}, int, {rest_})")
for type_ in ("f32", "bf16", "i64", "i32"):
    t_ = named(type_)
    kernel(f"scan_rows_{type_}", f"void at::native::tensor_kernel_scan_innermost_dim<{t_}, std::plus<{t_}> >({t_}*, {t_} const*, unsigned int, unsigned int, "
           f"unsigned int, {t_}, std::plus<{t_}>)")
    for index_ in ("int", "long"):
        kernel(f"scan_columns_{type_}_{index_}", f"void at::native::tensor_kernel_scan_outer_dim<{t_}, unsigned {index_}, std::plus<{t_}> >({t_}*, {t_} const*, "
               f"unsigned int, unsigned int, unsigned int, {t_}, std::plus<{t_}>)")


# ---- index.cu ----
ARRAYS = "c10::ArrayRef<long>, c10::ArrayRef<long>"
for size_ in (1, 2, 4, 8, 16):
    opaque_ = f"at::native::OpaqueType<{size_}>"
    for own_, function_, iterator_ in (("index", "index_kernel_impl", "at::TensorIteratorBase&"), ("index_put", "index_put_kernel_impl", "at::TensorIterator&")):
        inner_ = f"at::native::{function_}<{opaque_} >({iterator_}, {ARRAYS})::{{lambda(char*, char const*, long)#1}}"
        inner_ = f"at::native::gpu_index_kernel<{inner_}>(at::TensorIteratorBase&, {ARRAYS}, {inner_} const&, bool)::{{lambda(int)#1}}"
        kernel(f"{own_}_{size_}", f"void at::native::index_elementwise_kernel<128, 4, {inner_}>(long, {inner_})")
    inner_ = f"at::native::index_copy_kernel_impl<{opaque_} >(at::TensorIterator&, long, long, long)::{{lambda(int)#1}}"
    kernel(f"index_copy_{size_}", f"void at::native::index_elementwise_kernel<128, 4, {inner_}>(long, {inner_})")
    for own_, scatters_, index_ in (("gather", "false", "long"), ("gather_int", "false", "int"), ("scatter", "true", "long")):
        inner_ = f"at::native::_cuda_scatter_gather_internal_kernel<{scatters_}, {opaque_}, {index_}>::operator()<at::native::TensorAssign>"
        inner_ += "(at::TensorIterator&, long, long, long, at::native::TensorAssign const&)::{lambda(int)#1}"
        kernel(f"{own_}_{size_}", f"void at::native::_scatter_gather_elementwise_kernel<128, 8, {inner_}>(int, {inner_})")
    inner_ = f"at::native::_cuda_scatter_fill_internal_kernel<{opaque_}, long>::operator()<at::native::TensorAssign>"
    inner_ += f"(at::TensorIterator&, {opaque_}, long, long, long, at::native::TensorAssign const&)::{{lambda(int)#1}}"
    kernel(f"scatter_fill_{size_}", f"void at::native::_scatter_gather_elementwise_kernel<128, 8, {inner_}>(int, {inner_})")
for index_ in ("int", "long"):
    kernel(f"gather_rows_{index_}", f"void at::native::vectorized_gather_kernel<16, {index_}>(char*, char*, {index_}*, int, long, long, long, long, bool)")

for type_ in ("f32", "bf16", "i64", "bool", "u8"):
    for index_ in ("int", "long"):
        infos_ = ", ".join(f"at::cuda::detail::TensorInfo<{whole_}, unsigned int>" for whole_ in (named(type_), named(type_) + " const", index_ + " const"))
        for dims_ in ("1, 1, -2", "2, 2, -2", "3, 3, -2", "-1, -1, -1"):
            kernel(f"index_select_{type_}_{index_}", f"void at::native::(anonymous namespace)::indexSelectSmallIndex<{named(type_)}, {index_}, unsigned int, {dims_}>"
                   f"({infos_}, int, int, unsigned int, long)")

ADD = "at::native::(anonymous namespace)::ReduceAdd"
for type_ in ("f32", "bf16"):
    infos_ = ", ".join(f"at::cuda::detail::TensorInfo<{whole_}, unsigned int>" for whole_ in (named(type_), named(type_) + " const", "long const"))
    for dims_ in ("1, 1, -2", "2, 2, -2", "3, 3, -2", "-1, -1, -1"):
        kernel(f"index_add_{type_}", f"void at::native::indexFuncSmallIndex<{named(type_)}, long, unsigned int, {dims_}, {ADD}>({infos_}, int, int, unsigned int, long, "
               f"long, {ADD} const&, {named(type_)})")
        for major_ in ("true", "false") if dims_[0] in "23" else ("true",):
            kernel(f"index_add_many_{type_}", f"void at::native::indexFuncLargeIndex<{named(type_)}, long, unsigned int, {dims_}, {major_}, {ADD}>({infos_}, int, int, "
                   f"unsigned int, unsigned int, long, long, {ADD} const&, {named(type_)})")

# ---- cat.cu ----
CAT = "at::native::(anonymous namespace)::"
for size_ in (1, 2, 4, 8):
    opaque_ = f"{CAT}OpaqueType<{size_}u>"
    for dims_ in (1, 2, 3, 4):
        for batch_, shapes_ in ((64, 64), (128, 1)):
            inputs_ = f"{CAT}CatArrInputTensorMetadata<{opaque_}, unsigned int, {batch_}, {shapes_}>"
            rest_ = f"({opaque_}*, {inputs_}, {CAT}TensorSizeStride<unsigned int, 4u>, int, unsigned int)"
            kind_ = f"<{opaque_}, unsigned int, {dims_}, {batch_}, {shapes_}"
            kernel(f"cat_wide_{size_}_{dims_}_{batch_}", f"void {CAT}CatArrayBatchedCopy_vectorized{kind_}, 16, {16 // size_}>(char*, {rest_.partition('*, ')[2]}")
            kernel(f"cat_{size_}_{dims_}_{batch_}", f"void {CAT}CatArrayBatchedCopy{kind_}>{rest_}", f"void {CAT}CatArrayBatchedCopy_contig{kind_}>{rest_}",
                   *(f"void {CAT}CatArrayBatchedCopy_alignedK_contig{kind_}, {bytes_}>{rest_}" for bytes_ in (8, 16)))


# ---- foreach.cu ----
LISTS = "at::native::(anonymous namespace)::"
for to_, from_ in (*((type_, type_) for type_ in ("f32", "bf16", "f16", "i64", "i32", "bool")), ("f32", "bf16"), ("bf16", "f32")):
    functor_ = f"{LISTS}{f'UnaryOpFunctor<{named(to_)}' if to_ == from_ else f'CopyFunctor<{named(to_)}, {named(from_)}'}, 2, 1, 1>"
    kinds_ = f"{LISTS}TensorListMetadata<2>, {functor_}, at::native::Copy<{named(to_)}, {named(from_)}>"
    kernel(f"foreach_copy_{to_}_{from_}", f"void {LISTS}multi_tensor_apply_kernel<{kinds_} >({kinds_})")


# ---- backward.cu ----
for in_, out_ in (("f32", "f32"), ("bf16", "bf16"), ("f32", "bf16")):
    for own_, log_ in (("softmax_gradient", "false"), ("log_softmax_gradient", "true")):
        kernel(f"{own_}_{in_}_{out_}", *(
            f"void (anonymous namespace)::softmax_warp_backward<{named(in_)}, {named(out_)}, float, {power_}, {log_}, false>({named(out_)}*, {named(in_)} const*, "
            f"{named(in_)} const*, int, int, int, bool const*)" for power_ in range(11)))
LOSS = "void at::native::(anonymous namespace)::"
kernel("loss_f32", f"{LOSS}nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, float const*, long const*, float const*, bool, long, long, long, long)")
kernel("loss_gradient_f32", f"{LOSS}nll_loss_backward_reduce_cuda_kernel_2d<float, long>(float*, float const*, long const*, float const*, float const*, bool, int, int, long, long)")
for type_ in ("f32", "bf16"):
    kernel(f"embedding_gradient_{type_}",
           f"{LOSS}embedding_backward_feature_kernel<{named(type_)}, float, long>(long const*, {named(type_)} const*, {named(type_)}*, int, long, int)")

# ---- attention.cu ----
# {type: how CUTLASS names it}, and which kernels of it there are for a device of 8.0: what of it is a number stands in the name, too.
CUTLASS = {"f32": "float", "bf16": "cutlass::bfloat16_t", "f16": "cutlass::half_t"}
for type_, t_ in CUTLASS.items():
    for at_, aligned_ in (("80", True), ("75", False)):
        shown_ = f"{type_}_{'' if aligned_ else 'not'}aligned"
        for queries_, keys_, most_ in (("64", "64", "64"), ("64" if aligned_ else "32", "128", "128"), ("32", "128", "65536")):
            kernel(f"attention_{type_}", f"fmha_cutlassF_{shown_}_{queries_}x{keys_}_{'gmem' if most_ == '65536' else 'rf'}_sm{at_}(PyTorchMemEffAttention::AttentionKernel<{t_}, "
                   f"cutlass::arch::Sm{at_}, {str(aligned_).lower()}, {queries_}, {keys_}, {most_}, true, true>::Params)")
        for block_, most_ in (("64, 64", "32"), ("64, 64", "64"), ("128, 64", "96"), ("64, 64", "128"), ("128, 64", "128"), ("128, 128", "128"), ("64, 64", "65536"), ("128, 64", "65536")):
            for ahead_ in ("true", "false"):
                for dense_ in ("true", "false"):
                    kernel(f"attention_gradient_{type_}", f"fmha_cutlassB_{shown_}_{block_.replace(', ', 'x')}_k{most_}{'_seqaligned' if dense_ == 'true' else ''}_sm{at_}"
                           f"(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::arch::Sm{at_}, {t_}, {str(aligned_).lower()}, false, {ahead_}, {block_}, {most_}, {dense_}>::Params)")
    for sizes_ in ("32, 128, 128, 8, 4, 4, 4", "64, 64, 128, 8, 2, 4, 4", "64, 128, 128, 8, 4, 4, 4", "96, 64, 128, 8, 2, 4, 4", "128, 64, 64, 8, 4, 2, 2", "128, 64, 128, 8, 2, 4, 2",
                   "192, 64, 64, 8, 4, 2, 2", "256, 64, 32, 8, 4, 1, 2", "256, 64, 64, 8, 4, 2, 2") if type_ != "f32" else ():
        for ways_ in ("true, false", "false, false", "true, true", "false, true"):
            traits_ = f"Flash_bwd_kernel_traits<{sizes_}, {ways_}, {t_}, Flash_kernel_traits<{', '.join(sizes_.split(', ')[:4])}, {t_}> >"
            for clears_ in ("true", "false"):
                kernel(f"attention_flash_deltas_{type_}", f"void pytorch_flash::flash_bwd_dot_do_o_kernel<{clears_}, {traits_} >(pytorch_flash::Flash_bwd_params)")
            kernel(f"attention_flash_convert_{type_}", f"void pytorch_flash::flash_bwd_convert_dq_kernel<{traits_} >(pytorch_flash::Flash_bwd_params, int)")
            for causal_ in ("false", "true"):
                for dense_ in ("false, false", "false, true", "true, true"):
                    kernel(f"attention_flash_gradient_{'causal_' if causal_ == 'true' else ''}{type_}", "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<"
                           f"{traits_}, false, {causal_}, false, false, {dense_}, false>(pytorch_flash::Flash_bwd_params)")
    for sizes_ in ("32, 128, 128, 4", "64, 128, 128, 4", "96, 128, 64, 4", "96, 64, 64, 4", "128, 128, 32, 4", "128, 128, 64, 4", "128, 64, 64, 4", "192, 128, 64, 8",
                   "256, 128, 64, 8", "256, 64, 64, 4") if type_ != "f32" else ():
        for causal_ in ("false", "true"):
            for dense_ in ("false, false", "false, true", "true, true"):
                kernel(f"attention_flash_{'causal_' if causal_ == 'true' else ''}{type_}", f"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{sizes_}, false, false, {t_}, "
                       f"Flash_kernel_traits<{sizes_}, {t_}> >, false, {causal_}, false, false, {dense_}, false, false>(pytorch_flash::Flash_fwd_params)")

# ---- sort.cu ----
for type_ in ("f32", "bf16", "i64", "i32"):
    t_ = named(type_)
    info_, const_, places_ = (f"at::cuda::detail::TensorInfo<{whole_}, unsigned int>" for whole_ in (t_, t_ + " const", "long"))
    for dims_ in (2, -1, -2):
        for shape_ in ("128, 32", "16, 2", "32, 32", "32, 4", "64, 32"):
            kernel(f"sort_{type_}", f"void at::native::radixSortKVInPlace<{dims_}, -1, {shape_}, {t_}, long, unsigned int>({info_}, unsigned int, unsigned int, "
                   f"unsigned int, {places_}, unsigned int, bool)")
        for own_, order_ in (("down", "GT"), ("up", "LT")):
            before_ = f"at::native::{order_}Op<{t_}, true>"
            kernel(f"sort_{own_}_{type_}", f"void at::native::bitonicSortKVInPlace<{dims_}, -1, 16, 16, {t_}, long, {before_}, unsigned int>({info_}, unsigned int, "
                   f"unsigned int, unsigned int, {places_}, unsigned int, {before_})")
    for dims_ in (1, 2, 3, -1):
        kernel(f"top_{type_}", f"void at::native::sbtopk::gatherTopK<{t_}, unsigned int, {dims_}, false>({const_}, unsigned int, unsigned int, bool, unsigned int, "
               f"unsigned int, {info_}, unsigned int, {places_}, unsigned int, {t_}*)")


# ---- nonzero.cu ----
THRUST, PLUS = "thrust::THRUST_300001_SM_750_800_860_900_1000_1200_NS::", "cuda::std::__4::plus<void>"
DEFAULT, SAME = THRUST + "use_default", "cuda::std::__4::__identity"
SUM = f"{CUB}detail::reduce::policy_hub<int, unsigned long long, {PLUS} >::Policy1000"
TILES = f"{CUB}ScanTileState<int, true>"
kernel("empty", f"void {CUB}detail::EmptyKernel<void>()")
kernel("sum_of_counts", f"void {CUB}detail::reduce::DeviceReduceSingleTileKernel<{SUM}, int*, int*, int, {PLUS}, int, int, {SAME}>(int*, int*, int, {PLUS}, int, {SAME})")
kernel("begin_selection", f"void {CUB}detail::scan::DeviceCompactInitKernel<{TILES}, int*>({TILES}, int, int*)")
for type_ in ("bool", "f32", "bf16", "i64", "i32"):
    flags_ = f"{THRUST}transform_iterator<at::native::(anonymous namespace)::NonZeroOp<{named(type_)}>, {named(type_)} const*, {DEFAULT}, {DEFAULT}>"
    kernel(f"count_{type_}", f"void {CUB}detail::reduce::DeviceReduceSingleTileKernel<{SUM}, {flags_}, int*, unsigned long long, {PLUS}, int, int, {SAME}>({flags_}, int*, "
           f"unsigned long long, {PLUS}, int, {SAME})")
    kernel(f"count_by_block_{type_}", f"void {CUB}detail::reduce::DeviceReduceKernel<{SUM}, {flags_}, unsigned long long, {PLUS}, int, {SAME}>({flags_}, int*, "
           f"unsigned long long, {CUB}GridEvenShare<unsigned long long>, {PLUS}, {SAME})")
    places_, none_ = f"{THRUST}counting_iterator<long, {DEFAULT}, {DEFAULT}, {DEFAULT}>", f"{CUB}NullType"
    stream_ = f"{CUB}detail::select::streaming_context_t<long, true>"
    kernel(f"select_{type_}", f"void {CUB}detail::select::DeviceSelectSweepKernel<{CUB}detail::select::policy_hub<long, bool, int, false, ({CUB}SelectImpl)0>::Policy1000, "
           f"{places_}, {flags_}, long*, int*, {TILES}, {none_}, {none_}, int, {stream_}, ({CUB}SelectImpl)0>({places_}, {flags_}, long*, int*, {TILES}, {none_}, {none_}, "
           f"int, int, {stream_}, {CUB}detail::vsmem_t)")
kernel("indices_of_places", "void at::native::(anonymous namespace)::write_indices<long>(long*, at::native::(anonymous namespace)::TensorDims<long>, int, long, long*, long)")

# ---- random.cu ----
GENERATOR = "at::CUDAGeneratorImpl*"


def in_lambdas(function, n):
    return f"{function}::{{lambda()#1}}::operator()() const::{{lambda()#{n}}}::operator()() const"


def draws(own, type_, drawn, vector, draw, make):
    """The kernels that fill a tensor of @type_ with what @make makes of numbers of the type @drawn, of which @draw draws a @vector."""
    n = 4 if "4" in vector else 2
    for place_, suffix_ in ((1, ""), (2, "_scattered")):
        put = f"at::native::(anonymous namespace)::distribution_nullary_kernel<{named(type_)}, {drawn}, {vector}, {GENERATOR}, {draw}, {make}>(at::TensorIteratorBase&, "
        put += f"{GENERATOR}, {draw} const&, {make})::{{lambda(int, {drawn})#{place_}}}"
        kernel(f"{own}{suffix_}_{type_}", f"void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<{drawn}, {n}, {draw}, {put}>(long, "
               f"at::PhiloxCudaState, {draw}, {put})")


RANDOM = "at::native::templates::cuda::"
for own_, arguments_, kind_, lambdas_ in (
        ("uniform", "at::TensorIteratorBase&, double, double, ", "uniform", {"f64": 1, "f32": 2, "f16": 3, "bf16": 4}),
        ("normal", "at::TensorBase const&, double, double, ", "normal", {"f64": 1, "f32": 2, "f16": 3, "bf16": 4}),
        ("exponential", "at::TensorIteratorBase&, double, ", "uniform", {"f64": 1, "f32": 2, "f16": 3, "bf16": 4}),
        ("bernoulli", "at::TensorIteratorBase&, double, ", "uniform", {"f64": 6, "f32": 7, "f16": 8, "bf16": 9})):
    for type_, n_ in lambdas_.items():
        drawn_ = "double" if type_ == "f64" else "float"
        make_ = in_lambdas(f"{RANDOM}{own_}_kernel<{GENERATOR}>({arguments_}{GENERATOR})", n_) + f"::{{lambda({drawn_})#1}}"
        draw_ = f"{RANDOM}{kind_}_and_transform<{named(type_)}, {drawn_}, {GENERATOR}, {make_}>(at::TensorIteratorBase&, {GENERATOR}, {make_})"
        draws(own_, type_, drawn_, "double2" if type_ == "f64" else "float4", draw_ + f"::{{lambda(curandStatePhilox4_32_10*)#{1 if type_ == 'f64' else 2}}}", make_)
for type_, n_ in {"u8": 1, "i8": 2, "i32": 3, "i64": 4, "i16": 5, "f32": 7, "bool": 8, "f16": 9, "bf16": 10}.items():
    inner_ = in_lambdas(f"{RANDOM}random_from_to_kernel<{GENERATOR}>(at::TensorIteratorBase&, unsigned long, long, {GENERATOR})", n_)
    draws("whole", type_, "unsigned int", "uint4", inner_ + "::{lambda(curandStatePhilox4_32_10*)#2}", inner_ + "::{lambda(unsigned int)#1}")
    if type_ == "i64":
        draws("whole_far", type_, "unsigned long", "ulonglong2", inner_ + "::{lambda(curandStatePhilox4_32_10*)#1}", inner_ + "::{lambda(unsigned long)#1}")
kernel("assert_bool", "void at::native::_assert_async_cuda_kernel<bool>(bool const*, at::native::Msg)")


def names():
    """{PyTorch's whole name: own kernel's}"""
    found = {}
    for functor in FUNCTORS:
        for name, kind in wrappers(functor):
            if functor.casts or not kind.endswith("_cast"):
                found[name] = f"{functor.own}_{kind}"
    for own, all_names in [*KERNELS.items(), *((own, all_names) for own, _, all_names in REDUCTIONS)]:
        for name in all_names:
            found[name] = own
    return found
