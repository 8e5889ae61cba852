/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/context/context.h"

#include "core/atomic.h"
#include "core/locked.h"
#include "preload/session/session.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static struct context contexts[CONTEXT_MAX];

static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER; /* of all states and calls */

/*
 * A call on a primary context names its device. Its handle may not be known then: after a reset there is none, until a thread
 * retains it while the call is under way.
 */
static struct {
    CUcontext handle;
    struct context_calls calls;
    uint64_t n_retains; /* begun */
    uint32_t retaining; /* under way */
} primaries[REFERENCES_DEVICES];

static uint64_t n_begun; /* contexts whose handles were given out since */

static bool exists(enum context_state state)
{
    return state != CONTEXT_FREE && state != CONTEXT_GONE && state != CONTEXT_DISMANTLED;
}

struct context *context_find(CUcontext handle)
{
    for (int i = 0; i < CONTEXT_MAX; i++)
        if (exists(context_state(&contexts[i])) && context_handle(&contexts[i]) == handle)
            return &contexts[i];
    return NULL;
}

void context_reset(void)
{
    owner = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(contexts, 0, sizeof contexts);
    memset(primaries, 0, sizeof primaries);
}

/* acquires fail() in drain.c, and context_close() */
int context_refusal(const struct context *c)
{
    if (atomic_load_acquire(&c->broken))
        return DMI_DROP_DEVICE_ERROR;
    switch (context_state(c)) {
    case CONTEXT_READY: return atomic_load_acquire(&c->closed) ? DMI_DROP_CONTEXT_GONE : DROP_NONE;
    case CONTEXT_STOPPING:
    case CONTEXT_STOPPED:
    case CONTEXT_RESUMING: /* the driver's memory may end before we know */
        return atomic_load_acquire(&c->closed) || c->desc_is_drivers ? DMI_DROP_CONTEXT_GONE
                                                                     : DROP_NONE;
    case CONTEXT_STARTING:
    case CONTEXT_COUNTING:
    case CONTEXT_FAILED: return DMI_DROP_UNSUPPORTED;
    case CONTEXT_FREE:
    case CONTEXT_STUCK:
    case CONTEXT_GONE:
    case CONTEXT_DISMANTLED: break;
    }
    return DMI_DROP_CONTEXT_GONE;
}

uint32_t context_index(const struct context *c)
{
    return (uint32_t)(c - contexts);
}

bool context_has_kernel(const struct context *c, CUfunction function)
{
    const struct context_kernels *k = &c->kernels;
    bool ours = function == k->open || function == k->reopen || function == k->close;
    for (uint32_t i = 0; i < CONTEXT_KERNELS && !ours; i++)
        ours = function == k->actions[i];
    return ours;
}

/* ------------------------------------------------------------------------- transitions */

/* Under the owner's lock. */
static void move(struct context *c, enum context_state state)
{
    atomic_store_release(&c->state, (int)state); /* to context_state() */
}

/* Under the owner's lock. Return: whether it was in @from. */
static bool move_from(struct context *c, enum context_state from, enum context_state to)
{
    bool was = c->state == (int)from;
    if (was)
        move(c, to);
    return was;
}

static bool transit(struct context *c, enum context_state from, enum context_state to)
{
    return LOCKED(&owner, move_from(c, from, to));
}

struct context_strand *context_strand_new(uint32_t n_sites)
{
    struct context_strand *s = calloc(1, sizeof *s + n_sites * sizeof s->sites[0]);
    if (s)
        s->kind = -1;
    return s;
}

/* Under the owner's lock. Return: false without memory. */
static bool begin(struct context *c, CUcontext handle)
{
    uint32_t n = session.spec->n_sites;
    struct context_site *sites = calloc(n + 1, sizeof *sites);
    struct context_strand *strand = context_strand_new(n);
    if (!sites || !strand) {
        free(sites);
        free(strand);
        return false;
    }
    memset(&c->device, 0, sizeof *c - offsetof(struct context, device));
    c->forward = c->strands = strand;
    c->sites = sites;
    atomic_store_relaxed(&c->handle, handle);
    move(c, CONTEXT_COUNTING);
    return true;
}

/* Under the owner's lock. */
static struct context *claim(CUcontext handle)
{
    struct context *c = context_find(handle);
    for (int i = 0; !c && i < CONTEXT_MAX; i++)
        if (contexts[i].state == CONTEXT_FREE) {
            if (!begin(&contexts[i], handle))
                break;
            c = &contexts[i];
        }
    return c;
}

struct context *context_claim(CUcontext handle)
{
    struct context *c = context_find(handle);
    if (c)
        return c;
    UNDER(&owner, c = claim(handle));
    return c;
}

