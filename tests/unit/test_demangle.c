/* SPDX-License-Identifier: Apache-2.0 */
/* Names as GNU's demangler writes them, names that it does not know, and the stack that both need. */
#include "core/demangle.h"
#include "core/own_stack.h"

#include <check.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the demangler of libstdc++ 12 makes of them. */
static const struct {
    const char *mangled, *text;
} rows[] = {
    { "_ZN18grpc_ev_poll_posixMUlbE_4_FUNEb", "grpc_ev_poll_posix::{lambda(bool)#1}::_FUN(bool)" },
    { "_ZN11pycudaboost15compressed_pairIMN6pycuda12host_pointerEFyvENS_6python21default_call_"
      "policiesEE5firstEv",
      "pycudaboost::compressed_pair<unsigned long long (pycuda::host_pointer::*)(), "
      "pycudaboost::python::default_call_policies>::first()" },
    { "_Z19catch_out_of_memoryPFiiPPcEiS0_",
      "catch_out_of_memory(int (*)(int, char**), int, char**)" },
    { "_ZN11pycudaboost6python3api6objectC1IA1_cEERKT_",
      "pycudaboost::python::api::object::object<char [1]>(char const (&) [1])" },
    { "_ZGVN6fbgemm17GenConvKernelBaseILi2ELNS_10inst_set_tE1EE10codeCache_E",
      "guard variable for fbgemm::GenConvKernelBase<2, (fbgemm::inst_set_t)1>::codeCache_" },
    { "_ZN10StackTrace12toStringImplB5cxx11ERKSt5arrayIPvLm32EEm",
      "StackTrace::toStringImpl[abi:cxx11](std::array<void*, 32ul> const&, unsigned long)" },
    { "_ZGVNSt10moneypunctIcLb1EE2idE", "guard variable for std::moneypunct<char, true>::id" },
    { "_ZN4llvm4UsernwEm", "llvm::User::operator new(unsigned long)" },
    { "_ZN11pycudaboost19thread_specific_ptrIN6pycuda13context_stackEE11delete_dataclEPv",
      "pycudaboost::thread_specific_ptr<pycuda::context_stack>::delete_data::operator()(void*)" },
    { "_ZN2DBlsERSoRKNS_4IASTE", "DB::operator<<(std::ostream&, DB::IAST const&)" },
    { "_ZTIDn", "typeinfo for decltype(nullptr)" },
    { "_Z9SizeToStrB5cxx11d", "SizeToStr[abi:cxx11](double)" },
    { "_ZN4Poco3Net16FTPStreamFactory18_anonymousPasswordB5cxx11E",
      "Poco::Net::FTPStreamFactory::_anonymousPassword[abi:cxx11]" },
    { "_ZN2at6native31vectorized_gather_kernel_launchILl16EiEEvPcS2_PT0_illllb",
      "void at::native::vectorized_gather_kernel_launch<16l, int>(char*, char*, int*, int, long, "
      "long, long, long, bool)" },
    { "_ZN10onnx_torch10GraphProtoC1EOS0_",
      "onnx_torch::GraphProto::GraphProto(onnx_torch::GraphProto&&)" },
    { "_ZNKSs11_M_disjunctEPKc", "std::string::_M_disjunct(char const*) const" },
    { "_ZTIZNK5clang15LocationContext9printJsonERN4llvm11raw_ostreamEPKcjbSt8functionIFvPKS0_EEEd_"
      "UlS8_E_",
      "typeinfo for clang::LocationContext::printJson(llvm::raw_ostream&, char const*, unsigned "
      "int, bool, std::function<void (clang::LocationContext const*)>) const::{default "
      "arg#1}::{lambda(clang::LocationContext const*)#1}" },
    { "_ZN6google8protobuf8internal7memswapILi12EEENSt9enable_ifIXaageT_stmltT_Li16EEvE4typeEPcS6_",
      "std::enable_if<((12)>=(sizeof (unsigned long)))&&((12)<(16)), void>::type "
      "google::protobuf::internal::memswap<12>(char*, char*)" },
    { "_ZN11pycudaboost11get_pointerIVKN6pycuda22registered_host_memoryEEEPT_S5_",
      "pycuda::registered_host_memory const volatile* "
      "pycudaboost::get_pointer<pycuda::registered_host_memory const "
      "volatile>(pycuda::registered_host_memory const volatile*)" },
    { "_ZN11pycudaboost12numeric_castIalEET_T0_",
      "signed char pycudaboost::numeric_cast<signed char, long>(long)" },
    { "_Z8ioprintfRSoPKcz", "ioprintf(std::ostream&, char const*, ...)" },
    { "_ZNK4Poco4PathixB5cxx11Ei", "Poco::Path::operator[][abi:cxx11](int) const" },
    { "_Z5blockPjjjy", "block(unsigned int*, unsigned int, unsigned int, unsigned long long)" },
    { "_Z4normIfEvPT_i", "void norm<float>(float*, int)" },
    { "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEEvvvvEEEEvNT_"
      "6ParamsE",
      "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, "
      "int>, void, void, void, void> >(cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, "
      "int, int>, void, void, void, void>::Params)" },
    { "_Z3fooDv4_f", "foo(float __vector(4))" },
    { "_ZN2ns1kILi3ELb1EJifEEEvDpPT1_", "void ns::k<3, true, int, float>(int*, float*)" },
    { "_Z1fIJiEEvDpT_", "void f<int>(int)" },
    { "_Z1fIJEEvDpT_", "void f<>()" },
    { "_Z1fM1AKFviE", "f(void (A::*)(int) const)" },
    { "_Z1fPFPFivEcE", "f(int (*(*)(char))())" },
    { "_Z1fRA3_A4_i", "f(int (&) [3][4])" },
    { "_Z1fILin5EEvv", "void f<-5>()" },
    { "_Z1fIXaasr1AE1bLb1EEEvv", "void f<A::b&&(true)>()" },
    { "_Z3addiPf.constprop.0", "add(int, float*) [clone .constprop.0]" },
    { "_ZL3onei", "one(int)" },
    { "_ZN12_GLOBAL__N_13twoEf", "(anonymous namespace)::two(float)" },
    { "_Z1kIXadL_Z1gvEEEvv", "void k<&(g())>()" },
    { "_Z1kIL1E2EEvv", "void k<(E)2>()" },
    { "_Z1kRKU7atomicVi", "k(int atomicV const&)" },
    { "_ZNSsC1Ev",
      "std::basic_string<char, std::char_traits<char>, std::allocator<char> >::basic_string()" },
    { "_ZSt4swapIiEvRT_S1_", "void std::swap<int>(int&, int&)" },
    { "_Z1kIN1AIiEEEvT_", "void k<A<int> >(A<int>)" },
    { "_ZN1AcvPKcEv", "A::operator char const*()" },
    { "_Z1kILf3f800000EEvv", "void k<(float)[3f800000]>()" },
    { "_ZplRK1AS1_", "operator+(A const&, A const&)" },
    { "_Z1kI1AIJEE1BEvv", "void k<A<>, B>()" },
    { "_Z1fILPi0EEvv", "void f<(int*)0>()" },
    { "_Z1kIJLi1ELi2EEEvv", "void k<1, 2>()" },
    { "_Z1kIiEvOT_", "void k<int>(int&&)" },
    { "_Z1kIRiEvOT_", "void k<int&>(int&)" },
    { "_Z1kIKiEvPKT_", "void k<int const>(int const*)" },
};

