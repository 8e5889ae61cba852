/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring's protocol, with a host model of the device: single-threaded properties against a list of
 * what is in flight, and launching, device and drain threads with random schedules (ThreadSanitizer).
 */
#include "kernels/ring.h"

#include "core/atomic.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_SLOTS 512u
#define MAX_BYTES 8192u

static struct dmi_desc desc[MAX_SLOTS];
static struct ring_slot slots[MAX_SLOTS];
static unsigned char payload_ring[MAX_BYTES];

static struct ring make(uint32_t n_slots, uint64_t n_bytes)
{
    struct ring ring;
    memset(desc, 0, sizeof desc);
    memset(slots, 0, sizeof slots);
    ck_assert_int_eq(ring_init(&ring, desc, slots, n_slots, n_bytes), 0);
    return ring;
}

/* splitmix64 */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static struct dmi_desc record_of(const struct ring *ring, uint64_t index)
{
    const struct ring_slot *slot = ring_slot(ring, index);
    return (struct dmi_desc){
        .ready = slot->seq,
        .payload = slot->payload,
        .n_bytes = slot->n_bytes,
        .site = slot->site,
    };
}

static void publish(const struct ring *ring, uint64_t index)
{
    struct dmi_desc record = record_of(ring, index);
    ring_publish(ring_desc(ring, index), &record);
}

/* ------------------------------------------------------------------------- one thread */

START_TEST(init_refuses_sizes_that_the_protocol_cannot_hold)
{
    static const struct {
        uint32_t n_slots;
        uint64_t n_bytes;
        int result;
    } rows[] = {
        { 2, 64, 0 },       { 64, 4096, 0 },      { 0, 64, -EINVAL }, { 1, 64, -EINVAL },
        { 3, 64, -EINVAL }, { 48, 64, -EINVAL },  { 2, 0, -EINVAL },  { 2, 63, -EINVAL },
        { 2, 72, -EINVAL }, { 2, 4095, -EINVAL },
    };
    struct ring ring;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_int_eq(ring_init(&ring, desc, slots, rows[i].n_slots, rows[i].n_bytes),
                         rows[i].result);
}
END_TEST

START_TEST(a_slot_is_pending_until_published_and_free_after_release)
{
    struct ring ring = make(4, 256);
    uint64_t index, at;
    ck_assert_int_eq(ring_poll(&ring, 0), RING_EMPTY);
    ck_assert_int_eq(ring_reserve(&ring, 2, 7, 100, &index, &at), 0);
    ck_assert_uint_eq(index, 0);
    ck_assert_int_eq(ring_poll(&ring, 0), RING_PENDING);
    ck_assert_uint_eq(ring_in_flight(&ring), 1);
    publish(&ring, 0);
    ck_assert_int_eq(ring_poll(&ring, 0), RING_READY);
    ck_assert_int_eq(ring_poll(&ring, 1), RING_EMPTY);
    ring_release(&ring, 1);
    ck_assert_uint_eq(ring_in_flight(&ring), 0);
}
END_TEST

START_TEST(a_slot_s_last_record_is_not_taken_for_its_next)
{
    struct ring ring = make(2, 64);
    for (uint64_t seq = DMI_SEQ_FIRST; seq < 20; seq++) {
        uint64_t index, at;
        ck_assert_int_eq(ring_reserve(&ring, seq, 0, 16, &index, &at), 0);
        ck_assert_int_eq(ring_poll(&ring, index), RING_PENDING);
        publish(&ring, index);
        ck_assert_int_eq(ring_poll(&ring, index), RING_READY);
        ring_release(&ring, index + 1);
    }
}
END_TEST

START_TEST(a_cancelled_slot_is_void_and_its_space_comes_back)
{
    struct ring ring = make(2, 64);
    uint64_t index, at;
    for (uint64_t seq = DMI_SEQ_FIRST; seq < 20; seq++) {
        ck_assert_int_eq(ring_reserve(&ring, seq, 0, 64, &index, &at), 0);
        ring_cancel(&ring, index);
        ck_assert_int_eq(ring_poll(&ring, index), RING_VOID);
        ring_release(&ring, index + 1);
    }
}
END_TEST

