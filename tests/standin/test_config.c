/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment changes: failing calls, the log, the link to the host, devices, pauses. The
 * configuration is read at a process's first call, so each test needs a process: CK_FORK=no skips them.
 */
#include "test_standin.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char path[64];

static void make_path(void)
{
    int fd;

    strcpy(path, "/tmp/standin-test-XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static char *read_file(void)
{
    FILE *f = fopen(path, "r");
    static char text[4 << 20];
    size_t n = fread(text, 1, sizeof(text) - 1, f);

    text[n] = 0;
    fclose(f);
    unlink(path);
    return text;
}

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

START_TEST(the_nth_call_fails_as_told)
{
    CUdeviceptr p;

    setenv("DMI_STANDIN_FAIL", "cuMemAlloc_v2:2:2,cuMemFree_v2:0,cuNothing:1", 1);
    test_setup();
    ok(cuMemAlloc_v2(&p, 16));
    fails(cuMemAlloc_v2(&p, 16), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemAlloc_v2(&p, 16));
    fails(cuMemFree_v2(p), CUDA_ERROR_UNKNOWN);
    fails(cuMemFree_v2(p), CUDA_ERROR_UNKNOWN);
}
END_TEST

START_TEST(the_nth_call_takes_as_long_as_told)
{
    CUdeviceptr p;

    setenv("DMI_STANDIN_STALL", "cuMemAlloc_v2:2:50000000", 1);
    test_setup();
    ok(cuMemAlloc_v2(&p, 16));
    double begin = now();
    ok(cuMemAlloc_v2(&p, 16));
    ck_assert_double_ge(now() - begin, 0.05);
}
END_TEST

void standin_own(const char *symbol);

/* Between the program and the driver a library may call the same entry, and others. */
START_TEST(the_programs_own_calls_are_told_from_others)
{
    CUdeviceptr p, q;
    int version;

    setenv("DMI_STANDIN_FAIL", "own:2:2,other.cuDriverGetVersion:2:3", 1);
    standin_own("cuInit");
    ok(cuInit(0));
    standin_own("cuMemAlloc_v2");
    ok(cuDriverGetVersion(&version));
    fails(cuMemAlloc_v2(&p, 16), CUDA_ERROR_OUT_OF_MEMORY);
    fails(cuDriverGetVersion(&version), CUDA_ERROR_NOT_INITIALIZED);
    fails(cuMemAlloc_v2(&p, 16), CUDA_ERROR_OUT_OF_MEMORY);
    standin_own(NULL);
    test_setup();
    ok(cuMemAlloc_v2(&p, 16));
    standin_own("cuMemAlloc_v2");
    ok(cuMemAlloc_v2(&q, 16));
    standin_own(NULL);
}
END_TEST

START_TEST(the_log_has_calls_launches_and_what_is_missing)
{
    CUexternalMemory memory;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = { 0 };
    CUdeviceptr p;
    char want[256], *text;

    make_path();
    setenv("DMI_STANDIN_LOG", path, 1);
    test_setup_module();
    p = test_zeros(256);
    ok(test_launch_add(p, 64, 7, NULL));
    cuImportExternalMemory(&memory, &desc);
    ok(cuCtxSynchronize());
    text = read_file();
    ck_assert_ptr_nonnull(strstr(text, "\"name\":\"cuCtxCreate_v2\",\"result\":0"));
    ck_assert_ptr_nonnull(strstr(
        text, "\"name\":\"cuImportExternalMemory\",\"result\":801,\"not_implemented\":true"));
    snprintf(want, sizeof(want), "\"ptr\":%llu,\"bytes\":256", (unsigned long long)p);
    ck_assert_ptr_nonnull(strstr(text, want));
    ck_assert_ptr_nonnull(strstr(text, "\"seq\":1,\"kernel\":\"add\""));
    ck_assert_ptr_nonnull(strstr(text, "4000000007000000\"}\n"));
}
END_TEST

/* JSON is UTF-8, and a module may be anything */
START_TEST(the_log_is_text_whatever_the_application_gives)
{
    static const char machine_code[] = "\xc3\x28\xff\xfe\"\\\n\x01\x7f";
    CUmodule module;
    char *text;

    make_path();
    setenv("DMI_STANDIN_LOG", path, 1);
    test_setup();
    ck_assert_int_eq(cuModuleLoadData(&module, machine_code), CUDA_ERROR_INVALID_PTX);
    text = read_file();
    ck_assert_ptr_nonnull(strstr(text, "\"message\":\"line 1: found '"));
    for (const char *c = text; *c; c++)
        ck_assert_msg(*c == '\n' || (*c >= ' ' && *c < 0x7f), "byte %02x", (unsigned char)*c);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        ck_assert_msg(*line == '{', "%.80s", line);
}
END_TEST

START_TEST(a_kill_leaves_only_whole_lines)
{
    char *text;
    pid_t pid;

    make_path();
    setenv("DMI_STANDIN_LOG", path, 1);
    pid = fork();
    if (pid == 0) {
        CUdeviceptr p;

        test_setup_module();
        p = test_zeros(256);
        for (;;)
            ok(test_launch_add(p, 64, 7, NULL));
    }
    usleep(1500000);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    text = read_file();
    ck_assert_uint_gt(strlen(text), 0);
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');

        if (!end) /* the buffer's end, not the file's */
            break;
        ck_assert(line[0] == '{' && end[-1] == '}');
        line = end + 1;
    }
}
END_TEST

START_TEST(copies_to_the_host_take_the_links_time)
{
    enum { BYTES = 1 << 20 };
    CUdeviceptr p;
    CUstream streams[2];
    void *host;
    double start;

    setenv("DMI_STANDIN_DTOH_BPS", "10000000", 1); /* 1 MiB in 105 ms */
    setenv("DMI_STANDIN_DTOH_LATENCY_NS", "20000000", 1);
    test_setup();
    p = test_zeros(BYTES);
    ok(cuMemHostAlloc(&host, 2 * BYTES, 0));
    for (int i = 0; i < 2; i++)
        ok(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    start = now();
    for (int i = 0; i < 2; i++)
        ok(cuMemcpyDtoHAsync_v2((char *)host + i * BYTES, p, BYTES, streams[i]));
    ck_assert(now() - start < 0.1);
    ok(cuCtxSynchronize());
    ck_assert(now() - start > 0.245);
    start = now();
    ok(cuMemcpyHtoD_v2(p, host, BYTES));
    ck_assert(now() - start < 0.1);
}
END_TEST

START_TEST(there_are_as_many_devices_as_told)
{
    CUcontext ctx[2];
    CUdeviceptr p[2];
    int n, major, minor, can;
    size_t free_bytes, total;

    setenv("DMI_STANDIN_DEVICES", "2", 1);
    setenv("DMI_STANDIN_SM", "90", 1);
    setenv("DMI_STANDIN_MEMORY", "64M", 1);
    ok(cuInit(0));
    ok(cuDeviceGetCount(&n));
    ck_assert_int_eq(n, 2);
    ok(cuDeviceComputeCapability(&major, &minor, 1));
    ck_assert_int_eq(major * 10 + minor, 90);
    ok(cuDeviceCanAccessPeer(&can, 0, 1));
    ck_assert_int_eq(can, 1);
    for (int i = 0; i < 2; i++) {
        ok(cuCtxCreate_v2(&ctx[i], 0, i));
        ok(cuMemAlloc_v2(&p[i], 4096));
        ok(cuMemsetD8_v2(p[i], (unsigned char)(i + 1), 4096));
        ok(cuCtxSynchronize());
    }
    ok(cuMemGetInfo_v2(&free_bytes, &total));
    ck_assert_uint_eq(total, 64 << 20);
    ok(cuCtxEnablePeerAccess(ctx[0], 0));
    fails(cuCtxEnablePeerAccess(ctx[0], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    ok(cuMemcpyPeer(p[0], ctx[0], p[1], ctx[1], 4096));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(test_read(p[0]), 0x02020202);
}
END_TEST

static const struct {
    const char *visible;
    int n;
} visible_lists[] = {
    { "0", 1 },       { "3", 1 },   { "1,0", 2 },
    { "0,1,9,2", 2 }, { "0,x", 1 }, { "7,6,5,4,3,2,1,0", 8 },
    { "0,-1,2", 1 },
};

START_TEST(as_many_devices_are_visible_as_the_list_has)
{
    int n;

    setenv("DMI_STANDIN_DEVICES", "8", 1);
    setenv("CUDA_VISIBLE_DEVICES", visible_lists[_i].visible, 1);
    ok(cuInit(0));
    ok(cuDeviceGetCount(&n));
    ck_assert_int_eq(n, visible_lists[_i].n);
}
END_TEST

START_TEST(no_visible_device_is_an_error_of_init)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    fails(cuInit(0), CUDA_ERROR_NO_DEVICE);
}
END_TEST

START_TEST(no_device_is_an_error_of_init)
{
    setenv("DMI_STANDIN_DEVICES", "0", 1);
    fails(cuInit(0), CUDA_ERROR_NO_DEVICE);
}
END_TEST

START_TEST(pauses_in_kernels_change_no_result)
{
    CUdeviceptr p;

    setenv("DMI_STANDIN_PAUSE", "2", 1);
    setenv("DMI_STANDIN_DELAY_SEED", "5", 1);
    test_setup_module();
    p = test_zeros(1024);
    for (int i = 0; i < 5; i++)
        ok(test_launch_add(p, 256, 1, NULL));
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(test_read(p + 1020), 5);
}
END_TEST

static int n_threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    int n = -2;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

START_TEST(threads_start_with_the_first_work)
{
    CUcontext ctx;

    ok(cuInit(0));
    ok(cuCtxCreate_v2(&ctx, 0, 0));
    ck_assert_int_eq(n_threads(), 1);
    ok(cuCtxSynchronize());
    ck_assert_int_eq(n_threads(), 1);
    test_zeros(16);
    ck_assert_int_gt(n_threads(), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *tcase = tcase_create("config");

    tcase_add_test(tcase, the_nth_call_fails_as_told);
    tcase_add_test(tcase, the_nth_call_takes_as_long_as_told);
    tcase_add_test(tcase, the_programs_own_calls_are_told_from_others);
    tcase_add_test(tcase, the_log_has_calls_launches_and_what_is_missing);
    tcase_add_test(tcase, the_log_is_text_whatever_the_application_gives);
    tcase_add_test(tcase, a_kill_leaves_only_whole_lines);
    tcase_add_test(tcase, copies_to_the_host_take_the_links_time);
    tcase_add_test(tcase, there_are_as_many_devices_as_told);
    tcase_add_loop_test(tcase, as_many_devices_are_visible_as_the_list_has, 0,
                        sizeof visible_lists / sizeof *visible_lists);
    tcase_add_test(tcase, no_visible_device_is_an_error_of_init);
    tcase_add_test(tcase, no_device_is_an_error_of_init);
    tcase_add_test(tcase, pauses_in_kernels_change_no_result);
    tcase_add_test(tcase, threads_start_with_the_first_work);
    suite_add_tcase(suite, tcase);
    return test_run(suite);
}
