/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti/judge/budget.h"

#include <string.h>

static bool is_beside(uint64_t step, uint64_t slow)
{
    return step + 1 >= slow && step <= slow + 1;
}

bool budget_keeps(const struct budget *b, uint64_t step)
{
    if (b->settled && is_beside(step, b->settled - 1))
        return true;
    for (size_t i = 0; i < b->n; i++)
        if (!b->slow[i].is_out && is_beside(step, b->slow[i].step))
            return true;
    return false;
}

/* Steps that are kept for this one alone. It is none of those that are kept. */
static uint64_t cost_of(const struct budget *b, uint64_t step)
{
    uint64_t n = 0;
    for (uint64_t at = step ? step - 1 : 0; at <= step + 1; at++)
        n += !budget_keeps(b, at);
    return n;
}

static void leave(struct budget *b, struct budget_step *s)
{
    s->is_out = true;
    b->used -= cost_of(b, s->step);
}

static void return_to(struct budget *b, struct budget_step *s)
{
    b->used += cost_of(b, s->step);
    s->is_out = false;
}

/* Return: the one with the least excess of those that are in, or with the greatest of those that are out; NULL: there is none. */
static struct budget_step *choose(struct budget *b, bool is_out)
{
    struct budget_step *found = NULL;
    for (size_t i = 0; i < b->n; i++) {
        struct budget_step *s = &b->slow[i];
        if (s->is_out == is_out &&
            (!found || (is_out ? s->excess > found->excess : s->excess < found->excess)))
            found = s;
    }
    return found;
}

/* Slow steps of less excess leave until there is room. Return: whether there is; if not, all are in again. */
static bool make_room(struct budget *b, uint64_t step, double excess, uint64_t allowed)
{
    while (b->used + cost_of(b, step) > allowed) {
        struct budget_step *least = choose(b, false);
        if (!least || least->excess >= excess) {
            while ((least = choose(b, true)))
                return_to(b, least);
            return false;
        }
        leave(b, least);
    }
    return true;
}

/* Those for which there is room after all come back, the greatest first; the others are kept no more. */
static void settle(struct budget *b, uint64_t allowed, void (*give_way)(void *arg, uint64_t step),
                   void *arg)
{
    struct budget_step *s;
    size_t n = 0;
    while ((s = choose(b, true)) && b->used + cost_of(b, s->step) <= allowed)
        return_to(b, s);
    for (size_t i = 0; i < b->n; i++) {
        if (!b->slow[i].is_out) {
            b->slow[n++] = b->slow[i];
            continue;
        }
        b->kept--;
        b->refused++;
        if (give_way)
            give_way(arg, b->slow[i].step);
    }
    b->n = n;
}

bool budget_offer(struct budget *b, uint64_t step, double excess, uint64_t n_steps,
                  void (*give_way)(void *arg, uint64_t step), void *arg)
{
    uint64_t allowed =
        BUDGET_FIRST + (n_steps > BUDGET_STEPS ? (n_steps - BUDGET_STEPS) / BUDGET_PART : 0);
    bool rises = step >= b->next && step < UINT64_MAX - 1;
    excess = excess > 0 ? excess : 0; /* no number, too */
    b->offered++;
    b->next = rises ? step + 1 : b->next;
    if (!rises || !make_room(b, step, excess, allowed)) {
        b->refused++;
        return false;
    }
    b->used += cost_of(b, step);
    b->kept++;
    b->slow[b->n++] = (struct budget_step){ step, excess, false };
    settle(b, allowed, give_way, arg);
    if (b->n == BUDGET_MOST) {
        b->settled = b->slow[0].step + 1;
        memmove(b->slow, b->slow + 1, --b->n * sizeof *b->slow);
    }
    return true;
}