START_TEST(a_slot_is_cancelled_or_given_up_and_not_both)
{
    struct ring ring = make(4, 64);
    uint64_t index, at;
    ck_assert_int_eq(ring_reserve(&ring, 2, 0, 16, &index, &at), 0);
    ck_assert(ring_cancel(&ring, index));
    ck_assert(!ring_give_up(&ring, index));
    ck_assert_int_eq(ring_poll(&ring, index), RING_VOID);
    ck_assert_int_eq(ring_reserve(&ring, 3, 0, 16, &index, &at), 0);
    ck_assert(ring_give_up(&ring, index));
    ck_assert(!ring_cancel(&ring, index));
    ring_release(&ring, index + 1);
    uint64_t next_index;
    for (uint64_t seq = 4; seq < 8; seq++)
        ck_assert_int_eq(ring_reserve(&ring, seq, 0, 16, &next_index, &at), 0);
    ck_assert(!ring_cancel(&ring, index)); /* its place is another record's by now */
    for (uint64_t i = index + 1; i <= next_index; i++)
        ck_assert_int_eq(ring_poll(&ring, i), RING_PENDING);
}
END_TEST

START_TEST(a_descriptor_that_differs_from_its_reservation_is_a_mismatch)
{
    for (int field = 0; field < 4; field++) {
        struct ring ring = make(2, 64);
        uint64_t index, at;
        ck_assert_int_eq(ring_reserve(&ring, 5, 1, 16, &index, &at), 0);
        struct dmi_desc record = record_of(&ring, index);
        *(field == 0   ? &record.ready
          : field == 1 ? &record.payload
                       : &record.n_bytes) += field < 3 ? 16 : 0;
        record.site += field == 3;
        ring_publish(ring_desc(&ring, index), &record);
        ck_assert_int_eq(ring_poll(&ring, index), RING_MISMATCH);
    }
}
END_TEST

START_TEST(more_than_the_ring_is_refused_and_nothing_changes)
{
    struct ring ring = make(4, 128), before = ring;
    uint64_t index = 99, at = 99;
    ck_assert_int_eq(ring_reserve(&ring, 2, 0, 129, &index, &at), RING_E_TOO_LARGE);
    ck_assert_int_eq(ring_reserve(&ring, 2, 0, UINT64_MAX, &index, &at), RING_E_TOO_LARGE);
    ck_assert_int_eq(memcmp(&ring, &before, sizeof ring), 0);
    ck_assert_uint_eq(index, 99);
    ck_assert_uint_eq(at, 99);
}
END_TEST

START_TEST(a_full_ring_refuses_and_nothing_changes)
{
    struct ring ring = make(2, 128);
    uint64_t index, at;
    ck_assert_int_eq(ring_reserve(&ring, 2, 0, 16, &index, &at), 0);
    ck_assert_int_eq(ring_reserve(&ring, 3, 0, 16, &index, &at), 0);
    struct ring before = ring;
    ck_assert_int_eq(ring_reserve(&ring, 4, 0, 16, &index, &at), RING_E_FULL); /* no slot */
    ck_assert_int_eq(memcmp(&ring, &before, sizeof ring), 0);
    publish(&ring, 0);
    ring_release(&ring, 1);
    before = ring;
    ck_assert_int_eq(ring_reserve(&ring, 4, 0, 112, &index, &at),
                     RING_E_FULL); /* no bytes in one piece */
    ck_assert_int_eq(memcmp(&ring, &before, sizeof ring), 0);
    ck_assert_int_eq(ring_reserve(&ring, 4, 0, 96, &index, &at), 0);
}
END_TEST

START_TEST(a_record_as_large_as_the_ring_fits_whenever_it_is_empty)
{
    struct ring ring = make(4, 128);
    uint64_t index, at, seq = DMI_SEQ_FIRST;
    for (uint64_t first = 16; first <= 128; first += 16) {
        ck_assert_int_eq(ring_reserve(&ring, seq++, 0, first, &index, &at), 0);
        publish(&ring, index);
        ring_release(&ring, index + 1);
        ck_assert_int_eq(ring_reserve(&ring, seq++, 0, 128, &index, &at), 0);
        ck_assert_uint_eq(at, 0);
        publish(&ring, index);
        ring_release(&ring, index + 1);
    }
}
END_TEST

