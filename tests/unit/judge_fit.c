/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints a fit of cupti/judge/fit.h for test_judge_fit.py. judge_fit SEED NOISE: 2,048 made turns; first the coefficients, a plane a line, then
 * a line a turn: rows, context, prefill, decode, drafts, time, prediction.
 */
#include "cupti/judge/fit.h"
#include "tests/unit/made_turns.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define N 2048

int main(int argc, char **argv)
{
    static struct load loads[N];
    static struct fit_load small[N];
    static float times[N], work[2 * N];
    if (argc != 3)
        return EXIT_FAILURE;
    struct made m = { .seed = strtoull(argv[1], NULL, 10),
                      .way = MADE_WANDERS,
                      .noise = atof(argv[2]) };
    struct fit f = { 0 };
    for (int i = 0; i < N; i++) {
        struct judge_turn t;
        made_turn(&m, &t);
        loads[i] = t.load;
        small[i] = fit_load(&t.load);
        times[i] = (float)t.ns[JUDGE_TURN];
    }
    fit_again(&f, small, times, N, work);
    for (int p = 0; p < FIT_PLANES; p++)
        for (int i = 0; i < FIT_TERMS; i++)
            printf("%.17g%s", f.by[p][i], i + 1 < FIT_TERMS ? " " : "\n");
    for (int i = 0; i < N; i++)
        printf("%" PRIu32 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %.9g %.9g\n",
               loads[i].rows, loads[i].context, loads[i].prefill, loads[i].decode, loads[i].drafts,
               (double)times[i], fit_at(&f, &small[i]));
    return EXIT_SUCCESS;
}
