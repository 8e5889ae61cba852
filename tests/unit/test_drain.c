/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drain and encoder threads (preload/context) over a host model of the device: whatever happens
 * to a record, it is captured with its own bytes, in order, or counted under a reason. Driver, writer and
 * counters are the test's own; runs under ThreadSanitizer.
 */
#include "core/atomic.h"
#include "preload/context/gauge.h"
#include "preload/context/side.h"
#include "preload/context/workers.h"
#include "tests/unit/drain_kit.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SLOTS 64u
#define MAX_BYTES (512u << 10)
#define MAX_LIST  10000
#define N_SITES   5u
#define N_DEVICE  2

/* ------------------------------------------------------------------------- the world around it */

static struct world {
    struct context context;
    struct dmi_desc desc[MAX_SLOTS];
    struct ring_slot slots[MAX_SLOTS];
    unsigned char *payload;
    uint64_t n_appends, fail_append_at; /* the one append that fails */
    uint64_t last_launch;               /* encoder only */
    uint32_t row_lists[4 * MAX_LIST], rows[MAX_LIST];
    uint64_t n_wrong; /* records out of order, or whose bytes are not their own */
} world;

static unsigned char pattern(uint64_t seq, uint64_t i)
{
    return (unsigned char)(seq * 37 + i * 3);
}

/* Some records keep rows by a list, those of one step (of eight launches) the same one. */
static bool has_list(uint64_t seq, uint64_t n)
{
    return seq % 3 == 0 && n <= MAX_LIST;
}

static uint32_t listed_row(uint64_t seq, uint64_t i)
{
    return (uint32_t)(i * 2 + seq / 8);
}

static bool list_is_right(const struct run_record *r)
{
    bool good = !r->kept == !has_list(r->launch, r->dims[0]);
    for (uint64_t i = 0; good && r->kept && i < r->dims[0]; i++)
        good = r->kept[i] == listed_row(r->launch, i);
    return good;
}

int kit_append(const struct run_record *records, size_t n_records)
{
    if (++world.n_appends == world.fail_append_at)
        return -ENOSPC;
    for (size_t i = 0; i < n_records; i++) {
        const struct run_record *r = &records[i];
        const unsigned char *data = r->data;
        bool good = r->launch > world.last_launch && r->site == r->launch % N_SITES &&
                    r->forward == r->launch * 2 && r->dims[0] == r->n_bytes && list_is_right(r);
        for (size_t k = 0; k < r->n_bytes && good; k++)
            good = data[k] == pattern(r->launch, k);
        world.n_wrong += !good;
        world.last_launch = r->launch;
    }
    return 0;
}

/* ------------------------------------------------------------------------- fixture */

static struct context *set_up(uint32_t n_slots, uint64_t n_bytes)
{
    kit_reset(N_SITES);
    free(world.payload);
    memset(&world, 0, sizeof world);
    world.fail_append_at = UINT64_MAX;
    world.payload = malloc(n_bytes);
    ck_assert(world.payload);
    struct context *a = &world.context;
    pthread_mutex_init(&a->lock, NULL);
    a->payload = (CUdeviceptr)(uintptr_t)world.payload;
    a->state = CONTEXT_READY;
    a->side = &side_device;
    ck_assert_int_eq(row_lists_init(&a->row_lists, world.row_lists, 0, sizeof world.row_lists), 0);
    ck_assert_int_eq(ring_init(&a->ring, world.desc, world.slots, n_slots, n_bytes), 0);
    return a;
}

/* Its list of kept rows, if it has one, as a record's note says it. Under the lock. Return: as row_lists_place(). */
static int place_list(struct context *a, uint64_t seq, uint64_t n, uint64_t *list, uint32_t *kept)
{
    *kept = ROW_LISTS_NONE;
    if (!has_list(seq, n))
        return 0;
    for (uint64_t i = 0; i < n; i++)
        world.rows[i] = listed_row(seq, i);
    int r = row_lists_place(&a->row_lists, atomic_load_acquire(&a->ring.tail_slot), seq / 8,
                            world.rows, (uint32_t)n, list);
    if (r == 0)
        *kept = row_list_at(&a->row_lists, *list);
    return r;
}

