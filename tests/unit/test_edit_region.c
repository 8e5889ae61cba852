/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of edits (preload/context/edit_region.h) that go while a context uploads them, over a model of a context's side: no copy reads
 * what was freed (MALLOC_PERTURB_, AddressSanitizer), and each table that stays is there.
 */
#include "preload/context/bank.h"
#include "preload/context/context.h"
#include "preload/context/edit_region.h"
#include "preload/context/side_ops.h"

#include <dmi/edit.h>

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define N_BYTES (64u << 10)
#define N_TABLE 200u

static struct world {
    unsigned char region[N_BYTES];
    struct context context;
    uint32_t at[3];
    uint32_t n_copies, goes_at; /* copies so far; before which of them tables 0 and 1 go */
} world;

/* ------------------------------------------------------------------------- in the library's place */

static CUresult fake_alloc(CUdeviceptr *p, uint64_t n)
{
    ck_assert_uint_eq(n, N_BYTES);
    *p = (CUdeviceptr)(uintptr_t)world.region;
    return CUDA_SUCCESS;
}

static CUresult fake_put(struct context *c, CUdeviceptr to, const void *from, uint64_t n)
{
    (void)c;
    if (world.n_copies++ == world.goes_at) {
        edit_region_free(world.at[0]);
        edit_region_free(world.at[1]);
    }
    memcpy((void *)(uintptr_t)to, from, n);
    return CUDA_SUCCESS;
}

static CUresult fake_finish(struct context *c)
{
    (void)c;
    return CUDA_SUCCESS;
}

int bank_init(struct err *err, struct context *c)
{
    (void)err, (void)c;
    return 0;
}

void bank_give_back(struct context *c)
{
    (void)c;
}

void bank_forget(struct context *c)
{
    (void)c;
}

void bank_follow(struct context *c)
{
    (void)c;
}

void context_each(void (*fn)(struct context *context, void *arg), void *arg)
{
    fn(&world.context, arg);
}

void unslotted_settle(struct unslotted *all, pthread_mutex_t *lock)
{
    (void)all, (void)lock;
}

static void collect(const uint64_t *counts, uint64_t *seen)
{
    (void)counts, (void)seen;
}

static void settle(void)
{
}

/* ------------------------------------------------------------------------- tests */

static uint32_t place(unsigned char fill)
{
    struct err err = { 0 };
    uint32_t at;
    unsigned char *bytes = malloc(N_TABLE);
    ck_assert(bytes);
    memset(bytes, fill, N_TABLE);
    ck_assert_int_eq(edit_region_place(&err, bytes, N_TABLE, &at), 0);
    return at;
}

static bool is_there(uint32_t at, unsigned char fill)
{
    const unsigned char *table = world.region + (size_t)at * DMI_EDIT_ALIGN;
    bool same = true;
    for (uint32_t i = 0; i < N_TABLE; i++)
        same = same && table[i] == fill;
    return same;
}

static void set_up(void)
{
    static const struct edit_watch watch = { collect, settle };
    static const struct context_side side = { .alloc = fake_alloc,
                                              .put = fake_put,
                                              .finish = fake_finish };
    struct err err = { 0 };
    edit_region_reset();
    edit_region_start(N_BYTES, &watch);
    memset(&world, 0, sizeof world);
    world.context.side = &side;
    world.goes_at = UINT32_MAX;
    ck_assert_int_eq(edit_region_init(&err, &world.context), 0);
}

/* Two of three go while the copy of number _i is under way. */
START_TEST(tables_go_while_they_are_uploaded)
{
    set_up();
    for (unsigned char i = 0; i < 3; i++)
        world.at[i] = place((unsigned char)(i + 1));
    world.goes_at = (uint32_t)_i;
    edit_region_follow(&world.context, 0);
    ck_assert(is_there(world.at[2], 3));
    ck_assert(edit_region_wait(0));
    for (int i = 0; i <= _i && i < 2; i++) /* the copy that was under way had its own bytes */
        ck_assert(is_there(world.at[i], (unsigned char)(i + 1)));
    ck_assert_uint_eq(place(4), world.at[0]); /* their room is free again */
    edit_region_follow(&world.context, 0);
    ck_assert(is_there(world.at[0], 4) && is_there(world.at[2], 3));
    edit_region_forget(&world.context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("edit_region");
    TCase *tests = tcase_create("uploads");
    tcase_add_loop_test(tests, tables_go_while_they_are_uploaded, 0, 3);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