/* What dmi_close publishes in launch slot @index, of whose records those in @ran did. */
static void publish_launch(const struct ring *ring, uint64_t index, bool (*ran)(uint32_t))
{
    const struct ring_slot *slot = ring_slot(ring, index);
    struct dmi_close_desc record = { .ready = slot->seq, .site = DMI_SITE_CLOSE, .sum = 7 };
    for (uint32_t i = 0; i < slot->n_records; i++)
        record.ran[i / 32] |= (uint32_t)ran(i) << i % 32;
    ring_publish_close(ring_desc(ring, index), &record);
}

static bool is_odd(uint32_t i)
{
    return i & 1;
}

START_TEST(a_launch_has_one_slot_which_tells_of_each_record)
{
    struct ring ring = make(8, 1024);
    uint64_t first, payload;
    ck_assert_int_eq(ring_reserve_launch(&ring, 9, 3, 208, &first, &payload), 0);
    ck_assert_uint_eq(ring_in_flight(&ring), 1);
    ck_assert_uint_eq(ring_bytes_in_flight(&ring), 208);
    ck_assert_int_eq(ring_poll(&ring, first), RING_PENDING);
    publish_launch(&ring, first, is_odd);
    ck_assert_int_eq(ring_poll(&ring, first), RING_READY);
    ck_assert(ring_is_launch(ring_slot(&ring, first)));
    ck_assert_int_eq(ring_record(&ring, first, 0), RING_NOT_RUN);
    ck_assert_int_eq(ring_record(&ring, first, 1), RING_READY);
    ck_assert_int_eq(ring_record(&ring, first, 2), RING_NOT_RUN);
    ck_assert_uint_eq(ring_launch_sum(&ring, first), 7);
    ring_release(&ring, first + 1);
    ck_assert_uint_eq(ring_in_flight(&ring), 0);
}
END_TEST

START_TEST(a_slot_that_tells_of_no_launch_is_a_mismatch)
{
    for (int fault = 0; fault < 3; fault++) {
        struct ring ring = make(8, 1024);
        uint64_t first, payload;
        ck_assert_int_eq(ring_reserve_launch(&ring, 9, 3, 208, &first, &payload), 0);
        struct dmi_close_desc record = { .ready = 9, .site = DMI_SITE_CLOSE };
        record.site = fault == 1 ? 0 : record.site;
        record.ready += fault == 2;
        ring_publish_close(ring_desc(&ring, first), &record);
        ck_assert_int_eq(ring_poll(&ring, first), fault ? RING_MISMATCH : RING_READY);
    }
}
END_TEST

START_TEST(a_wild_slot_is_of_its_record_alone)
{
    struct ring ring = make(8, 1024);
    uint64_t first, payload;
    ck_assert_int_eq(ring_reserve_launch(&ring, 9, 2, 32, &first, &payload), 0);
    struct dmi_close_desc record = {
        .ready = 9, .site = DMI_SITE_CLOSE, .ran = { 3 }, .wild = { 2 }
    };
    ring_publish_close(ring_desc(&ring, first), &record);
    ck_assert_int_eq(ring_record(&ring, first, 0), RING_READY);
    ck_assert_int_eq(ring_record(&ring, first, 1), RING_WILD);
}
END_TEST

/* Each tells of its own records, also where the slots go round the ring; the bytes are free with the last one. */
START_TEST(a_large_launch_has_several_slots)
{
    enum { N = 2 * DMI_CLOSE_RECORDS + 5 };
    struct ring ring = make(8, 128 * RING_ALIGN);
    uint64_t first, payload, other;
    ck_assert_uint_eq(ring_launch_slots(N), 3);
    ck_assert_uint_eq(ring_launch_slots(DMI_CLOSE_RECORDS), 1);
    for (uint64_t seq = 2; seq < 12; seq++) {
        ck_assert_int_eq(ring_reserve_launch(&ring, seq, N, 100 * RING_ALIGN, &first, &payload), 0);
        for (uint64_t i = first; i < first + 3; i++) {
            uint32_t n = i < first + 2 ? DMI_CLOSE_RECORDS : 5;
            ck_assert_uint_eq(ring_slot(&ring, i)->n_records, n);
            ck_assert_uint_eq(ring_slot(&ring, i)->payload, payload);
            ck_assert_int_eq(ring_poll(&ring, i), RING_PENDING);
            publish_launch(&ring, i, is_odd);
            ck_assert_int_eq(ring_poll(&ring, i), RING_READY);
            ck_assert_int_eq(ring_record(&ring, i, n - 2),
                             is_odd(n - 2) ? RING_READY : RING_NOT_RUN);
        }
        ring_release(&ring, first + 2);
        ck_assert_int_eq(ring_reserve(&ring, seq, 0, 64 * RING_ALIGN, &other, &payload),
                         RING_E_FULL);
        ring_release(&ring, first + 3);
    }
}
END_TEST

