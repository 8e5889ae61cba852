/* SPDX-License-Identifier: Apache-2.0 */
/* Modules that load and that do not: messages, the cache of compiled kernels, threads that load at once. */
#include "test_device.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <sys/stat.h>

#define ENTRY(body)                                                                                \
    PTX_HEAD ".visible .entry k(.param .u64 p)\n{\n.reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 "  \
             "%d<4>; .reg .f32 %f<4>;\n" body "\nret;\n}\n"

static const struct {
    const char *text;
    int status;
    const char *message[3]; /* each is part of the log */
} bad[] = {
    /* what the translator lacks: kernel, line, opcode */
    { ENTRY("add.u32 %r1, %r1, 1;\nfrobnicate.b32 %r1, %r2;"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 8", "frobnicate.b32" } },
    { ENTRY("add.wrong.u32 %r1, %r1, 1;"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "add.wrong.u32" } },
    { ENTRY("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1}, [%d1];"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "wmma.load" } },
    { ENTRY("tex.level.2d.v4.f32.f32 {%f1, %f2, %f3, %f1}, [%d1, {%f1, %f2}], %f3;"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "tex.level" } },
    { ENTRY("tex.a2d.v4.f32.f32 {%f1, %f2, %f3, %f1}, [%d1, {%r1, %f1, %f2, %f2}];"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "tex.a2d" } },
    { ENTRY("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f1}, [%d1, {%f1}];"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "tex.2d" } },
    { ENTRY("sust.b.2d.b32.trap [%d1, {%r1, %r2}], {%r3};"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "sust" } },
    { ENTRY("ld.global.u32 %r1, [%d1, {%r1}];"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "ld.global" } },
    { ENTRY("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r1}, {%r1}, {%r1};"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "mma.sync.aligned.m16n8k32" } },
    { ENTRY("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1}, {%r1}, {%r1}, {%r1};"),
      PTX_E_SYNTAX,
      { "kernel k", "line 7", "takes 4 registers" } },
    { ENTRY("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1}, [%d1];"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "ldmatrix" } },
    { ENTRY("cp.async.bulk.commit_group;"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "cp.async.bulk" } },
    { ENTRY("cp.async.cg.shared.global [%d1], [%d2], 8;"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "cp.async.cg" } },
    { ENTRY("wgmma.fence.sync.aligned;"), PTX_E_UNSUPPORTED, { "kernel k", "line 7", "wgmma" } },
    { ENTRY("mov.u32 %r1, %no_such_thing;"),
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 7", "no_such_thing" } },
    { ENTRY("call missing, (%r1);"), PTX_E_UNSUPPORTED, { "kernel k", "line 7", "missing" } },
    { PTX_HEAD ".extern .func (.param .b64 r) malloc(.param .b64 a);\n.visible .entry k()\n{ .reg "
               ".b32 %r1;\n"
               "{ .param .b64 a; .param .b64 r;\ncall.uni (r), malloc, (a); }\nret; }\n",
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 8", "malloc" } },
    { PTX_HEAD
      ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n.visible .entry "
      "k()\n{ .reg .b32 %r1;\n"
      "{ .param .b64 a; .param .b32 b; .param .b32 r;\ncall.uni (r), vprintf, (a, b); }\nret; }\n",
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 8", "call.uni" } },
    { PTX_HEAD ".visible .func f()\n{\ncall f;\nret;\n}\n.visible .entry k()\n{ call f; ret; }\n",
      PTX_E_UNSUPPORTED,
      { "recursion" } },
    { PTX_HEAD ".visible .func f()\n{ .reg .b64 %d1; mov.u64 %d1, f;\nP: .callprototype _ (); call "
               "%d1, P; ret; }\n.visible .entry k() { ret; }\n",
      PTX_E_UNSUPPORTED,
      { "function f", "recursion" } },
    { ENTRY("call %d1, (%r1);"), PTX_E_SYNTAX, { "line 7", "a prototype" } },
    { ENTRY("call %r1, P;"), PTX_E_UNSUPPORTED, { "kernel k", "line 7", "%r1" } },
    { PTX_HEAD ".visible .entry k() { .reg .b64 %d1; mov.u64 %d1, k; ret; }\n",
      PTX_E_UNSUPPORTED,
      { "kernel k", "line 4", "mov" } },
    { PTX_HEAD ".func f() { ret; }\n.global .b32 x = f;\n",
      PTX_E_SYNTAX,
      { "line 5", "a 64-bit variable" } },
    /* what is no PTX: the line and what was found there */
    { "", PTX_E_SYNTAX, { "line 1" } },
    { "hello", PTX_E_SYNTAX, { "line 1", "hello" } },
    { "\177ELF\002\001\001", PTX_E_SYNTAX, { "line 1" } },
    { ".version 8.0\n.target sm_90\n.address_size 32\n",
      PTX_E_UNSUPPORTED,
      { "line 3", "64-bit" } },
    { PTX_HEAD "\n.visible .entry k(", PTX_E_SYNTAX, { "line 5" } },
    { ENTRY("add.u32 %r1, %r1"), PTX_E_SYNTAX, { "line 8", "ret" } },
    { ENTRY("add.u32 %r1;"), PTX_E_SYNTAX, { "kernel k", "line 7", "add.u32" } },
    { ENTRY("bra NOWHERE;"), PTX_E_SYNTAX, { "kernel k", "line 7", "NOWHERE" } },
    { ENTRY("T: .branchtargets NOWHERE; brx.idx %r1, T;"), PTX_E_SYNTAX, { "NOWHERE" } },
    { ENTRY("T: .branchtargets T; brx.idx %r1, T;"), 0, { "T" } },
    { ENTRY("L: L: ret;"), PTX_E_SYNTAX, { "line 7", "L" } },
    { ENTRY("@%q1 bra L; L:"), PTX_E_SYNTAX, { "line 7", "%q1" } },
    { ENTRY("ld.global.u32 %r1, [undeclared];"), PTX_E_SYNTAX, { "line 7", "undeclared" } },
    { ENTRY("ld.global.v4.u32 {%r1, %r2}, [%d1];"), PTX_E_SYNTAX, { "line 7", "v4" } },
    { ENTRY("ld.param.u64 %d1, [p+4];"), PTX_E_SYNTAX, { "line 7", "outside p" } },
    { ENTRY(".reg .b32 x<99999999>;"), PTX_E_SYNTAX, { "line 7" } },
    { ENTRY("mov.u32 %r1, 12ab;"), PTX_E_SYNTAX, { "line 7", "12ab" } },
    { PTX_HEAD ".global .b32 x[99999999999];\n", PTX_E_SYNTAX, { "line 4" } },
    { PTX_HEAD ".global .align 3 .b32 x;\n", PTX_E_SYNTAX, { "line 4" } },
    { PTX_HEAD ".global .u64 x = y;\n", PTX_E_SYNTAX, { "line 4", "y" } },
    { PTX_HEAD ".visible .entry k() { ret; }\n.visible .entry k() { ret; }\n",
      PTX_E_SYNTAX,
      { "line 5", "k is declared twice" } },
    { PTX_HEAD "/* never closed", 0, { NULL } },
};

START_TEST(what_cannot_load_says_where_and_why)
{
    struct ptx_module *module = NULL;
    char log[1024] = "";
    int status =
        ptx_module_load(bad[_i].text, strlen(bad[_i].text), NULL, &module, log, sizeof log);
    if (status == PTX_OK && !bad[_i].status && !bad[_i].message[0]) {
        ptx_module_free(module); /* only that it ends */
        return;
    }
    ck_assert_msg(status == bad[_i].status || (!bad[_i].status && status), "row %d: status %d, %s",
                  _i, status, log);
    for (int k = 0; k < 3 && bad[_i].message[k]; k++)
        ck_assert_msg(strstr(log, bad[_i].message[k]), "row %d: '%s' lacks '%s'", _i, log,
                      bad[_i].message[k]);
    ck_assert_int_eq(ptx_module_load(bad[_i].text, strlen(bad[_i].text), NULL, &module, NULL, 0),
                     status);
}
END_TEST

/* Every text that nvcc, tinygrad and others write around instructions. */
static const char furniture[] =
    "//\n// comment\n/* and\n another */\n.version 9.0 .target sm_75, debug\n.address_size 64\n"
    ".file 1 \"/a/b c.cu\", 1700000000, 1234\n"
    ".extern .func (.param .b32 func_retval0) vprintf\n(\n.param .b64 vprintf_param_0,\n.param "
    ".b64 vprintf_param_1\n)\n;\n"
    ".weak .func unused() .noreturn { trap; }\n"
    ".visible .entry _ZN2at6nativeE$name(\n\t.param .u64 .ptr .global .align 16 a_0,\n\t.param "
    ".align 4 .b8 a_1[12]\n)\n"
    ".maxntid 128, 1, 1\n.reqntid 128\n.minnctapersm 2\n.maxnreg 64\n.pragma \"nounroll\";\n"
    "{\n\t.reg .pred \t%p<2>;\n\t.reg .b32 %r<3>, x;\n\t.loc\t1 5 3\n\t.loc 1 5 3, function_name "
    "$L__info_string0, inlined_at 1 3 2\n"
    "\t.pragma \"used_bytes_mask 4095\";\n"
    "$L__BB0_1:\n\t// begin inline asm\n\t{ mov.u32 x, %tid.x; }\n\t// end inline "
    "asm\n\tsetp.ne.s32 %p1, x, 0; @%p1 bra $L__BB0_2;\n$L__BB0_2:\n\tret;\n}\n"
    ".section .debug_str\n{\n$L__info_string0:\n.b8 95, 90, 0\n}\n";

START_TEST(what_compilers_write_around_instructions_is_read)
{
    struct ptx_module *module = device_load(furniture);
    ck_assert_str_eq(ptx_kernel_info(ptx_module_kernel(module, 0))->name, "_ZN2at6nativeE$name");
    ck_assert_uint_eq(ptx_kernel_info(ptx_module_kernel(module, 0))->params_bytes, 20);
    ptx_module_free(module);
}
END_TEST

START_TEST(names_may_be_words_of_c)
{
    struct ptx_module *module = device_load(
        PTX_HEAD ".global .u32 int = 3;\n.visible .entry while(.param .u64 for)\n"
                 "{ .reg .b32 return, E, T, double; .reg .b64 if; ld.param.u64 if, [for]; goto: "
                 "mov.u32 return, 1; ld.global.u32 E, [int];\n"
                 "add.u32 return, return, E; st.global.u32 [if], return; ret; }\n"
                 ".visible .entry main() { ret; }\n.visible .entry %weird$() { ret; }\n");
    uint64_t out = DEVICE_BASE + 64;
    ptx_module_bind(module, 0, DEVICE_BASE + 128);
    memcpy(device_at(DEVICE_BASE + 128), ptx_module_global(module, 0)->init, 4);
    ck_assert_int_eq(device_run(device_kernel(module, "while"), 1, 1, &out), PTX_OK);
    ck_assert_uint_eq(*(uint32_t *)device_at(out), 4);
    ck_assert_int_eq(device_run(device_kernel(module, "%weird$"), 1, 1, NULL), PTX_OK);
    ptx_module_free(module);
}
END_TEST

START_TEST(the_text_need_not_end_in_a_zero)
{
    static const char text[] = ENTRY("");
    size_t n = strlen(text), page = 4096, pages = (n + page - 1) / page + 1;
    char *at = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ptx_module *module = NULL;
    ck_assert_int_eq(mprotect(at + (pages - 1) * page, page, PROT_NONE), 0);
    memcpy(at + (pages - 1) * page - n, text, n);
    ck_assert_int_eq(ptx_module_load(at + (pages - 1) * page - n, n, NULL, &module, NULL, 0),
                     PTX_OK);
    ptx_module_free(module);
    munmap(at, pages * page);
}
END_TEST

/* the cache: a folder of .so files */
static char last_object[400];

static int cached_objects(void)
{
    int n = 0;
    DIR *dir = opendir(device_cache);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strstr(e->d_name, ".so")) {
            snprintf(last_object, sizeof last_object, "%s/%s", device_cache, e->d_name);
            n++;
        }
    closedir(dir);
    return n;
}

static void clear_cache(void)
{
    while (cached_objects())
        unlink(last_object);
}

static const char counted[] =
    ENTRY("ld.param.u64 %d1, [p]; mov.u32 %r1, 4711; st.global.u32 [%d1], %r1;");

static uint32_t stored_by(struct ptx_module *module)
{
    uint64_t out = DEVICE_BASE + 64;
    memset(device_at(out), 0, 4);
    ck_assert_int_eq(device_run(ptx_module_kernel(module, 0), 1, 1, &out), PTX_OK);
    ptx_module_free(module);
    return *(uint32_t *)device_at(out);
}

static void check_counted(struct ptx_module *module)
{
    ck_assert_uint_eq(stored_by(module), 4711);
}

/* From now on `cc` is @script, with REAL for the compiler that was. */
static void compiler_is(const char *script)
{
    char folder[200], name[300], path[5000];
    snprintf(folder, sizeof folder, "%s/bin", device_cache);
    snprintf(name, sizeof name, "%s/cc", folder);
    ck_assert(mkdir(folder, 0700) == 0 || errno == EEXIST);
    unlink(name);
    if (script) {
        FILE *f = fopen(name, "w");
        fprintf(f, "#!/bin/sh\n%s\n", script);
        fclose(f);
        chmod(name, 0700);
    }
    snprintf(path, sizeof path, "%s:%s", folder, script ? getenv("PATH") : "");
    setenv("PATH", path, 1);
}

static int compiler_runs(void)
{
    char name[300];
    int n = 0;
    snprintf(name, sizeof name, "%s/runs", device_cache);
    FILE *f = fopen(name, "r");
    for (int c; f && (c = fgetc(f)) != EOF;)
        n += c == '\n';
    if (f)
        fclose(f);
    return n;
}

START_TEST(a_second_load_starts_no_compiler)
{
    compiler_is("echo run >>\"$DMI_STANDIN_CACHE\"/runs; PATH=${PATH#*:} exec cc \"$@\"");
    clear_cache();
    check_counted(device_load(counted));
    ck_assert_int_eq(cached_objects(), 1);
    ck_assert_int_eq(compiler_runs(), 1);
    check_counted(device_load(counted));
    ck_assert_int_eq(compiler_runs(), 1);
    ck_assert_int_eq(cached_objects(), 1);
}
END_TEST

/* The link that says which object a text was translated to. */
static void find_link(const char *object, char *path, size_t n)
{
    DIR *dir = opendir(device_cache);
    *path = 0;
    for (struct dirent *e; dir && !*path && (e = readdir(dir));) {
        char target[400] = "";
        snprintf(path, n, "%s/%s", device_cache, e->d_name);
        if (readlink(path, target, sizeof target - 1) < 0 ||
            strcmp(target, strrchr(object, '/') + 1))
            *path = 0;
    }
    closedir(dir);
    ck_assert(*path);
}

/* A link that leads elsewhere shows that the text is not translated: what runs is what it leads to. */
START_TEST(a_second_load_translates_nothing)
{
    static const char other[] =
        ENTRY("ld.param.u64 %d1, [p]; mov.u32 %r1, 4712; st.global.u32 [%d1], %r1;");
    char link[600];
    clear_cache();
    check_counted(device_load(counted));
    ck_assert_int_eq(cached_objects(), 1);
    find_link(last_object, link, sizeof link);
    unlink(last_object); /* the only object is the other's */
    ck_assert_uint_eq(stored_by(device_load(other)), 4712);
    ck_assert_int_eq(cached_objects(), 1);
    unlink(link);
    ck_assert_int_eq(symlink(last_object, link), 0);
    ck_assert_uint_eq(stored_by(device_load(counted)), 4712);
    unlink(link); /* and one that is lost is written again */
    check_counted(device_load(counted));
    ck_assert_int_eq(access(link, F_OK), 0);
}
END_TEST

START_TEST(a_compiler_that_fails_is_heard)
{
    struct ptx_module *module;
    char log[1024];
    compiler_is("echo no such luck >&2; exit 1");
    ck_assert_int_eq(ptx_module_load(counted, strlen(counted), NULL, &module, log, sizeof log),
                     PTX_E_COMPILE);
    ck_assert_ptr_nonnull(strstr(log, "no such luck"));
    compiler_is(NULL);
    ck_assert_int_eq(ptx_module_load(counted, strlen(counted), NULL, &module, log, sizeof log),
                     PTX_E_COMPILE);
    ck_assert_ptr_nonnull(strstr(log, "cc"));
}
END_TEST

START_TEST(a_spoilt_cache_file_is_built_again)
{
    clear_cache();
    check_counted(device_load(counted));
    for (int how = 0; how < 3; how++) {
        ck_assert_int_eq(cached_objects(), 1);
        struct stat st;
        ck_assert_int_eq(stat(last_object, &st), 0);
        /* a new file, as a mapped one must not change under its users */
        char *bytes = malloc((size_t)st.st_size);
        FILE *f = fopen(last_object, "r");
        ck_assert_uint_eq(fread(bytes, 1, (size_t)st.st_size, f), (size_t)st.st_size);
        fclose(f);
        unlink(last_object);
        f = fopen(last_object, "w");
        if (how == 0)
            fwrite("not an object", 1, 13, f);
        else if (how == 1)
            fwrite(bytes, 1, (size_t)st.st_size / 2, f); /* cut off */
        fclose(f);                                       /* how 2: empty */
        free(bytes);
        check_counted(device_load(counted));
    }
}
END_TEST

START_TEST(an_unusable_cache_folder_is_named)
{
    struct ptx_module *module;
    char log[1024];
    setenv("DMI_STANDIN_CACHE", "/dev/null/here", 1);
    ck_assert_int_ne(ptx_module_load(counted, strlen(counted), NULL, &module, log, sizeof log),
                     PTX_OK);
    ck_assert_ptr_nonnull(strstr(log, "/dev/null/here"));
}
END_TEST

static void *load_one(void *unused)
{
    struct ptx_module *module = NULL;
    (void)unused;
    if (ptx_module_load(counted, strlen(counted), NULL, &module, NULL, 0) != PTX_OK)
        return NULL;
    return module;
}

START_TEST(threads_load_the_same_module_at_once)
{
    pthread_t threads[4];
    device_init();
    clear_cache();
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, load_one, NULL), 0);
    for (int i = 0; i < 4; i++) {
        void *module;
        pthread_join(threads[i], &module);
        ck_assert_ptr_nonnull(module);
        check_counted(module);
    }
    ck_assert_int_eq(cached_objects(), 1);
}
END_TEST

static unsigned n_pauses;

static void count_pause(void)
{
    n_pauses++;
}

START_TEST(pausable_modules_pause_between_stores)
{
    static const char text[] =
        ENTRY("ld.param.u64 %d1, [p]; st.global.u32 [%d1], 1; st.global.u32 [%d1+4], 2; "
              "st.release.sys.global.u32 [%d1+8], 3; red.global.add.u32 [%d1], 5;");
    struct ptx_module *module;
    uint64_t out = DEVICE_BASE + 64;
    ck_assert_int_eq(ptx_module_load(text, strlen(text), &(struct ptx_options){ .pausable = true },
                                     &module, NULL, 0),
                     PTX_OK);
    device_init();
    ck_assert_int_eq(device_run(ptx_module_kernel(module, 0), 1, 1, &out), PTX_OK);
    ck_assert_uint_eq(n_pauses, 0);
    ptx_pause = count_pause;
    ck_assert_int_eq(device_run(ptx_module_kernel(module, 0), 2, 1, &out), PTX_OK);
    ck_assert_uint_ge(n_pauses, 2 * 3);
    ck_assert_uint_eq(*(uint32_t *)device_at(out), 6);
    ptx_module_free(module);
}
END_TEST

START_TEST(numbers_are_read_in_any_locale)
{
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "de_DE.utf8"))
        return; /* not on this machine; the parser uses no locale of the process */
    struct ptx_module *module =
        device_load(ENTRY("ld.param.u64 %d1, [p]; mov.f32 %f1, 2.5; st.global.f32 [%d1], %f1;"));
    uint64_t out = DEVICE_BASE + 64;
    ck_assert_int_eq(device_run(ptx_module_kernel(module, 0), 1, 1, &out), PTX_OK);
    ck_assert_uint_eq(*(uint32_t *)device_at(out), 0x40200000);
    ptx_module_free(module);
}
END_TEST

int main(void)
{
    device_fresh_cache();
    Suite *s = suite_create("ptx_load");
    TCase *t = tcase_create("load");
    tcase_add_loop_test(t, what_cannot_load_says_where_and_why, 0,
                        (int)(sizeof bad / sizeof bad[0]));
    tcase_add_test(t, what_compilers_write_around_instructions_is_read);
    tcase_add_test(t, names_may_be_words_of_c);
    tcase_add_test(t, the_text_need_not_end_in_a_zero);
    tcase_add_test(t, a_second_load_starts_no_compiler);
    tcase_add_test(t, a_second_load_translates_nothing);
    tcase_add_test(t, a_compiler_that_fails_is_heard);
    tcase_add_test(t, a_spoilt_cache_file_is_built_again);
    tcase_add_test(t, an_unusable_cache_folder_is_named);
    tcase_add_test(t, threads_load_the_same_module_at_once);
    tcase_add_test(t, pausable_modules_pause_between_stores);
    tcase_add_test(t, numbers_are_read_in_any_locale);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    device_remove_cache();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
