/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codecs' ladder (preload/context/ladder.h): what each batch asks for, and, over a model of link, encoders and disk, whether
 * it settles at what the best rung carries, whatever the slowest part is.
 */
#include "preload/context/ladder.h"

#include <check.h>
#include <stdlib.h>

#define MIB (1u << 20)

static struct ladder_batch batch(enum codec_rung rung, uint64_t encode_us, uint64_t append_us,
                                 uint64_t since_us, bool waited)
{
    return (struct ladder_batch){ .rung = rung,
                                  .n_bytes = MIB,
                                  .encode_ns = encode_us * 1000,
                                  .append_ns = append_us * 1000,
                                  .since_ns = since_us * 1000,
                                  .waited = waited };
}

static enum codec_rung after(struct ladder *l, struct ladder_batch b)
{
    ladder_note(l, &b, 1);
    return ladder_rung(l);
}

START_TEST(without_a_backlog_it_stays_at_the_fewest_bytes)
{
    struct ladder l = { 0 };
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(after(&l, batch(CODEC_SMALLEST, 900, 100, 950, false)), CODEC_SMALLEST);
}
END_TEST

START_TEST(a_backlog_of_encoding_asks_for_a_quicker_rung)
{
    struct ladder l = { 0 };
    ck_assert_int_eq(after(&l, batch(CODEC_SMALLEST, 900, 100, 900, true)), CODEC_PACKED);
    /* encoded before the change: it says nothing of the new rung */
    ck_assert_int_eq(after(&l, batch(CODEC_SMALLEST, 900, 100, 900, true)), CODEC_PACKED);
    ck_assert_int_eq(after(&l, batch(CODEC_PACKED, 200, 100, 300, true)), CODEC_STORED);
    ck_assert_int_eq(after(&l, batch(CODEC_STORED, 150, 100, 300, true)), CODEC_STORED);
}
END_TEST

START_TEST(a_backlog_of_writing_asks_for_fewer_bytes)
{
    struct ladder l = { .rung = CODEC_STORED };
    ck_assert_int_eq(after(&l, batch(CODEC_STORED, 150, 3000, 3000, true)), CODEC_PACKED);
    ck_assert_int_eq(after(&l, batch(CODEC_PACKED, 200, 2500, 2500, true)), CODEC_SMALLEST);
    ck_assert_int_eq(after(&l, batch(CODEC_SMALLEST, 900, 2000, 2500, true)), CODEC_SMALLEST);
}
END_TEST

START_TEST(it_goes_back_only_to_what_keeps_up)
{
    struct ladder l = { 0 };
    after(&l, batch(CODEC_SMALLEST, 900, 100, 900, true));
    for (int i = 0; i < 50; i++) /* as much comes as before */
        ck_assert_int_eq(after(&l, batch(CODEC_PACKED, 200, 100, 1000, false)), CODEC_PACKED);
    int n = 0;
    while (n < 50 && after(&l, batch(CODEC_PACKED, 200, 100, 1500, false)) == CODEC_PACKED)
        n++;
    ck_assert_int_lt(n, 1); /* it has been calm for long */
}
END_TEST

START_TEST(small_batches_say_nothing)
{
    struct ladder l = { 0 };
    struct ladder_batch b = batch(CODEC_SMALLEST, 900, 100, 900, true);
    b.n_bytes = 4096;
    ck_assert_int_eq(after(&l, b), CODEC_SMALLEST);
    b.n_bytes = 0;
    ck_assert_int_eq(after(&l, b), CODEC_SMALLEST);
}
END_TEST

/* ------------------------------------------------------------------------- a model */

#define BATCHES   400
#define BATCH_MIB 4
#define RING_MIB  64

/* GB/s: of the link, of an encoder on each rung, of the disk. */
struct model {
    double link, encode[CODEC_RUNGS], disk;
    uint32_t n_encoders;
};

static const double ratios[CODEC_RUNGS] = { 1.43, 1.32, 1 };

struct course {
    double full[BATCHES], end[BATCHES]; /* when each was filled, and is written */
    enum codec_rung rung[BATCHES];
};

static double latest(double a, double b)
{
    return a > b ? a : b;
}

/* Which encoder is free first. */
static uint32_t first_free(const double *free_at, uint32_t n)
{
    uint32_t first = 0;
    for (uint32_t i = 1; i < n; i++)
        first = free_at[i] < free_at[first] ? i : first;
    return first;
}