START_TEST(a_launch_is_reserved_whole_or_not_at_all)
{
    struct ring ring = make(4, 256);
    uint64_t first, payload, index;
    ck_assert_int_eq(ring_reserve_launch(&ring, 2, 4 * DMI_CLOSE_RECORDS + 1, 16, &first, &payload),
                     RING_E_TOO_LARGE); /* slots */
    ck_assert_int_eq(ring_reserve_launch(&ring, 2, 3, 336, &first, &payload),
                     RING_E_TOO_LARGE); /* bytes */
    ck_assert_int_eq(ring_reserve_launch(&ring, 2, 2, UINT64_MAX - 15, &first, &payload),
                     RING_E_TOO_LARGE);
    ck_assert_uint_eq(ring_in_flight(&ring), 0);
    ck_assert_int_eq(ring_reserve(&ring, 2, 0, 100, &index, &payload), 0);
    ck_assert_int_eq(ring_reserve_launch(&ring, 3, 2, 224, &first, &payload), RING_E_FULL);
    ck_assert_uint_eq(ring_in_flight(&ring), 1);
    ring_cancel(&ring, index);
    ring_release(&ring, index + 1);
    ck_assert_int_eq(ring_reserve_launch(&ring, 4, 2, 224, &first, &payload), 0);
    ck_assert_uint_eq(ring_in_flight(&ring), 1);
}
END_TEST

/* Random sizes and fates against a list: pieces lie inside, aligned, and never overlap another in flight. */
START_TEST(records_in_flight_never_overlap)
{
    uint64_t state = (uint64_t)_i;
    uint32_t n_slots = 2u << next(&state) % 5;
    uint64_t n_bytes = RING_MIN_BYTES + next(&state) % 63 * RING_ALIGN;
    struct ring ring = make(n_slots, n_bytes);
    uint64_t first = 0, end = 0, seq = DMI_SEQ_FIRST; /* what is in flight, by our own count */
    for (int step = 0; step < 2000; step++) {
        if (next(&state) % 2) {
            uint64_t want = 1 + next(&state) % (n_bytes * 5 / 4), index, at;
            int r = ring_reserve(&ring, seq, (uint32_t)seq, want, &index, &at);
            if (want > n_bytes)
                ck_assert_int_eq(r, RING_E_TOO_LARGE);
            if (end == first && want <= n_bytes)
                ck_assert_int_eq(r, 0);
            if (end - first == n_slots)
                ck_assert_int_ne(r, 0);
            if (r)
                continue;
            ck_assert_uint_eq(index, end);
            ck_assert_uint_eq(at % RING_ALIGN, 0);
            ck_assert_uint_le(at + want, n_bytes);
            for (uint64_t i = first; i < end; i++) {
                const struct ring_slot *other = ring_slot(&ring, i);
                ck_assert(at + want <= other->payload || other->payload + other->n_bytes <= at);
            }
            end++;
            seq++;
        } else if (end != first) {
            uint64_t n = 1 + next(&state) % (end - first);
            for (uint64_t i = first; i < first + n; i++) {
                ck_assert_int_eq(ring_poll(&ring, i), RING_PENDING);
                if (next(&state) % 4)
                    publish(&ring, i);
                else
                    ring_cancel(&ring, i);
                ck_assert_int_ge(ring_poll(&ring, i), RING_READY);
                ck_assert_int_ne(ring_poll(&ring, i), RING_MISMATCH);
            }
            first += n;
            ring_release(&ring, first);
        }
        ck_assert_uint_eq(ring_in_flight(&ring), end - first);
    }
}
END_TEST

/* ------------------------------------------------------------------------- threads */

#define N_DEVICE 2 /* "streams" that run copies at their own pace */
#define N_LAUNCH 2 /* host threads that launch, in turn */
#define QUEUE    128u