/* As capture/admission.c does. Return: as ring_reserve(). */
static int reserve(struct context *a, uint64_t seq, uint64_t n_bytes, struct dmi_desc *record,
                   uint64_t *index)
{
    uint64_t payload, list;
    uint32_t kept;
    pthread_mutex_lock(&a->lock);
    /*
     * The drain breaks the context, then takes the lock, then gives back what is in flight: asked under the lock, nothing is reserved
     * of that. After such an error a device writes no more; the streams here do.
     */
    int r = atomic_load_acquire(&a->broken) ? RING_E_FULL : 0;
    if (r == 0)
        r = place_list(a, seq, n_bytes, &list, &kept);
    if (r == 0)
        r = ring_reserve(&a->ring, seq, (uint32_t)(seq % N_SITES), n_bytes, index, &payload);
    if (r == 0) {
        if (kept != ROW_LISTS_NONE)
            row_lists_use(&a->row_lists, list, *index);
        *(struct record_note *)ring_user(&a->ring, *index) = (struct record_note){
            .forward = seq * 2,
            .step = seq / 8,
            .n_dims = 1,
            .dims = { (uint32_t)n_bytes },
            .kept = kept,
        };
        *record = (struct dmi_desc){
            .ready = seq, .payload = payload, .n_bytes = n_bytes, .site = (uint32_t)(seq % N_SITES)
        };
    }
    row_lists_settle(&a->row_lists);
    pthread_mutex_unlock(&a->lock);
    return r;
}

/* As kernels/copy.cu does. */
static void copy_and_publish(struct context *a, const struct dmi_desc *record, uint64_t index)
{
    for (uint64_t i = 0; i < record->n_bytes; i++)
        world.payload[record->payload + i] = pattern(record->ready, i);
    ring_publish(ring_desc(&a->ring, index), record);
}

static void tear_down(struct context *a)
{
    workers_free(a);
    row_lists_deinit(&a->row_lists);
    pthread_mutex_destroy(&a->lock);
}

/* ------------------------------------------------------------------------- tests */

START_TEST(what_is_published_is_captured_in_order_with_its_own_bytes)
{
    struct context *a = set_up(8, 64 << 10);
    ck_assert_int_eq(workers_start(a), 0);
    uint64_t index = 0;
    for (uint64_t seq = DMI_SEQ_FIRST; seq < 300; seq++) {
        struct dmi_desc record;
        while (reserve(a, seq, 1 + seq * 7 % 5000, &record, &index) == RING_E_FULL)
            kit_wait();
        copy_and_publish(a, &record, index);
    }
    ck_assert(workers_wait(a, index + 1, 10ull * SECOND));
    ck_assert_uint_eq(kit_captured(), 298);
    kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    ck_assert_uint_eq(world.n_wrong, 0);
    tear_down(a);
}
END_TEST

/* The staging memory holds a quarter of the ring: the largest record passes through in pieces. */
START_TEST(a_record_as_large_as_the_ring_is_captured)
{
    struct context *a = set_up(4, MAX_BYTES);
    ck_assert_int_eq(workers_start(a), 0);
    for (uint64_t seq = DMI_SEQ_FIRST; seq < 8; seq++) {
        struct dmi_desc record;
        uint64_t index;
        while (reserve(a, seq, seq % 2 ? MAX_BYTES : 100, &record, &index) == RING_E_FULL)
            kit_wait();
        copy_and_publish(a, &record, index);
    }
    kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    ck_assert_uint_eq(kit_captured(), 6);
    ck_assert_uint_eq(world.n_wrong, 0);
    tear_down(a);
}
END_TEST

START_TEST(what_is_never_published_is_counted_when_the_time_is_over)
{
    struct context *a = set_up(8, 4096);
    ck_assert_int_eq(workers_start(a), 0);
    struct dmi_desc record[4];
    uint64_t index[4];
    for (uint64_t i = 0; i < 4; i++)
        ck_assert_int_eq(reserve(a, DMI_SEQ_FIRST + i, 64, &record[i], &index[i]), 0);
    copy_and_publish(a, &record[0], index[0]);
    copy_and_publish(a, &record[2], index[2]); /* after one that never comes */
    ring_cancel(&a->ring, index[3]);
    kit_stop(a, SECOND / 10, DMI_DROP_CONTEXT_GONE); /* ends, though one never comes */
    ck_assert_uint_eq(kit_captured(), 1);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_CONTEXT_GONE), 2);
    ck_assert_uint_eq(world.n_wrong, 0);
    tear_down(a);
}
END_TEST

START_TEST(a_descriptor_that_lies_is_counted_and_the_next_ones_are_captured)
{
    struct context *a = set_up(8, 4096);
    ck_assert_int_eq(workers_start(a), 0);
    for (uint64_t seq = DMI_SEQ_FIRST; seq < 6; seq++) {
        struct dmi_desc record;
        uint64_t index;
        ck_assert_int_eq(reserve(a, seq, 64, &record, &index), 0);
        record.site += seq == 3;
        copy_and_publish(a, &record, index);
    }
    kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_MISMATCH), 1);
    ck_assert_uint_eq(kit_captured(), 3);
    ck_assert_uint_eq(world.n_wrong, 0);
    tear_down(a);
}
END_TEST