/* @rung: of all batches; CODEC_RUNGS: the ladder's. Return: GB/s of the second half. */
static double carry(const struct model *m, int rung, struct course *c)
{
    const double bytes = BATCH_MIB * (double)MIB;
    double free_at[8] = { 0 }, came = 0;
    struct ladder l = { 0 };
    struct ladder_batch seen[BATCHES];
    int n_noted = 0, n_held = (int)m->n_encoders + 2, n_ring = RING_MIB / BATCH_MIB;
    for (int i = 0; i < BATCHES; i++) {
        double needed = i ? c->full[i - 1] : 0;
        double idle = i >= n_held ? c->end[i - n_held] : 0;
        /* complete: what launches waits while the ring is full */
        came = latest(came, i >= n_ring ? c->full[i - n_ring] : 0) + bytes / m->link / 1e9;
        c->full[i] = latest(latest(needed, idle) + bytes / 20e9, came);
        uint32_t e = first_free(free_at, m->n_encoders);
        double start = latest(c->full[i], free_at[e]);
        for (; n_noted < i && c->end[n_noted] <= start; n_noted++)
            ladder_note(&l, &seen[n_noted], m->n_encoders);
        c->rung[i] = rung == CODEC_RUNGS ? ladder_rung(&l) : (enum codec_rung)rung;
        double encode = bytes / m->encode[c->rung[i]] / 1e9;
        double append = bytes / ratios[c->rung[i]] / m->disk / 1e9;
        free_at[e] = start + encode;
        c->end[i] = latest(free_at[e], i ? c->end[i - 1] : 0) + append;
        seen[i] = (struct ladder_batch){
            .rung = c->rung[i],
            .n_bytes = BATCH_MIB * MIB,
            .encode_ns = (uint64_t)(encode * 1e9),
            .append_ns = (uint64_t)(append * 1e9),
            .since_ns = (uint64_t)((c->full[i] - needed) * 1e9),
            .waited = idle > needed && (c->full[i] - came) * m->link * 1e9 >= bytes * n_ring / 4.0,
        };
    }
    return bytes * (BATCHES / 2 - 1) / 1e9 / (c->end[BATCHES - 1] - c->end[BATCHES / 2]);
}

static const struct model models[] = {
    { 0.2, { 1.2, 5, 7 }, 2, 1 }, /* the link is the slowest */
    { 1, { 1.2, 5, 7 }, 4, 1 },   { 2, { 1.2, 5, 7 }, 4, 1 },    { 4, { 1.2, 5, 7 }, 10, 1 },
    { 20, { 1.2, 5, 7 }, 10, 1 }, { 2, { 1.2, 5, 7 }, 4, 2 },    { 20, { 1.2, 5, 7 }, 10, 4 },
    { 4, { 1.2, 5, 7 }, 0.5, 1 }, { 20, { 1.2, 5, 7 }, 0.2, 2 }, { 20, { 0.6, 2, 3 }, 1, 1 },
};

START_TEST(it_settles_at_what_the_best_rung_carries)
{
    static struct course c;
    const struct model *m = &models[_i];
    double best = 0;
    for (int rung = 0; rung < CODEC_RUNGS; rung++)
        best = latest(best, carry(m, rung, &c));
    double smallest = carry(m, CODEC_SMALLEST, &c), got = carry(m, CODEC_RUNGS, &c);
    ck_assert_msg(got > 0.9 * best, "model %d: %.2f of %.2f GB/s", _i, got, best);
    int n_smallest = 0;
    for (int i = BATCHES / 2; i < BATCHES; i++)
        n_smallest += c.rung[i] == CODEC_SMALLEST;
    if (smallest > 0.999 * best) /* no byte more than need be */
        ck_assert_msg(n_smallest > BATCHES / 2 * 9 / 10, "model %d: %d of %d", _i, n_smallest,
                      BATCHES / 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ladder");
    TCase *tcase = tcase_create("ladder");
    tcase_add_test(tcase, without_a_backlog_it_stays_at_the_fewest_bytes);
    tcase_add_test(tcase, a_backlog_of_encoding_asks_for_a_quicker_rung);
    tcase_add_test(tcase, a_backlog_of_writing_asks_for_fewer_bytes);
    tcase_add_test(tcase, it_goes_back_only_to_what_keeps_up);
    tcase_add_test(tcase, small_batches_say_nothing);
    tcase_add_loop_test(tcase, it_settles_at_what_the_best_rung_carries, 0,
                        sizeof models / sizeof *models);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