START_TEST(a_name_is_written_as_others_write_it)
{
    char *text = demangle(rows[_i].mangled);
    ck_assert_pstr_eq(text, rows[_i].text);
    free(text);
}
END_TEST

/* No byte of a name may be missed where it is cut off, or another one. */
START_TEST(a_broken_name_is_no_name)
{
    static const char others[] = "0E_ISNTLXJDZ";
    char name[256];
    for (size_t n = 0; n < strlen(rows[_i].mangled); n++) {
        strcpy(name, rows[_i].mangled);
        name[n] = 0;
        free(demangle(name));
        for (size_t i = 0; others[i]; i++) {
            strcpy(name, rows[_i].mangled);
            name[n] = others[i];
            free(demangle(name));
        }
    }
    ck_assert_ptr_null(demangle("block"));
    ck_assert_ptr_null(demangle("_Z"));
    ck_assert_ptr_null(demangle("_Z99999999999x"));
    ck_assert_ptr_null(demangle("_Z3fooS9_"));
}
END_TEST

static char *repeat(char *to, const char *what, int times)
{
    for (int i = 0; i < times; i++)
        to = stpcpy(to, what);
    return to;
}

/* As CUTLASS 3 has them. */
START_TEST(a_name_of_any_length_is_written)
{
    const int n = 1000; /* libiberty takes 1,024 in one list, and as many levels */
    char *name = malloc(8 * (size_t)n + 100);
    strcpy(repeat(stpcpy(name, "_ZN7cutlass13device_kernelI"), "Li7E", n), "EEvPjjj");
    char *text = demangle(name);
    ck_assert_ptr_nonnull(text);
    ck_assert(!strncmp(text, "void cutlass::device_kernel<7, 7, ", 34));
    ck_assert_str_eq(text + strlen(text) - 42,
                     "7, 7>(unsigned int*, unsigned int, unsigned int)" + 6);
    free(text);
    free(name);
}
END_TEST

