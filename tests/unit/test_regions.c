/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of memory, against a plain model: lists that are looked through from end to end. */
#include "preload/capture/regions.h"

#include "preload/session/session.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BASE    0x700000000000ull
#define PAGE    0x200000ull
#define N_PAGES 64

enum { N_HANDLES = 6, N_DEVICES = 2 };

/* of the session: there is no run */
struct run *session_run(void)
{
    return NULL;
}

void run_problem(struct run *run, const char *site, const char *reason, const char *sentence)
{
    (void)run, (void)site, (void)reason, (void)sentence;
}

static uint64_t next_random(uint64_t *state, uint64_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

static void ends(uint64_t base, uint64_t n_bytes)
{
    regions_ended(base, n_bytes, regions_end(base, n_bytes), true);
}

/* As the sanitizer for leaks wants it. */
static void forget_all(void)
{
    struct memory *releasing;
    ends(BASE, N_PAGES * PAGE);
    for (uint64_t handle = 1; handle <= N_HANDLES + 1; handle++)
        while ((releasing = regions_release(handle)))
            regions_released(handle, releasing, true);
}

/* ------------------------------------------------------------------------- the model */

struct model_memory {
    bool shared;
};

struct model_region {
    uint64_t first, n;           /* pages; n 0: there is none */
    struct model_memory *memory; /* NULL: an allocation */
    bool shared;
    uint64_t readable;
    bool stale;
};

enum { N_STEPS = 4000 };

static struct model {
    struct model_memory memories[N_STEPS];
    unsigned n_memories;
    struct model_region at[N_PAGES]; /* in any order */
    struct model_memory *of[N_HANDLES];
    unsigned given[N_HANDLES];
} model;

static struct model_memory *model_memory(unsigned handle)
{
    if (!model.given[handle]) {
        model.of[handle] = &model.memories[model.n_memories++]; /* at most one a step */
        model.given[handle] = 1;
    }
    return model.of[handle];
}

static bool model_shared(const struct model_region *r)
{
    return r->memory ? r->memory->shared : r->shared;
}

static struct model_region *model_at(uint64_t page)
{
    for (unsigned i = 0; i < N_PAGES; i++)
        if (model.at[i].n && page >= model.at[i].first && page < model.at[i].first + model.at[i].n)
            return &model.at[i];
    return NULL;
}

static void model_end(uint64_t first, uint64_t n)
{
    for (uint64_t page = first; page < first + n; page++) {
        struct model_region *r = model_at(page);
        if (r)
            r->n = 0;
    }
}

static void model_add(struct model_region region)
{
    unsigned i = 0;
    model_end(region.first, region.n);
    while (model.at[i].n)
        i++;
    model.at[i] = region;
}

/* Page by page. Return: false where the driver is to be asked. */
static bool model_find(uint64_t page, uint64_t n, int device, struct memory_range *range)
{
    const struct model_region *r = model_at(page);
    if (!r || (!r->memory && r->stale))
        return false;
    *range = (struct memory_range){ .base = BASE + r->first * PAGE };
    if (!r->memory) {
        range->size = r->n * PAGE;
        range->shared = r->shared;
        range->closed = true;
        return true;
    }
    uint64_t end = r->first;
    while (!range->closed && end < page + n) {
        r = model_at(end);
        bool next = r && r->memory && r->first == end;
        range->barred = next && !(r->readable >> device & 1);
        range->closed = !next || range->barred;
        if (range->closed)
            break;
        range->shared = range->shared || model_shared(r);
        end = r->first + r->n;
    }
    range->size = end * PAGE + BASE - range->base;
    return true;
}

/* ------------------------------------------------------------------------- random calls */

struct extent {
    uint64_t first, n; /* pages */
};

static struct extent random_extent(uint64_t *random, uint64_t most)
{
    struct extent e;
    e.n = 1 + next_random(random, most);
    e.first = next_random(random, N_PAGES - e.n + 1);
    return e;
}

static void begin(uint64_t *random)
{
    struct extent e = random_extent(random, 3);
    unsigned handle = (unsigned)next_random(random, N_HANDLES);
    uint64_t base = BASE + e.first * PAGE, n = e.n * PAGE;
    uint64_t granted = next_random(random, 8) ? 3 : next_random(random, 4);
    if (next_random(random, 4)) {
        regions_mapped(base, n, handle + 1);
        model_add((struct model_region){ e.first, e.n, model_memory(handle), false, 0, false });
        regions_permit(base, n, granted, 0);
        model_at(e.first)->readable = granted;
        return;
    }
    struct memory_range range = { .base = base, .size = n };
    bool free = true, shares = !next_random(random, 3);
    for (uint64_t page = e.first; page < e.first + e.n; page++)
        free = free && !model_at(page);
    if (!free)
        return; /* the driver would not give it out */
    if (shares)
        regions_share(base, n);
    else
        ck_assert(regions_found(&range, regions_moment()));
    ck_assert(!range.shared);
    model_add((struct model_region){ e.first, e.n, NULL, shares, 3, false });
}

static void end(uint64_t *random)
{
    struct extent e = random_extent(random, 6);
    bool ends = next_random(random, 4);
    uint64_t base = BASE + e.first * PAGE, n = next_random(random, 2) ? e.n * PAGE : 1;
    if (n == 1)
        e.n = 1;
    struct region *ending = regions_end(base, n);
    struct memory_range range;
    ck_assert(!regions_find(base, 1, 0, &range)); /* from before the driver's call on */
    regions_ended(base, n, ending, ends);
    if (ends)
        model_end(e.first, e.n);
    for (uint64_t page = e.first; page < e.first + e.n; page++) {
        struct model_region *r = model_at(page);
        if (r && !r->memory && !r->shared)
            r->n = 0; /* the driver is asked anew */
    }
}

static void permit(uint64_t *random)
{
    struct extent e = random_extent(random, 6);
    uint64_t bit = 1ull << next_random(random, N_DEVICES);
    bool grants = next_random(random, 4);
    regions_permit(BASE + e.first * PAGE, e.n * PAGE, grants ? bit : 0, grants ? 0 : bit);
    for (uint64_t page = e.first; page < e.first + e.n; page++) {
        struct model_region *r = model_at(page);
        if (r)
            r->readable = grants ? r->readable | bit : r->readable & ~bit;
    }
}

static void release(unsigned handle, bool released)
{
    struct memory *releasing = regions_release(handle + 1);
    ck_assert_int_eq(releasing != NULL, model.given[handle] > 0);
    regions_released(handle + 1, releasing, released);
    if (released && model.given[handle])
        model.given[handle]--;
}

static void retain(uint64_t *random, unsigned handle)
{
    uint64_t page = next_random(random, N_PAGES);
    const struct model_region *r = model_at(page);
    regions_retained(BASE + page * PAGE, handle + 1);
    if (!r || !r->memory)
        return;
    if (model.given[handle] && model.of[handle] == r->memory) {
        model.given[handle]++;
        return;
    }
    model.of[handle] = r->memory;
    model.given[handle] = 1;
}

static void change(uint64_t *random)
{
    unsigned handle = (unsigned)next_random(random, N_HANDLES);
    switch (next_random(random, 5)) {
    case 0:
        regions_share_handle(handle + 1);
        model_memory(handle)->shared = true;
        break;
    case 1:
        regions_imported(handle + 1);
        if (model.given[handle])
            model.given[handle]++;
        model_memory(handle)->shared = true;
        break;
    case 2: release(handle, next_random(random, 4)); break;
    case 3: retain(random, handle); break;
    case 4:
        if (next_random(random, 8))
            break;
        regions_unsure();
        for (unsigned i = 0; i < N_PAGES; i++)
            model.at[i].stale = true;
        break;
    }
}

static void look(uint64_t *random)
{
    struct extent e = random_extent(random, N_PAGES);
    int device = (int)next_random(random, N_DEVICES);
    struct memory_range found, wanted = { 0 };
    bool known = model_find(e.first, e.n, device, &wanted);
    ck_assert_int_eq(regions_find(BASE + e.first * PAGE + 16, e.n * PAGE - 32, device, &found),
                     known);
    if (!known)
        return;
    ck_assert_uint_eq(found.base, wanted.base);
    ck_assert_uint_eq(found.size, wanted.size);
    ck_assert_int_eq(found.shared, wanted.shared);
    ck_assert_int_eq(found.barred, wanted.barred);
    /* what was followed to its end may not have been known to be that */
    ck_assert(found.closed == wanted.closed || (found.closed && found.size == wanted.size));
}

START_TEST(what_a_list_would_say_is_said)
{
    for (uint64_t seed = 1; seed <= 30; seed++) {
        uint64_t random = seed;
        forget_all();
        memset(&model, 0, sizeof model);
        for (int i = 0; i < N_STEPS; i++) {
            switch (next_random(&random, 8)) {
            case 0:
            case 1:
            case 2: begin(&random); break;
            case 3: end(&random); break;
            case 4: permit(&random); break;
            case 5: change(&random); break;
            }
            look(&random);
        }
    }
    forget_all();
}
END_TEST

/* ------------------------------------------------------------------------- single facts */

static void setup(void)
{
    forget_all();
    session.armed = 1;
}

static void find_allocation(uint64_t base, uint64_t n_bytes)
{
    struct memory_range range = { .base = base, .size = n_bytes };
    ck_assert(regions_found(&range, regions_moment()));
}

START_TEST(a_free_makes_stale_what_it_overlaps)
{
    struct memory_range range;
    find_allocation(BASE, PAGE);
    find_allocation(BASE + 2 * PAGE, PAGE);
    uint64_t epoch = session.memory_epoch;
    ends(BASE + PAGE, 1);
    ck_assert_uint_eq(session.memory_epoch, epoch);
    ends(BASE, 1);
    ck_assert_uint_gt(session.memory_epoch, epoch);
    ck_assert(!regions_find(BASE, 1, 0, &range));
    ck_assert(regions_find(BASE + 2 * PAGE, 1, 0, &range));
}
END_TEST

START_TEST(an_answer_from_before_a_free_is_not_kept)
{
    struct memory_range range = { .base = BASE, .size = PAGE };
    uint64_t moment = regions_moment();
    ends(BASE, 1);
    ck_assert(!regions_found(&range, moment));
    ck_assert(!regions_find(BASE, 1, 0, &range));
    /* and one that came while the driver freed it */
    struct region *ending = regions_end(BASE, 1);
    find_allocation(BASE, PAGE);
    regions_ended(BASE, 1, ending, true);
    ck_assert(!regions_find(BASE, 1, 0, &range));
}
END_TEST

START_TEST(a_handle_that_comes_back_is_another)
{
    struct memory_range range;
    regions_share_handle(7);
    regions_mapped(BASE, PAGE, 7);
    regions_permit(BASE, PAGE, 1, 0);
    regions_released(7, regions_release(7), true);
    regions_mapped(BASE + PAGE, PAGE, 7);
    regions_permit(BASE + PAGE, PAGE, 1, 0);
    ck_assert(regions_find(BASE + PAGE, PAGE, 0, &range) && !range.shared);
    ck_assert(regions_find(BASE, PAGE, 0, &range) && range.shared);
    regions_share_handle(7);
    ck_assert(regions_find(BASE + PAGE, PAGE, 0, &range) && range.shared);
}
END_TEST

START_TEST(what_is_shared_is_no_other_allocation)
{
    regions_share(BASE, PAGE);
    regions_unsure();
    struct memory_range same = { .base = BASE, .size = PAGE }, other = { .base = BASE, .size = 2 };
    ck_assert(!regions_find(BASE, 1, 0, &same));
    same = (struct memory_range){ .base = BASE, .size = PAGE };
    ck_assert(regions_found(&same, regions_moment()) && same.shared);
    regions_unsure();
    ck_assert(regions_found(&other, regions_moment()) && !other.shared);
}
END_TEST

/* ------------------------------------------------------------------------- threads */

enum { N_THREADS = 4, N_ROUNDS = 3000 };

/* Each maps and unmaps pieces of its own, and looks at all. */
static void *thread(void *arg)
{
    uint64_t self = (uint64_t)(uintptr_t)arg, random = self;
    for (int i = 0; i < N_ROUNDS; i++) {
        uint64_t base = BASE + (2 * self + next_random(&random, 2)) * PAGE;
        struct memory_range range;
        regions_mapped(base, PAGE, self + 1);
        regions_permit(base, PAGE, 1, 0);
        if (!regions_find(base, PAGE, 0, &range) || range.base != base || range.size < PAGE)
            return arg;
        regions_find(BASE + next_random(&random, 2 * N_THREADS + 2) * PAGE, 3 * PAGE, 0, &range);
        if (!next_random(&random, 16))
            regions_released(self + 1, regions_release(self + 1), next_random(&random, 2));
        ends(base, PAGE);
        if (regions_find(base, 1, 0, &range))
            return arg;
    }
    return NULL;
}

START_TEST(threads_do_not_see_each_others_halves)
{
    pthread_t threads[N_THREADS];
    for (uintptr_t i = 0; i < N_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, thread, (void *)(i + 1)), 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        ck_assert_ptr_null(failed);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("regions");
    TCase *tc = tcase_create("regions");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, forget_all);
    tcase_add_test(tc, what_a_list_would_say_is_said);
    tcase_add_test(tc, a_free_makes_stale_what_it_overlaps);
    tcase_add_test(tc, an_answer_from_before_a_free_is_not_kept);
    tcase_add_test(tc, a_handle_that_comes_back_is_another);
    tcase_add_test(tc, what_is_shared_is_no_other_allocation);
    tcase_add_test(tc, threads_do_not_see_each_others_halves);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