START_TEST(a_full_disk_drops_its_chunk_and_no_other)
{
    struct context *a = set_up(8, 4096);
    world.fail_append_at = 2;
    ck_assert_int_eq(workers_start(a), 0);
    for (uint64_t seq = DMI_SEQ_FIRST; seq < 8; seq++) {
        struct dmi_desc record;
        uint64_t index;
        ck_assert_int_eq(reserve(a, seq, 64, &record, &index), 0);
        copy_and_publish(a, &record, index);
        ck_assert(workers_wait(a, index + 1, 10ull * SECOND)); /* a chunk each */
    }
    kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_WRITE_FAILED), 1);
    ck_assert_uint_eq(kit_captured(), 5);
    tear_down(a);
}
END_TEST

/* Records of which two do not fit a batch. */
static void publish_batches(struct context *a, uint64_t n)
{
    for (uint64_t seq = DMI_SEQ_FIRST; seq < DMI_SEQ_FIRST + n; seq++) {
        struct dmi_desc record;
        uint64_t index;
        ck_assert_int_eq(reserve(a, seq, a->ring.n_bytes / 8 + 64, &record, &index), 0);
        copy_and_publish(a, &record, index);
    }
}

START_TEST(encoders_encode_beside_one_another_and_append_in_order)
{
    struct context *a = set_up(8, MAX_BYTES);
    session.encoders = kit.meet = 3;
    ck_assert_int_eq(workers_start(a), 0);
    publish_batches(a, 6);
    kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    ck_assert_uint_eq(kit.most_encoding, 3);
    ck_assert_uint_eq(world.n_wrong, 0);
    ck_assert_uint_eq(kit_captured(), 6);
    tear_down(a);
}
END_TEST

START_TEST(never_more_encoders_than_asked_for)
{
    struct context *a = set_up(8, MAX_BYTES);
    session.encoders = (uint32_t)_i;
    ck_assert_int_eq(workers_start(a), 0);
    ck_assert_uint_eq(a->n_encoders, _i < 8 ? (uint32_t)_i : 8);
    publish_batches(a, 6);
    kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    ck_assert(workers_ended(a));
    ck_assert_uint_eq(kit_captured(), 6);
    tear_down(a);
}
END_TEST

/* As it comes: the launching side waits for room in the ring. */
static void publish_with_pressure(struct context *a, uint64_t seq)
{
    struct dmi_desc record;
    uint64_t index;
    while (reserve(a, seq, a->ring.n_bytes / 8 + 64, &record, &index))
        kit_wait();
    copy_and_publish(a, &record, index);
}

static bool was_quicker(void)
{
    return atomic_load_relaxed(&kit.n_rung[CODEC_PACKED]) ||
           atomic_load_relaxed(&kit.n_rung[CODEC_STORED]);
}

/* After how many records it does is a matter of times, which a busy machine has other ones of: test_ladder.c has those. */
START_TEST(a_backlog_takes_a_quicker_rung)
{
    struct context *a = set_up(16, 2 * MAX_BYTES);
    uint64_t n = 0;
    session.encoders = 1;
    session.rung = (uint32_t)_i;
    kit.slow_ns = 20000000;
    ck_assert_int_eq(workers_start(a), 0);
    for (; _i ? n < 20 : !was_quicker(); n++)
        publish_with_pressure(a, DMI_SEQ_FIRST + n);
    kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    ck_assert_uint_eq(kit_captured(), n);
    ck_assert_uint_eq(world.n_wrong, 0);
    if (_i) /* a rung that was asked for stays */
        ck_assert_uint_eq(kit.n_rung[_i - 1], n);
    tear_down(a);
}
END_TEST

START_TEST(a_batch_that_cannot_be_encoded_is_dropped_and_no_other)
{
    struct context *a = set_up(8, MAX_BYTES);
    session.encoders = 2;
    kit.fail_encode_at = 3;
    ck_assert_int_eq(workers_start(a), 0);
    publish_batches(a, 6);
    kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_WRITE_FAILED), 1);
    ck_assert_uint_eq(kit_captured(), 5);
    ck_assert_uint_eq(world.n_wrong, 0);
    tear_down(a);
}
END_TEST