/* Under the owner's lock. */
static bool are_ending(const struct context_calls *calls)
{
    return calls->enders || calls->awaited;
}

/*
 * Is a call under way that may end it? Calls on a primary context are counted by its device. The context's handle leads to the
 * device until another context has that handle, which may be so before the call returns. So the context notes where they are
 * counted. Under the owner's lock.
 */
static bool may_end(const struct context *c)
{
    bool any = are_ending(&c->calls) || (c->primary_calls && are_ending(c->primary_calls));
    for (int d = 0; d < REFERENCES_DEVICES && !any; d++)
        any = primaries[d].handle == c->handle && are_ending(&primaries[d].calls);
    return any;
}

bool context_builds(struct context *c)
{
    pthread_mutex_lock(&owner);
    bool granted = !may_end(c) && move_from(c, CONTEXT_COUNTING, CONTEXT_STARTING);
    if (granted)
        atomic_add_acq_rel(&c->users, 1);
    pthread_mutex_unlock(&owner);
    return granted;
}

bool context_built(struct context *c, bool good)
{
    return transit(c, CONTEXT_STARTING, good ? CONTEXT_READY : CONTEXT_FAILED);
}

bool context_stops(struct context *c)
{
    return LOCKED(&owner, move_from(c, CONTEXT_READY, CONTEXT_STOPPING) ||
                              move_from(c, CONTEXT_STUCK, CONTEXT_STOPPING));
}

bool context_stopped(struct context *c, bool ended)
{
    pthread_mutex_lock(&owner);
    c->stuck = !ended;
    bool gone = !exists((enum context_state)c->state);
    move_from(c, CONTEXT_STOPPING, ended ? CONTEXT_STOPPED : CONTEXT_STUCK);
    pthread_mutex_unlock(&owner);
    return gone;
}

enum context_state context_resumes(struct context *c)
{
    enum context_state before = CONTEXT_FREE;
    pthread_mutex_lock(&owner);
    if ((c->state == CONTEXT_STOPPED || c->state == CONTEXT_STUCK) && !may_end(c) &&
        !atomic_load_relaxed(&c->closed)) {
        before = (enum context_state)c->state;
        atomic_add_acq_rel(&c->users, 1);
        move(c, CONTEXT_RESUMING);
    }
    pthread_mutex_unlock(&owner);
    return before;
}

bool context_resumed(struct context *c, enum context_state state)
{
    pthread_mutex_lock(&owner);
    c->stuck = state == CONTEXT_STUCK;
    bool lives = move_from(c, CONTEXT_RESUMING, state);
    pthread_mutex_unlock(&owner);
    return lives;
}

void context_fails(struct context *c)
{
    transit(c, CONTEXT_STOPPED, CONTEXT_FAILED);
}

enum context_state context_ends(struct context *c)
{
    pthread_mutex_lock(&owner);
    enum context_state before =
        exists((enum context_state)c->state) ? (enum context_state)c->state : CONTEXT_GONE;
    if (before != CONTEXT_GONE) {
        atomic_store_relaxed(&c->handle, (CUcontext)NULL);
        move(c, CONTEXT_GONE);
    }
    pthread_mutex_unlock(&owner);
    return before;
}

/* ------------------------------------------------------------------------- calls that may end it */

/* Under the owner's lock: @handle is that of a context which has begun, and of no primary one but that of @device. */
static void begins(CUcontext handle, CUdevice device)
{
    n_begun++;
    for (int d = 0; d < REFERENCES_DEVICES; d++)
        if (d != device && primaries[d].handle == handle)
            primaries[d].handle = NULL;
}

void context_created(CUcontext handle)
{
    UNDER(&owner, begins(handle, -1));
}

uint64_t context_retains(CUdevice device)
{
    pthread_mutex_lock(&owner);
    uint64_t before = n_begun;
    if (references_follow(device)) {
        primaries[device].n_retains++;
        primaries[device].retaining++;
    }
    pthread_mutex_unlock(&owner);
    return before;
}

bool context_retained(CUdevice device, CUcontext handle, uint64_t before)
{
    bool other = false, sure = true;
    pthread_mutex_lock(&owner);
    if (references_follow(device)) {
        primaries[device].retaining--;
        other = handle && handle != primaries[device].handle;
        sure = !other || n_begun == before;
    }
    if (other && sure) {
        primaries[device].handle = handle;
        begins(handle, device);
    }
    pthread_mutex_unlock(&owner);
    return sure;
}

bool context_retain_stamp(CUdevice device, uint64_t *stamp)
{
    pthread_mutex_lock(&owner);
    bool none = references_follow(device) && !primaries[device].retaining;
    *stamp = none ? primaries[device].n_retains : 0;
    pthread_mutex_unlock(&owner);
    return none;
}

