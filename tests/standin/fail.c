/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fail.c - calls that fail because DMI_STANDIN_FAIL says so, and calls that take long because DMI_STANDIN_STALL does
 *
 * Rules, by comma: WHICH:N[:RESULT], N 0 for every one, RESULT 999 unless given; of DMI_STANDIN_STALL WHICH:N:NANOSECONDS. WHICH is an exported symbol: the calls of every caller count;
 * `own`: the Nth call that the program says is its own; or `other.SYMBOL`: the Nth one of SYMBOL that is not.
 *
 * A program says so by standin_own(): from there on, until it says NULL, every call of that entry by that thread is its
 * own. A library in front of the driver asks for the same thing, maybe more than once: if the driver refuses it, it does so each time.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct call_rule {
    enum { ANYBODYS, OWN, OTHERS } whose;
    int id;     /* an enum entry_id; of OWN any */
    long nth;   /* 0: every call */
    long value; /* the result, or how long the call takes */
    atomic_long n_calls;
};

#define MOST_RULES 64

static struct rules {
    struct call_rule all[MOST_RULES];
    unsigned n;
} failing, stalling;
static atomic_ulong n_own;

static bool is(const char *text, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(name, text, n) == 0;
}

/* Return: whether there is such an entry. */
static bool find_entry(const char *text, size_t n, int *id)
{
    for (*id = 0; *id < N_ENTRIES; ++*id)
        if (is(text, n, entry_table[*id].symbol))
            return true;
    return false;
}

static bool find_which(const char *text, size_t n, struct call_rule *rule)
{
    static const char others[] = "other.";
    size_t skip = strncmp(text, others, strlen(others)) ? 0 : strlen(others);

    rule->whose = skip ? OTHERS : is(text, n, "own") ? OWN : ANYBODYS;
    return rule->whose == OWN || find_entry(text + skip, n - skip, &rule->id);
}

static void parse(const char *text, struct rules *rules, long value)
{
    while (text && *text && rules->n < MOST_RULES) {
        struct call_rule *rule = &rules->all[rules->n];
        size_t n_name = strcspn(text, ":,");
        const char *rest = text + n_name;
        char *end;

        rule->nth = 1;
        rule->value = value;
        if (*rest == ':') {
            rule->nth = strtol(rest + 1, &end, 10);
            rest = end;
            if (*rest == ':') {
                rule->value = strtol(rest + 1, &end, 10);
                rest = end;
            }
        }
        rules->n += find_which(text, n_name, rule);
        text = *rest ? rest + 1 : rest;
    }
}

void fail_parse(const char *fail, const char *stall)
{
    parse(fail, &failing, CUDA_ERROR_UNKNOWN);
    parse(stall, &stalling, 0);
}

unsigned long fail_own(enum entry_id id)
{
    return tls.own && tls.own_entry == id ? tls.own : 0;
}

/* Which call of those that @rule speaks of this one is; 0: it does not speak of it. */
static long place(struct call_rule *rule, enum entry_id id)
{
    unsigned long own = fail_own(id);

    if (rule->whose == OWN)
        return (long)own;
    if (rule->id != (int)id || (rule->whose == OTHERS && own))
        return 0;
    return atomic_fetch_add(&rule->n_calls, 1) + 1;
}

/* What the first rule says that speaks of this call; @none: none does. */
static long value_of(struct rules *rules, enum entry_id id, long none)
{
    for (unsigned i = 0; i < rules->n; i++) {
        long n = place(&rules->all[i], id);

        if (n && (rules->all[i].nth == 0 || rules->all[i].nth == n))
            return rules->all[i].value;
    }
    return none;
}

CUresult fail_check(enum entry_id id)
{
    long ns = value_of(&stalling, id, 0);
    struct timespec stall = { ns / 1000000000, ns % 1000000000 };

    if (ns > 0)
        nanosleep(&stall, NULL);
    return (CUresult)value_of(&failing, id, CUDA_SUCCESS);
}

/* No part of the Driver API: clients that know the stand-in look it up by name. */
__attribute__((visibility("default"))) void standin_own(const char *symbol);
void standin_own(const char *symbol)
{
    int id;

    tls.own = 0;
    if (symbol && find_entry(symbol, strlen(symbol), &id)) {
        tls.own = atomic_fetch_add(&n_own, 1) + 1;
        tls.own_entry = (enum entry_id)id;
    }
}
