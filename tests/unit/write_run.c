/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small program that captures, until it is killed, and what its run must hold then:
 *
 *     write_run OUT DURABILITY SEGMENT_BYTES SEGMENT_MS KEEP_BYTES KEEP_MS [FORWARDS]
 *         Appends forward after forward, and says the number of each on stdout once it is committed; as many as said, or
 *         without an end.
 *     write_run --check FOLDER
 *         Says, as numbers on one line: first forward there, one after the last, forwards released, pieces of damage,
 *         bytes of a torn tail, whether all sums hold, whether all values and steps are right.
 */
#include "core/cleanup.h"
#include "tests/unit/storage_kit.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIDTH 64
#define FIRST (KIT_SPECIAL + 1u)

static uint64_t number(const char *text)
{
    return strtoull(text, NULL, 10);
}

static int write_run(char **args, uint64_t n_forwards)
{
    const struct run_options options = {
        .durability = (uint32_t)number(args[1]),
        .segment_bytes = number(args[2]),
        .segment_ns = number(args[3]) * 1000000u,
        .keep_bytes = number(args[4]),
        .keep_ns = number(args[5]) * 1000000u,
        .sync_ns = 20000000u,
    };
    struct run *run = kit_open_with(args[0], &options);
    if (kit_step(run, FIRST))
        return 1;
    for (uint64_t n = FIRST; n < FIRST + n_forwards; n++) {
        char line[32];
        /* a step is said before the records of the one before it come, as an engine that runs ahead does */
        if (kit_step(run, n + 1) || kit_records(run, n, WIDTH))
            return 1;
        int length = snprintf(line, sizeof line, "%" PRIu64 "\n", n);
        if (write(STDOUT_FILENO, line, (size_t)length) != length)
            return 1;
    }
    return run_close(run) ? 1 : 0;
}

/* The forwards of a site are there without a gap. Return: one after the last; *@first. */
static uint64_t range_of(const struct reader *reader, uint32_t site, uint64_t *first)
{
    uint64_t next = 0;
    *first = 0;
    for (size_t i = 0; i < reader_n_records(reader); i++) {
        const struct reader_record *rec = reader_record(reader, i);
        if (rec->at.site != site)
            continue;
        if (next && rec->at.forward != next)
            return 0;
        *first = next ? *first : rec->at.forward;
        next = rec->at.forward + 1;
    }
    return next;
}

static int check(const char *folder)
{
    _cleanup_(reader_closep) struct reader *reader = kit_read(folder, true);
    const struct reader_finding *damage = NULL;
    struct reader_account account = { 0 };
    uint64_t first, end = range_of(reader, 0, &first), first_logits;
    uint32_t logits = (uint32_t)reader_n_sites(reader) - 1;
    bool sums = true, right = kit_holds(reader, WIDTH);
    right &= range_of(reader, logits, &first_logits) == end && first_logits == first;
    for (uint32_t i = 0; i <= logits; i++)
        sums &= reader_account(reader, i, &account) && account.holds;
    size_t n_damage = kit_damage(reader, &damage);
    if (n_damage)
        fprintf(stderr, "%s: %s\n", damage->file, damage->text);
    reader_account(reader, 0, &account);
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %zu %" PRIu64 " %d %d\n", first, end,
           account.released.records, n_damage, reader_run(reader)->n_torn, sums, right);
    return 0;
}

static struct {
    int n;
    char **words;
    int status;
} call;

START_TEST(program)
{
    call.status = call.n == 1 ? check(call.words[0])
                              : write_run(call.words,
                                          call.n == 7 ? number(call.words[6]) : UINT64_MAX - FIRST);
}
END_TEST

/* The kit's assertions want a test around them. */
static int as_test(int n, char **words)
{
    Suite *s = suite_create("write_run");
    TCase *tc = tcase_create("program");
    call.n = n, call.words = words;
    tcase_add_test(tc, program);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_set_fork_status(sr, CK_NOFORK);
    srunner_run_all(sr, CK_SILENT);
    TestResult **results = srunner_results(sr);
    if (srunner_ntests_failed(sr))
        fprintf(stderr, "%s\n", tr_msg(results[0]));
    int status = srunner_ntests_failed(sr) ? 1 : call.status;
    free(results);
    srunner_free(sr);
    return status;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--check"))
        return as_test(1, argv + 2);
    if (argc == 7 || argc == 8)
        return as_test(argc - 1, argv + 1);
    fprintf(stderr, "write_run: see its source\n");
    return 2;
}