/* What one schedule shares. Only the ring orders the device threads before the drain. */
struct model {
    struct ring ring;
    pthread_mutex_t lock; /* of the capture context, and of the streams' queues */
    struct queue {
        struct {
            struct dmi_desc record;
            uint64_t index;
        } work[QUEUE];
        uint32_t n_in, n_out;
    } queue[N_DEVICE];
    uint64_t seed, drain_seed, next_seq;
    int n_records; /* that each launching thread makes */
    int n_launching;
    uint64_t n_cancelled, n_refused, n_drained, n_void;
};

static void maybe_yield(uint64_t *state)
{
    for (uint64_t n = next(state) % 4; n; n--)
        sched_yield();
}

/* For who waits for another thread: where all only yield, the one that is waited for starves. */
static void wait_a_little(void)
{
    struct timespec pause = { .tv_nsec = 20000 };
    nanosleep(&pause, NULL);
}

static unsigned char pattern(uint64_t seq, uint64_t i)
{
    return (unsigned char)(seq * 31 + i);
}

static void *launching_main(void *arg)
{
    struct model *m = arg;
    pthread_mutex_lock(&m->lock);
    uint64_t state = next(&m->seed);
    pthread_mutex_unlock(&m->lock);
    for (int made = 0; made < m->n_records;) {
        uint64_t n_bytes = 1 + next(&state) % m->ring.n_bytes, index, at;
        if (next(&state) % 8)
            n_bytes = 1 + n_bytes / 8;
        struct queue *q = &m->queue[next(&state) % N_DEVICE];
        pthread_mutex_lock(&m->lock);
        int r =
            ring_reserve(&m->ring, m->next_seq, (uint32_t)(m->next_seq % 5), n_bytes, &index, &at);
        if (r == 0 && next(&state) % 8 == 0) {
            ring_cancel(&m->ring, index);
            m->n_cancelled++;
        } else if (r == 0) {
            uint32_t i =
                q->n_in++ % QUEUE; /* at most MAX_SLOTS are in flight: it cannot overflow */
            q->work[i].record = record_of(&m->ring, index);
            q->work[i].index = index;
        }
        m->next_seq += r == 0;
        m->n_refused += r != 0;
        pthread_mutex_unlock(&m->lock);
        made += r == 0;
        if (r)
            wait_a_little();
        else
            maybe_yield(&state);
    }
    pthread_mutex_lock(&m->lock);
    m->n_launching--;
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

struct device {
    struct model *model;
    struct queue *queue;
};

static void *device_main(void *arg)
{
    struct device *d = arg;
    struct model *m = d->model;
    pthread_mutex_lock(&m->lock);
    uint64_t state = next(&m->seed);
    pthread_mutex_unlock(&m->lock);
    for (;;) {
        struct dmi_desc record = { 0 };
        uint64_t index = 0;
        pthread_mutex_lock(&m->lock);
        bool ended = !m->n_launching;
        if (d->queue->n_out != d->queue->n_in) {
            uint32_t i = d->queue->n_out++ % QUEUE;
            record = d->queue->work[i].record;
            index = d->queue->work[i].index;
            ended = false;
        }
        pthread_mutex_unlock(&m->lock);
        if (ended)
            return NULL;
        if (record.ready) {
            for (uint64_t i = 0; i < record.n_bytes; i++)
                payload_ring[record.payload + i] = pattern(record.ready, i);
            maybe_yield(&state);
            ring_publish(ring_desc(&m->ring, index), &record);
            maybe_yield(&state);
        } else {
            wait_a_little();
        }
    }
}

/* Drains until all is seen. Return: the number of wrong bytes. */
static uint64_t drain(struct model *m, uint64_t n_total)
{
    uint64_t state = m->drain_seed, index = 0, wrong = 0, last_seq = 0, n_idle = 0;
    while (index < n_total) {
        enum ring_event event = ring_poll(&m->ring, index);
        if (event == RING_EMPTY || event == RING_PENDING) {
            if (++n_idle % 16)
                sched_yield();
            else
                wait_a_little();
            continue;
        }
        const struct ring_slot *slot = ring_slot(&m->ring, index);
        wrong += event == RING_MISMATCH || slot->seq <= last_seq;
        last_seq = slot->seq;
        for (uint64_t i = 0; event == RING_READY && i < slot->n_bytes; i++)
            wrong += payload_ring[slot->payload + i] != pattern(slot->seq, i);
        m->n_drained += event == RING_READY;
        m->n_void += event == RING_VOID;
        index++;
        if (next(&state) % 3 || m->ring.n_slots < 4 || index == n_total)
            ring_release(&m->ring, index);
        else if (index - m->ring.tail_slot > m->ring.n_slots / 2)
            ring_release(&m->ring, index);
        else if (ring_poll(&m->ring, index) == RING_EMPTY)
            ring_release(&m->ring, index);
    }
    return wrong;
}

static void one_schedule(uint64_t seed, int n_records)
{
    static struct model m;
    uint64_t state = seed;
    memset(&m, 0, sizeof m);
    m.ring = make(2u << next(&state) % 6, RING_MIN_BYTES << next(&state) % 6);
    m.seed = next(&state);
    m.drain_seed = next(&state);
    m.next_seq = DMI_SEQ_FIRST;
    m.n_records = n_records;
    m.n_launching = N_LAUNCH;
    pthread_mutex_init(&m.lock, NULL);
    pthread_t launching[N_LAUNCH], device[N_DEVICE];
    struct device d[N_DEVICE];
    for (int i = 0; i < N_DEVICE; i++) {
        d[i] = (struct device){ &m, &m.queue[i] };
        ck_assert_int_eq(pthread_create(&device[i], NULL, device_main, &d[i]), 0);
    }
    for (int i = 0; i < N_LAUNCH; i++)
        ck_assert_int_eq(pthread_create(&launching[i], NULL, launching_main, &m), 0);
    uint64_t n_total = (uint64_t)N_LAUNCH * (uint64_t)n_records;
    uint64_t wrong = drain(&m, n_total);
    for (int i = 0; i < N_LAUNCH; i++)
        pthread_join(launching[i], NULL);
    for (int i = 0; i < N_DEVICE; i++)
        pthread_join(device[i], NULL);
    pthread_mutex_destroy(&m.lock);
    ck_assert_msg(wrong == 0, "seed %llu: %llu wrong", (unsigned long long)seed,
                  (unsigned long long)wrong);
    ck_assert_uint_eq(m.n_void, m.n_cancelled);
    ck_assert_uint_eq(m.n_drained + m.n_void, n_total);
    ck_assert_uint_eq(ring_in_flight(&m.ring), 0);
}

/* 20 schedules a test, 1,000 in all. */
START_TEST(random_schedules_lose_nothing_and_tear_nothing)
{
    for (int i = 0; i < 20; i++)
        one_schedule((uint64_t)(_i * 20 + i), 60);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ring");
    TCase *plain = tcase_create("one thread");
    tcase_add_test(plain, init_refuses_sizes_that_the_protocol_cannot_hold);
    tcase_add_test(plain, a_slot_is_pending_until_published_and_free_after_release);
    tcase_add_test(plain, a_slot_s_last_record_is_not_taken_for_its_next);
    tcase_add_test(plain, a_cancelled_slot_is_void_and_its_space_comes_back);
    tcase_add_test(plain, a_slot_is_cancelled_or_given_up_and_not_both);
    tcase_add_test(plain, a_descriptor_that_differs_from_its_reservation_is_a_mismatch);
    tcase_add_test(plain, more_than_the_ring_is_refused_and_nothing_changes);
    tcase_add_test(plain, a_full_ring_refuses_and_nothing_changes);
    tcase_add_test(plain, a_record_as_large_as_the_ring_fits_whenever_it_is_empty);
    tcase_add_test(plain, a_launch_has_one_slot_which_tells_of_each_record);
    tcase_add_test(plain, a_slot_that_tells_of_no_launch_is_a_mismatch);
    tcase_add_test(plain, a_wild_slot_is_of_its_record_alone);
    tcase_add_test(plain, a_large_launch_has_several_slots);
    tcase_add_test(plain, a_launch_is_reserved_whole_or_not_at_all);
    tcase_add_loop_test(plain, records_in_flight_never_overlap, 0, 50);
    suite_add_tcase(suite, plain);
    TCase *threads = tcase_create("threads");
    tcase_add_loop_test(threads, random_schedules_lose_nothing_and_tear_nothing, 0, 50);
    suite_add_tcase(suite, threads);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
