/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/edit/accounts.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "core/clock.h"
#include "storage/text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define N_HEADS 1024u
#define N_KEPT  (2 * EDITS_MAX) /* accounts that requests do not get: of rests and totals */
#define WAIT_NS 10000000000u    /* after which rows of a request that has ended were not run */

/* What is known of an account beside its entry in the file. */
struct about {
    uint32_t
        next; /* of those with the same hash, and of those that are free: one more than its number; 0: the last */
    uint32_t beside;   /* likewise, of those whose requests have the same hash */
    uint32_t after;    /* likewise, of those to look at */
    bool listed;       /* it is one of these, or being looked at */
    uint64_t request;  /* hash of the id */
    uint64_t ended_ns; /* monotonic; 0: the request goes on */
    bool aborts;       /* its edit says `on_miss: abort` */
    bool saves;        /* its edit saves rows in the bank */
    char *source;      /* "NAME\0REQUEST": whose rows of the bank it takes; NULL: nobody's */
    bool noted;        /* the run has a note of that */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static struct book {
    struct dmi_edit_accounts *file;
    accounts_note_fn *note;
    struct about about[DMI_EDIT_ACCOUNTS];
    uint32_t heads[N_HEADS]; /* by hash, as about.next */
    uint32_t n,
        free; /* accounts that were in use at some time; the first that is free, as about.next */
    uint32_t n_open;
    uint32_t of_request[N_HEADS]; /* by hash of the id, as about.beside */
    uint32_t
        to_settle; /* the first whose request has ended, or whose source is to be noted, as about.after */
} book;

/* ------------------------------------------------------------------------- finding one */

struct wanted {
    uint64_t uid;
    enum dmi_edit_account_state state;
    const char *edit, *request;
    size_t n_request;
};

static uint64_t hash_of(const struct wanted *w)
{
    return XXH3_64bits_withSeed(w->request ? w->request : "", w->n_request, w->uid * 4 + w->state);
}

static bool is_it(const struct dmi_edit_account *a, const struct wanted *w)
{
    return a->uid == w->uid && a->state == w->state && a->n_request == w->n_request &&
           !memcmp(a->request, w->request ? w->request : "", w->n_request);
}

/* Under the lock. Return: ACCOUNTS_NONE: all are in use. */
static uint32_t take_free(bool kept)
{
    if (!kept && book.n_open >= DMI_EDIT_ACCOUNTS - N_KEPT)
        return ACCOUNTS_NONE;
    if (book.free) {
        uint32_t i = book.free - 1;
        book.free = book.about[i].next;
        return i;
    }
    return book.n < DMI_EDIT_ACCOUNTS ? book.n++ : ACCOUNTS_NONE;
}

static uint32_t add(const struct wanted *w, uint32_t *head)
{
    uint32_t i = take_free(w->state != DMI_EDIT_ACCOUNT_OPEN);
    if (i == ACCOUNTS_NONE)
        return i;
    struct dmi_edit_account *a = &book.file->accounts[i];
    memset(a, 0, sizeof *a);
    a->uid = w->uid;
    a->n_request = (uint32_t)w->n_request;
    strncpy(a->edit, w->edit, sizeof a->edit - 1);
    if (w->n_request)
        memcpy(a->request, w->request, w->n_request);
    book.about[i] =
        (struct about){ .next = *head,
                        .request = XXH3_64bits(w->request ? w->request : "", w->n_request) };
    uint32_t *beside = &book.of_request[book.about[i].request % N_HEADS];
    book.about[i].beside = *beside;
    *beside = i + 1;
    book.n_open += w->state == DMI_EDIT_ACCOUNT_OPEN;
    *head = i + 1;
    atomic_store_release(&a->state, (uint32_t)w->state); /* to whoever reads the file */
    return i;
}

/* Under the lock. Return: ACCOUNTS_NONE: there is none left. */
static uint32_t find(const struct wanted *w)
{
    uint32_t *head = &book.heads[hash_of(w) % N_HEADS];
    for (uint32_t i = *head; i; i = book.about[i - 1].next)
        if (is_it(&book.file->accounts[i - 1], w)) {
            book.about[i - 1].ended_ns = 0; /* the id has come again before all was known of it */
            return i - 1;
        }
    return add(w, head);
}

uint32_t accounts_find(const struct edit_use *use, const char *request, int *miss)
{
    size_t n = request ? strlen(request) : 0;
    struct wanted w = { .uid = use->uid,
                        .state = DMI_EDIT_ACCOUNT_OPEN,
                        .edit = use->edit->name,
                        .request = request,
                        .n_request = n > 255 ? 255 : n };
    pthread_mutex_lock(&lock);
    uint32_t found = book.file ? find(&w) : ACCOUNTS_NONE;
    if (found != ACCOUNTS_NONE)
        book.about[found].aborts = use->edit->aborts;
    if (found != ACCOUNTS_NONE)
        book.about[found].saves = edit_saves(use->edit);
    if (found == ACCOUNTS_NONE) {
        *miss = DMI_EDIT_MISS_NO_ROOM;
        w.state = DMI_EDIT_ACCOUNT_REST;
        w.request = NULL;
        w.n_request = 0;
        found = book.file ? find(&w) : ACCOUNTS_NONE;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void accounts_due(uint32_t account, int64_t n)
{
    if (account != ACCOUNTS_NONE)
        atomic_add_relaxed(&book.file->accounts[account].due, (uint64_t)n);
}

void accounts_missed(uint32_t account, enum dmi_edit_miss why, int64_t n)
{
    if (account != ACCOUNTS_NONE)
        atomic_add_relaxed(&book.file->accounts[account].missed[why], (uint64_t)n);
}

/* What came since it was looked at last. */
static uint64_t since(const uint64_t *count, uint64_t *seen)
{
    uint64_t now = atomic_load_relaxed(count), more = now - *seen;
    *seen = now;
    return more;
}

void accounts_collect(const uint64_t *counts, uint64_t *seen)
{
    for (uint32_t i = 0; book.file && i < atomic_load_relaxed(&book.n); i++) {
        struct dmi_edit_account *a = &book.file->accounts[i];
        uint32_t wild = DMI_EDIT_ACCOUNTS + i, lacking = 2 * DMI_EDIT_ACCOUNTS + i;
        int why = book.about[i].saves ? DMI_EDIT_MISS_NO_ROOM : DMI_EDIT_MISS_NO_SOURCE;
        if (counts[lacking] != seen[lacking])
            atomic_add_relaxed(&a->missed[why], since(&counts[lacking], &seen[lacking]));
        if (counts[i] == seen[i])
            continue;
        atomic_add_relaxed(&a->not_finite, since(&counts[wild], &seen[wild]));
        atomic_add_relaxed(&a->written, since(&counts[i], &seen[i]));
    }
}

/* ------------------------------------------------------------------------- requests that end */

static uint64_t missed_of(const struct dmi_edit_account *a)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < DMI_EDIT_MISS_COUNT; i++)
        n += atomic_load_relaxed(&a->missed[i]);
    return n;
}

/* The run names a request of which a row was missed. */
static void note_missed(const struct dmi_edit_account *a)
{
    _cleanup_(text_deinit) struct text what = { 0 }, more = { 0 };
    uint64_t missed = missed_of(a);
    text_printf(&what, "edit %s: of %" PRIu64 " rows of a request %" PRIu64 " %s missed (", a->edit,
                a->due, missed, missed == 1 ? "was" : "were");
    text_printf(&more, ", \"edit\": \"%s\", \"request\": ", a->edit);
    text_json_n(&more, a->request, a->n_request);
    text_printf(&more, ", \"due\": %" PRIu64 ", \"written\": %" PRIu64 ", \"missed\": {", a->due,
                a->written);
    for (uint32_t i = 0, n = 0; i < DMI_EDIT_MISS_COUNT; i++) {
        if (!a->missed[i])
            continue;
        text_printf(&what, "%s%s", n ? ", " : "", dmi_edit_miss_name(i));
        text_printf(&more, "%s\"%s\": %" PRIu64, n++ ? ", " : "", dmi_edit_miss_name(i),
                    a->missed[i]);
    }
    text_printf(&what, ")");
    text_printf(&more, "}");
    text_add(&what, "", 1);
    text_add(&more, "", 1);
    if (!what.failed && !more.failed)
        book.note(what.data, more.data);
}

/* accounts_settle() looks at it. Under the lock. */
static void look_at(uint32_t i)
{
    if (book.about[i].listed)
        return;
    book.about[i].listed = true;
    book.about[i].after = book.to_settle;
    book.to_settle = i + 1;
}

void accounts_source(uint32_t account, const char *bank, const char *donor)
{
    size_t n = strlen(bank) + 1, n_donor = strlen(donor) + 1;
    if (account == ACCOUNTS_NONE)
        return;
    pthread_mutex_lock(&lock);
    struct about *about = &book.about[account];
    bool same = about->source && !strcmp(about->source, bank) && !strcmp(about->source + n, donor);
    char *source = same ? NULL : malloc(n + n_donor);
    if (source) {
        memcpy(source, bank, n);
        memcpy(source + n, donor, n_donor);
        free(about->source);
        about->source = source;
        about->noted = false;
        look_at(account);
    }
    pthread_mutex_unlock(&lock);
}

/* Whose rows a request gets, and by which edit. */
static void note_source(const struct dmi_edit_account *a, const char *source)
{
    _cleanup_(text_deinit) struct text what = { 0 }, more = { 0 };
    const char *donor = source + strlen(source) + 1;
    text_printf(&what, "edit %s: a request takes rows that another one saved as %s", a->edit,
                source);
    text_printf(&more, ", \"edit\": \"%s\", \"request\": ", a->edit);
    text_json_n(&more, a->request, a->n_request);
    text_printf(&more, ", \"bank\": \"%s\", \"donor\": ", source);
    text_json(&more, donor);
    text_add(&what, "", 1);
    text_add(&more, "", 1);
    if (!what.failed && !more.failed)
        book.note(what.data, more.data);
}

/* The account is about to be noted, or to end: what is to be said of it, taken over. Under the lock. Return: NULL: nothing. */
static char *take_source(uint32_t i)
{
    struct about *about = &book.about[i];
    if (!about->source || about->noted)
        return NULL;
    size_t n = strlen(about->source) + 1;
    n += strlen(about->source + n) + 1;
    char *source = malloc(n);
    if (source)
        memcpy(source, about->source, n);
    about->noted = true;
    return source;
}

static void unlink_account(uint32_t i)
{
    const struct dmi_edit_account *a = &book.file->accounts[i];
    struct wanted w = { .uid = a->uid,
                        .state = (enum dmi_edit_account_state)a->state,
                        .request = a->request,
                        .n_request = a->n_request };
    uint32_t *at = &book.heads[hash_of(&w) % N_HEADS];
    uint32_t *beside = &book.of_request[book.about[i].request % N_HEADS];
    while (*at != i + 1)
        at = &book.about[*at - 1].next;
    *at = book.about[i].next;
    while (*beside != i + 1)
        beside = &book.about[*beside - 1].beside;
    *beside = book.about[i].beside;
}

/* Its numbers go into the edit's total, and it is free. Under the lock. */
static void fold(uint32_t i)
{
    struct dmi_edit_account *a = &book.file->accounts[i];
    struct wanted w = { .uid = a->uid, .state = DMI_EDIT_ACCOUNT_TOTAL, .edit = a->edit };
    uint32_t total = find(&w);
    if (total == ACCOUNTS_NONE)
        return; /* it stays as it is */
    struct dmi_edit_account *t = &book.file->accounts[total];
    unlink_account(i);
    atomic_store_release(&a->state, (uint32_t)DMI_EDIT_ACCOUNT_FREE);
    t->due += a->due;
    t->written += a->written;
    t->not_finite += a->not_finite;
    for (uint32_t k = 0; k < DMI_EDIT_MISS_COUNT; k++)
        t->missed[k] += a->missed[k];
    book.file->ended++;
    book.file->marked += missed_of(a) != 0;
    book.n_open--;
    free(book.about[i].source);
    book.about[i] = (struct about){ .next = book.free };
    book.free = i + 1;
}

/* The first account of a request from number @i on, of those beside one another, as about.beside; 0: there is none. Under the lock. */
static uint32_t of_request(uint32_t i, const char *request, size_t n, uint64_t hash)
{
    while (i && (book.about[i - 1].request != hash || book.file->accounts[i - 1].n_request != n ||
                 memcmp(book.file->accounts[i - 1].request, request, n) ||
                 book.file->accounts[i - 1].state != DMI_EDIT_ACCOUNT_OPEN))
        i = book.about[i - 1].beside;
    return i;
}

void accounts_end(const char *request)
{
    size_t n = strlen(request);
    uint64_t hash = XXH3_64bits(request, n), now = clock_mono_ns();
    pthread_mutex_lock(&lock);
    uint32_t i = book.file ? of_request(book.of_request[hash % N_HEADS], request, n, hash) : 0;
    for (; i; i = of_request(book.about[i - 1].beside, request, n, hash)) {
        book.about[i - 1].ended_ns = now;
        look_at(i - 1);
    }
    pthread_mutex_unlock(&lock);
}

/* Is all known of an account whose request has ended? After a time what is not there does not come. */
static bool is_settled(uint32_t i)
{
    struct dmi_edit_account *a = &book.file->accounts[i];
    uint64_t now = clock_mono_ns(); /* under the lock: the request has ended before */
    uint64_t due = atomic_load_relaxed(&a->due);
    uint64_t known = atomic_load_relaxed(&a->written) + missed_of(a);
    if (known < due && now - book.about[i].ended_ns > WAIT_NS) {
        a->missed[DMI_EDIT_MISS_NOT_RUN] += due - known;
        known = due;
    }
    return known >= due;
}

/* One of those to look at, taken from the list. Return: what comes after it. */
static uint32_t settle_one(uint32_t i)
{
    struct dmi_edit_account done = { 0 }, about = { 0 };
    pthread_mutex_lock(&lock);
    uint32_t after = book.about[i].after;
    _cleanup_(freep) char *source = take_source(i);
    if (source)
        about = book.file->accounts[i];
    book.about[i].listed = false;
    if (book.about[i].ended_ns && is_settled(i)) {
        done = book.file->accounts[i];
        fold(i);
    }
    if (book.about[i].ended_ns) /* a row is on its way, or it has no total */
        look_at(i);
    pthread_mutex_unlock(&lock);
    if (source)
        note_source(&about, source);
    if (missed_of(&done))
        note_missed(&done);
    return after;
}

void accounts_settle(void)
{
    pthread_mutex_lock(&lock);
    uint32_t i = book.to_settle; /* nobody else has these now */
    book.to_settle = 0;
    pthread_mutex_unlock(&lock);
    while (i)
        i = settle_one(i - 1);
}

void accounts_finish(void)
{
    for (uint32_t i = 0; book.file && i < book.n; i++) {
        struct dmi_edit_account *a = &book.file->accounts[i];
        uint64_t known = a->written + missed_of(a);
        _cleanup_(freep) char *source = take_source(i);
        if (source)
            note_source(a, source);
        if (a->state != DMI_EDIT_ACCOUNT_FREE && known < a->due)
            a->missed[DMI_EDIT_MISS_NOT_RUN] += a->due - known;
        if (a->state == DMI_EDIT_ACCOUNT_OPEN && missed_of(a))
            note_missed(a);
    }
}

int64_t accounts_aborting(const char *request)
{
    size_t n = strlen(request);
    uint64_t hash = XXH3_64bits(request, n), missed = 0;
    pthread_mutex_lock(&lock);
    uint32_t i = book.file ? of_request(book.of_request[hash % N_HEADS], request, n, hash) : 0;
    for (; i; i = of_request(book.about[i - 1].beside, request, n, hash))
        if (book.about[i - 1].aborts)
            missed += missed_of(&book.file->accounts[i - 1]);
    pthread_mutex_unlock(&lock);
    return (int64_t)missed;
}

void accounts_sum(uint64_t uid, uint64_t *due, uint64_t *written,
                  uint64_t missed[DMI_EDIT_MISS_COUNT])
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; book.file && i < book.n; i++) {
        const struct dmi_edit_account *a = &book.file->accounts[i];
        if (a->state == DMI_EDIT_ACCOUNT_FREE || a->uid != uid)
            continue;
        *due += atomic_load_relaxed(&a->due);
        *written += atomic_load_relaxed(&a->written);
        for (uint32_t k = 0; k < DMI_EDIT_MISS_COUNT; k++)
            missed[k] += atomic_load_relaxed(&a->missed[k]);
    }
    pthread_mutex_unlock(&lock);
}

void accounts_in_force(uint64_t n)
{
    if (book.file)
        atomic_store_relaxed(&book.file->in_force, n);
}

/* ------------------------------------------------------------------------- start and end */

void accounts_start(struct dmi_edit_accounts *file, accounts_note_fn *note)
{
    book.note = note;
    book.file = file;
    if (!file)
        book.file = calloc(1, sizeof *file + DMI_EDIT_ACCOUNTS * sizeof file->accounts[0]);
}

void accounts_reset(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (uint32_t i = 0; i < book.n; i++)
        free(book.about[i].source);
    memset(&book, 0, sizeof book);
}