CUcontext context_primary(CUdevice device)
{
    return LOCKED(&owner, references_follow(device) ? primaries[device].handle : NULL);
}

/* Under the owner's lock. */
static void find_calls(struct context_call *call)
{
    const struct context_reference *r = &call->reference;
    if (r->handle) {
        /* claimed where there is none: no thread may make a ring in one that ends */
        call->context = r->last ? claim(r->handle) : context_find(r->handle);
        call->calls = call->context ? &call->context->calls : NULL;
    } else if (references_follow(r->device)) {
        CUcontext handle = primaries[r->device].handle;
        call->context = handle ? context_find(handle) : NULL;
        call->calls = &primaries[r->device].calls;
    }
    if (call->context)
        atomic_add_acq_rel(&call->context->users, 1);
}

void context_call_begins(struct context_call *call, const struct context_reference *r)
{
    *call = (struct context_call){ .reference = *r };
    pthread_mutex_lock(&owner);
    find_calls(call);
    struct context_calls *calls = call->calls;
    if (calls && r->last) {
        calls->awaited += calls->others;
        calls->others = 0;
        calls->enders++;
        calls->epoch++;
    } else if (calls) {
        calls->others++;
    }
    call->epoch = calls ? calls->epoch : 0;
    if (call->context && !r->handle)
        call->context->primary_calls = calls;
    pthread_mutex_unlock(&owner);
}

/* Under the owner's lock. Is no other call under way after which it may be over? */
static bool is_last(const struct context_call *call)
{
    const struct context_calls *calls = call->calls;
    bool awaited = !call->reference.last && call->epoch != calls->epoch;
    return calls->enders == call->reference.last && calls->awaited == awaited;
}

/* Under the owner's lock. */
static void leave(const struct context_call *call)
{
    struct context_calls *calls = call->calls;
    if (call->reference.last)
        calls->enders--;
    else if (call->epoch == calls->epoch)
        calls->others--;
    else
        calls->awaited--;
}

enum context_state context_call_returns(struct context_call *call)
{
    enum context_state before = CONTEXT_FREE;
    pthread_mutex_lock(&owner);
    if (!call->context && !call->reference.handle)
        find_calls(call);
    struct context *c = call->context;
    if (c && is_last(call) && (c->state == CONTEXT_STOPPED || c->state == CONTEXT_STUCK)) {
        before = (enum context_state)c->state;
        move(c, CONTEXT_RESUMING);
    } else if (call->calls) {
        leave(call);
        call->calls = NULL;
    }
    pthread_mutex_unlock(&owner);
    return before;
}

void context_call_leaves(struct context_call *call)
{
    pthread_mutex_lock(&owner);
    if (call->calls)
        leave(call);
    pthread_mutex_unlock(&owner);
}

/* ------------------------------------------------------------------------- users */

/*
 * Either this comes before the like in context_dismantle(), which sees one user more, or after it, and then the state is
 * seen that was stored before.
 */
bool context_use(struct context *c)
{
    atomic_add_acq_rel(&c->users, 1);
    if (exists(context_state(c)))
        return true;
    atomic_sub_acq_rel(&c->users, 1); /* of one that is gone: the next end of a context frees it */
    return false;
}

struct context *context_dismantle(void)
{
    struct context *found = NULL;
    pthread_mutex_lock(&owner);
    for (int i = 0; i < CONTEXT_MAX && !found; i++) {
        struct context *c = &contexts[i];
        if (c->state == CONTEXT_GONE && !c->stuck && !atomic_add_acq_rel(&c->users, 0))
            found = c;
    }
    if (found)
        move(found, CONTEXT_DISMANTLED);
    pthread_mutex_unlock(&owner);
    return found;
}

bool context_threads_ended(void)
{
    bool ended = true;
    pthread_mutex_lock(&owner);
    for (int i = 0; i < CONTEXT_MAX; i++)
        ended = ended && !contexts[i].stuck;
    pthread_mutex_unlock(&owner);
    return ended;
}

void context_freed(struct context *c)
{
    transit(c, CONTEXT_DISMANTLED, CONTEXT_FREE);
}

void context_each(void (*fn)(struct context *context, void *arg), void *arg)
{
    for (int i = 0; i < CONTEXT_MAX; i++) {
        struct context *c = &contexts[i];
        if (!exists(context_state(c)) || !context_use(c))
            continue;
        if (context_state(c) != CONTEXT_STARTING)
            fn(c, arg);
        atomic_sub_acq_rel(&c->users, 1);
    }
}