START_TEST(a_sticky_error_drops_the_rest_and_stops_reservations)
{
    struct context *a = set_up(8, 4096);
    kit.fail_copy_at = 2;
    ck_assert_int_eq(workers_start(a), 0);
    struct dmi_desc record;
    uint64_t index;
    ck_assert_int_eq(reserve(a, 2, 64, &record, &index), 0);
    copy_and_publish(a, &record, index);
    ck_assert(workers_wait(a, 1, 10ull * SECOND));
    ck_assert_int_eq(reserve(a, 3, 64, &record, &index), 0);
    uint64_t never;
    struct dmi_desc unpublished;
    ck_assert_int_eq(reserve(a, 4, 64, &unpublished, &never), 0);
    copy_and_publish(a, &record, index);
    ck_assert(workers_wait(a, 3, 10ull * SECOND));
    ck_assert_int_eq(atomic_load_acquire(&a->broken), CUDA_ERROR_ILLEGAL_ADDRESS);
    kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    ck_assert_uint_eq(kit_captured(), 1);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_DEVICE_ERROR), 2);
    tear_down(a);
}
END_TEST

START_TEST(it_starts_again_after_a_stop)
{
    struct context *a = set_up(8, 4096);
    for (uint64_t seq = DMI_SEQ_FIRST; seq < 12; seq++) {
        struct dmi_desc record;
        uint64_t index;
        ck_assert_int_eq(workers_start(a), 0);
        ck_assert_int_eq(reserve(a, seq, 64, &record, &index), 0);
        copy_and_publish(a, &record, index);
        kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    }
    ck_assert_uint_eq(kit_captured(), 10);
    ck_assert_uint_eq(world.n_wrong, 0);
    tear_down(a);
}
END_TEST

/* ------------------------------------------------------------------------- random schedules */

/* A "stream": runs the copies that are queued on it, in order, when it likes. */
struct producer {
    pthread_mutex_t lock;
    struct {
        struct dmi_desc record;
        uint64_t index;
    } work[2 * MAX_SLOTS];
    uint32_t n_in, n_out;
    bool closed;
    uint64_t seed;
};

static void *stream_main(void *arg)
{
    struct producer *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool any = s->n_out != s->n_in, closed = s->closed;
        uint32_t i = s->n_out % (2 * MAX_SLOTS);
        struct dmi_desc record = s->work[i].record;
        uint64_t index = s->work[i].index;
        s->n_out += any;
        pthread_mutex_unlock(&s->lock);
        if (any)
            copy_and_publish(&world.context, &record, index);
        else if (closed)
            return NULL;
        else
            kit_wait();
        kit_nap(&s->seed);
    }
}

START_TEST(random_schedules_account_for_every_record)
{
    uint64_t state = (uint64_t)_i * 7919;
    struct context *a = set_up(2u << kit_next(&state) % 6, 4096u << kit_next(&state) % 4);
    if (kit_next(&state) % 4 == 0)
        world.fail_append_at = 1 + kit_next(&state) % 6;
    if (kit_next(&state) % 4 == 0)
        kit.fail_encode_at = 1 + kit_next(&state) % 6;
    session.encoders = 1 + kit_next(&state) % 4;
    if (kit_next(&state) % 6 == 0)
        kit.fail_copy_at = 1 + kit_next(&state) % 30;
    static struct producer streams[N_DEVICE];
    pthread_t threads[N_DEVICE];
    for (int i = 0; i < N_DEVICE; i++) {
        memset(&streams[i], 0, sizeof streams[i]);
        pthread_mutex_init(&streams[i].lock, NULL);
        streams[i].seed = kit_next(&state);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, stream_main, &streams[i]), 0);
    }
    ck_assert_int_eq(workers_start(a), 0);
    uint64_t n_reserved = 0, n_cancelled = 0, n_refused = 0;
    for (uint64_t seq = DMI_SEQ_FIRST; seq < 200; seq++) {
        struct dmi_desc record;
        uint64_t index;
        uint64_t n_bytes = 1 + kit_next(&state) % (kit_next(&state) % 8 ? 256 : a->ring.n_bytes);
        if (atomic_load_acquire(&a->broken))
            break; /* as launch.c does */
        if (reserve(a, seq, n_bytes, &record, &index)) {
            n_refused++; /* best effort: dropped by the launching side, which counts it */
            kit_wait();
            continue;
        }
        n_reserved++;
        if (kit_next(&state) % 10 == 0) {
            n_cancelled +=
                ring_cancel(&a->ring, index); /* else the drain gave up on it, and counted it */
            continue;
        }
        struct producer *s = &streams[kit_next(&state) % N_DEVICE];
        pthread_mutex_lock(&s->lock);
        uint32_t at = s->n_in++ % (2 * MAX_SLOTS);
        s->work[at].record = record;
        s->work[at].index = index;
        pthread_mutex_unlock(&s->lock);
    }
    for (int i = 0; i < N_DEVICE; i++) {
        pthread_mutex_lock(&streams[i].lock);
        streams[i].closed = true;
        pthread_mutex_unlock(&streams[i].lock);
        pthread_join(threads[i], NULL);
        pthread_mutex_destroy(&streams[i].lock);
    }
    kit_stop(a, 10ull * SECOND, DMI_DROP_EXIT_TIMEOUT);
    uint64_t n_dropped = 0;
    for (int reason = 0; reason < DMI_DROP_COUNT; reason++)
        n_dropped += kit_dropped((enum dmi_drop)reason);
    ck_assert_uint_eq(world.n_wrong, 0);
    ck_assert_uint_eq(kit_captured() + n_dropped, n_reserved - n_cancelled);
    ck_assert_uint_eq(kit_dropped(DMI_DROP_EXIT_TIMEOUT) + kit_dropped(DMI_DROP_MISMATCH), 0);
    if (kit.fail_copy_at == UINT64_MAX && world.fail_append_at == UINT64_MAX &&
        kit.fail_encode_at == UINT64_MAX)
        ck_assert_uint_eq(n_dropped, 0);
    ck_assert_uint_eq(ring_in_flight(&a->ring), 0);
    tear_down(a);
}
END_TEST