static char deep_name[1 << 18];
static char *deep_text;

static void demangle_deep(void *unused)
{
    (void)unused;
    deep_text = demangle(deep_name);
}

static char *on_own_stack(int depth)
{
    char *at = repeat(stpcpy(deep_name, "_Z1kI"), "1AI", depth);
    strcpy(repeat(stpcpy(at, "i"), "E", depth), "EvT_");
    ck_assert(own_stack_run(demangle_deep, NULL, demangle_stack(deep_name)));
    return deep_text;
}

START_TEST(a_deep_name_is_written_or_left)
{
    char *text = on_own_stack(300);
    ck_assert_ptr_nonnull(text);
    ck_assert(!strncmp(text, "void k<A<A<A<", 13));
    free(text);
    ck_assert_ptr_null(on_own_stack(60000));
}
END_TEST

/* Each S_ doubles what it stands in: 40 bytes ask for a terabyte. */
START_TEST(a_name_that_grows_without_end_is_left)
{
    char name[1024], *at = stpcpy(name, "_Z1fP1A");
    for (int i = 0; i < 40; i++)
        at += sprintf(at, "1BIS%c_S%c_E", "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"[i % 36],
                      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"[i % 36]);
    free(demangle(name));
}
END_TEST

/* ------------------------------------------------------------------------- its stack */

static sigset_t blocked;
static bool elsewhere;

static void look(void *caller)
{
    char here;
    ptrdiff_t away = &here - (char *)caller;
    elsewhere = away > PTHREAD_STACK_MIN || away < -PTHREAD_STACK_MIN;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
}

static void *look_in_a_small_thread(void *unused)
{
    char here;
    sigset_t before, after;
    (void)unused;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    for (int i = 0; i < 100; i++) {
        ck_assert(own_stack_run(look, &here, 0));
        ck_assert(elsewhere && sigismember(&blocked, SIGINT) && sigismember(&blocked, SIGPROF));
    }
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    ck_assert_int_eq(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
    on_own_stack(300);
    return deep_text;
}

START_TEST(a_small_thread_has_room_enough)
{
    pthread_attr_t attr;
    pthread_t id;
    void *text;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 2 * PTHREAD_STACK_MIN);
    ck_assert_int_eq(pthread_create(&id, &attr, look_in_a_small_thread, NULL), 0);
    pthread_join(id, &text);
    ck_assert_ptr_nonnull(text);
    free(text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("demangle");
    TCase *tc = tcase_create("names");
    const int n = (int)(sizeof rows / sizeof *rows);
    tcase_add_loop_test(tc, a_name_is_written_as_others_write_it, 0, n);
    tcase_add_loop_test(tc, a_broken_name_is_no_name, 0, n);
    tcase_add_test(tc, a_name_of_any_length_is_written);
    tcase_add_test(tc, a_deep_name_is_written_or_left);
    tcase_add_test(tc, a_name_that_grows_without_end_is_left);
    tcase_add_test(tc, a_small_thread_has_room_enough);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
