/* SPDX-License-Identifier: Apache-2.0 */
/* What a turn costs the collector's thread: bench_judge. CPU time of made turns (tests/unit/made_turns.h) in cupti/judge, without those that make them. */
#include "tests/bench/bench.h"
#include "tests/unit/made_turns.h"

#include <stdio.h>
#include <stdlib.h>

enum { TURNS = 30000, SETTLED = 4096 };

int main(void)
{
    static struct judge_answer answers[JUDGE_FIRST];
    struct made m = { .seed = 9, .n = TURNS, .noise = 0.02 };
    struct judge *j = judge_new();
    uint64_t fit_ns = 0, other_ns = 0, n_fit = 0, n_other = 0;
    for (int i = 0; j && i < TURNS; i++) {
        struct judge_turn t;
        made_turn(&m, &t);
        uint64_t fits = judge_counts(j)->fits, start = bench_thread_ns();
        judge_take(j, &t, answers);
        uint64_t ns = bench_thread_ns() - start;
        if (i < SETTLED)
            continue;
        *(judge_counts(j)->fits != fits ? &fit_ns : &other_ns) += ns;
        *(judge_counts(j)->fits != fits ? &n_fit : &n_other) += 1;
    }
    judge_free(j);
    printf("a turn %.0f ns, one with a fit of both times %.2f ms, on average %.0f ns\n",
           (double)other_ns / (double)n_other, (double)fit_ns / (double)n_fit / 1e6,
           (double)(fit_ns + other_ns) / (double)(n_fit + n_other));
    return EXIT_SUCCESS;
}