START_TEST(dmi_top_sees_what_is_in_flight)
{
    static struct context c;
    struct dmi_live_ring live = { 0 };
    uint64_t index, payload;
    memset(&world.slots, 0, sizeof world.slots);
    ck_assert_int_eq(ring_init(&c.ring, world.desc, world.slots, 8, 1024), 0);
    c.live = &live;
    gauge_start(&c);
    for (uint64_t i = 0; i < 5; i++) { /* each time it is empty, and begins at its front */
        ck_assert_int_eq(ring_reserve(&c.ring, DMI_SEQ_FIRST, 0, 100, &index, &payload), 0);
        gauge_reserved(&c);
        ck_assert_uint_eq(dmi_live_in_flight(&live), 112);
        ck_assert_uint_eq(live.head_slots - live.tail_slots, 1);
        ck_assert_int_eq(ring_reserve(&c.ring, DMI_SEQ_FIRST, 0, 600, &index, &payload), 0);
        gauge_reserved(&c);
        ck_assert_uint_eq(dmi_live_in_flight(&live), 720);
        c.drained_bytes += 100;
        gauge_releases(&c, index);
        ring_release(&c.ring, index);
        ck_assert_uint_eq(dmi_live_in_flight(&live), 608);
        c.drained_bytes += 600;
        gauge_releases(&c, index + 1);
        ring_release(&c.ring, index + 1);
        ck_assert_uint_eq(dmi_live_in_flight(&live), 0);
        ck_assert_uint_eq(live.drained_bytes, 700 * (i + 1));
    }
    ck_assert_uint_eq(live.most_bytes, 720);
    ck_assert_uint_eq(live.most_slots, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("drain");
    TCase *plain = tcase_create("one device");
    tcase_add_test(plain, what_is_published_is_captured_in_order_with_its_own_bytes);
    tcase_add_test(plain, a_record_as_large_as_the_ring_is_captured);
    tcase_add_test(plain, what_is_never_published_is_counted_when_the_time_is_over);
    tcase_add_test(plain, a_descriptor_that_lies_is_counted_and_the_next_ones_are_captured);
    tcase_add_test(plain, a_full_disk_drops_its_chunk_and_no_other);
    tcase_add_test(plain, encoders_encode_beside_one_another_and_append_in_order);
    tcase_add_loop_test(plain, never_more_encoders_than_asked_for, 1, 12);
    tcase_add_loop_test(plain, a_backlog_takes_a_quicker_rung, 0, CODEC_RUNGS + 1);
    tcase_add_test(plain, a_batch_that_cannot_be_encoded_is_dropped_and_no_other);
    tcase_add_test(plain, a_sticky_error_drops_the_rest_and_stops_reservations);
    tcase_add_test(plain, it_starts_again_after_a_stop);
    tcase_add_test(plain, dmi_top_sees_what_is_in_flight);
    suite_add_tcase(suite, plain);
    TCase *random = tcase_create("random");
    tcase_add_loop_test(random, random_schedules_account_for_every_record, 0, 300);
    suite_add_tcase(suite, random);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
