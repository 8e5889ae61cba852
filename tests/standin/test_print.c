/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels print: when it comes out, in which order, and what is lost where there is too much. */
#include "test_standin.h"

#include <fcntl.h>
#include <unistd.h>

/* say(u32 v): printf("<%d>\n", v) in each thread */
static const char say_ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".extern .func (.param .b32 r) vprintf(.param .b64 p0, .param .b64 p1);\n"
    ".global .align 1 .b8 format[6] = {60, 37, 100, 62, 10, 0};\n"
    ".visible .entry say(.param .u32 v)\n{\n"
    " .local .align 8 .b8 depot[8]; .reg .b64 %d<5>; .reg .b32 %r<3>;\n"
    " ld.param.u32 %r1, [v]; st.local.u32 [depot], %r1; mov.u64 %d1, depot; cvta.local.u64 %d1, "
    "%d1;\n"
    " mov.u64 %d2, format; cvta.global.u64 %d2, %d2;\n"
    " { .param .b64 p0; .param .b64 p1; .param .b32 back; st.param.b64 [p0], %d2; st.param.b64 "
    "[p1], %d1;\n"
    " call.uni (back), vprintf, (p0, p1); }\n ret;\n}\n";

static CUfunction say;
static char path[] = "/tmp/test-print-XXXXXX";
static int out;

static void setup(void)
{
    CUmodule module;

    fflush(stdout);
    out = mkstemp(path);
    ck_assert_int_ge(out, 0);
    unlink(path);
    ck_assert_int_ge(dup2(out, 1), 0);
    test_setup();
    ok(cuModuleLoadData(&module, say_ptx));
    ok(cuModuleGetFunction(&say, module, "say"));
}

static CUresult launch(int v, unsigned n_threads, CUstream stream)
{
    void *params[] = { &v };

    return cuLaunchKernel(say, 1, 1, 1, n_threads, 1, 1, 0, stream, params, NULL);
}

/* What has come out so far */
static const char *written(void)
{
    static char text[65536];
    ssize_t n = pread(out, text, sizeof(text) - 1, 0);

    text[n > 0 ? n : 0] = 0;
    return text;
}

/* Waits for the GPU without asking the driver to synchronise. */
static void wait_silently(CUstream stream)
{
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
        usleep(1000);
}

START_TEST(text_comes_out_at_a_synchronisation)
{
    setup();
    ok(launch(1, 2, NULL));
    wait_silently(NULL);
    ck_assert_str_eq(written(), "");
    ok(cuCtxSynchronize());
    ck_assert_str_eq(written(), "<1>\n<1>\n");
    ok(launch(2, 1, NULL));
    ok(cuStreamSynchronize(NULL));
    ck_assert_str_eq(written(), "<1>\n<1>\n<2>\n");
}
END_TEST

START_TEST(events_copies_and_launches_bring_it_out)
{
    CUdeviceptr p;
    CUevent event;
    int word;

    setup();
    ok(cuMemAlloc_v2(&p, 4));
    ok(cuEventCreate(&event, 0));
    ok(launch(1, 1, NULL));
    ok(cuEventRecord(event, NULL));
    ok(cuEventSynchronize(event));
    ck_assert_str_eq(written(), "<1>\n");
    ok(launch(2, 1, NULL));
    ok(cuMemcpyDtoH_v2(&word, p, 4));
    ck_assert_str_eq(written(), "<1>\n<2>\n");
    ok(launch(3, 1, NULL));
    wait_silently(NULL);
    ok(launch(4, 1, NULL));
    ck_assert_str_eq(written(), "<1>\n<2>\n<3>\n");
    ok(cuCtxDestroy_v2(test_ctx));
    ck_assert_str_eq(written(), "<1>\n<2>\n<3>\n<4>\n");
}
END_TEST

static void CUDA_CB look(CUstream stream, CUresult status, void *data)
{
    (void)stream;
    (void)status;
    strcpy(data, written());
}

START_TEST(a_callback_finds_it_written)
{
    char seen[64] = "";

    setup();
    ok(launch(1, 1, NULL));
    ok(cuStreamAddCallback(NULL, look, seen, 0));
    ok(cuStreamSynchronize(NULL));
    ck_assert_str_eq(seen, "<1>\n");
}
END_TEST

START_TEST(the_oldest_is_lost_first)
{
    setup();
    ok(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1024));
    ok(launch(1, 512, NULL));
    wait_silently(NULL);
    ok(launch(2, 1, NULL));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(strlen(written()), 1024 + 4);
    ck_assert_str_eq(written() + 1024 - 4, "<1>\n<2>\n");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("print");
    TCase *tcase = tcase_create("print");

    tcase_add_test(tcase, text_comes_out_at_a_synchronisation);
    tcase_add_test(tcase, events_copies_and_launches_bring_it_out);
    tcase_add_test(tcase, a_callback_finds_it_written);
    tcase_add_test(tcase, the_oldest_is_lost_first);
    suite_add_tcase(suite, tcase);
    return test_run(suite);
}
