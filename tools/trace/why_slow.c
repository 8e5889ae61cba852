/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trace/why_slow.h"

#include "core/grow.h"
#include "core/sorted.h"
#include "tools/trace/batch.h"

#include <stdlib.h>

/* What the engine said of a step, as the judge wants it. Drafts are among the tokens of decode. */
static struct load load_of(const struct dmi_step_times *at)
{
    return (struct load){
        .rows = at->rows, .context = at->context, .prefill = at->prefill, .decode = at->decode
    };
}

static void take(struct why_judged *out, const struct judge_answer *answers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct judge_view *v = &answers[i].of[JUDGE_TURN];
        out->of[answers[i].number] = (struct why_verdict){ .state = v->state,
                                                           .slow = v->is_slow,
                                                           .expected_ns = v->expected_ns,
                                                           .sees = judge_sees(v) };
    }
}

static bool judge_all(const struct why_turns *turns, struct why_judged *out)
{
    struct judge *judge = judge_new();
    struct judge_answer *answers = calloc(JUDGE_FIRST, sizeof *answers);
    bool done = judge && answers && out->of;
    for (size_t i = 0; done && i < turns->n; i++) {
        const struct why_turn *t = &turns->all[i];
        out->of[i].state = JUDGE_UNKNOWN;
        if (t->none != TURN_IS)
            continue;
        struct judge_turn turn = { .number = i,
                                   .load = load_of(&t->at),
                                   .ns = { (int64_t)why_turn_ns(t), -1 } };
        take(out, answers, judge_take(judge, &turn, answers));
    }
    if (done)
        out->n_early = judge_counts(judge)->waiting;
    free(answers);
    judge_free(judge);
    return done;
}

/* Does the turn follow those of @slow, is it of their kind, and as slow as they are? */
static bool goes_on(const struct why_turns *turns, const struct why_slow *slow, size_t i,
                    double excess_ns)
{
    double each_ns = slow->excess_ns / (double)slow->n;
    return slow->first + slow->n == i && excess_ns > each_ns / 2 && excess_ns < 2 * each_ns &&
           batch_kind_of(&turns->all[i].at) == batch_kind_of(&turns->all[slow->first].at);
}

static int by_excess(const void *pa, const void *pb)
{
    const struct why_slow *a = pa, *b = pb;
    ORDER(b, a, excess_ns);
    ORDER(a, b, first);
    return 0;
}

bool why_judge(const struct why_turns *turns, struct why_judged *out)
{
    *out = (struct why_judged){ .of = calloc(turns->n + 1, sizeof *out->of) };
    if (!judge_all(turns, out))
        return false;
    for (size_t i = 0; i < turns->n; i++) {
        const struct why_verdict *v = &out->of[i];
        out->n_judged += v->state == JUDGE_JUDGED;
        out->n_rare += v->state == JUDGE_RARE;
        if (!v->slow)
            continue;
        double excess_ns = (double)why_turn_ns(&turns->all[i]) - v->expected_ns;
        out->n_slow_turns++;
        if (!out->n_slow || !goes_on(turns, &out->slow[out->n_slow - 1], i, excess_ns)) {
            if (GROW(out->slow, out->n_slow, out->room))
                return false;
            out->slow[out->n_slow++] = (struct why_slow){ .first = i };
        }
        struct why_slow *slow = &out->slow[out->n_slow - 1];
        slow->n++;
        slow->expected_ns += v->expected_ns;
        slow->excess_ns += excess_ns;
    }
    SORT(out->slow, out->n_slow, by_excess);
    return true;
}

void why_judged_deinit(struct why_judged *j)
{
    free(j->of);
    free(j->slow);
    *j = (struct why_judged){ 0 };
}
