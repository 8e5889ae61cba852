/* SPDX-License-Identifier: Apache-2.0 */
/*
 *     fetch.c       the folder, what is asked for
 *     fetch_run.c   from JSON: the run, its steps, the ends of its requests
 *     fetch_rows.c  from RowBinary: its records
 */
#pragma once

#include "storage/writer/run.h"
#include "tools/common/clickhouse_http.h"

#include <dmi/site.h>
#include <jansson.h>

struct fetched {
    struct clickhouse_url url;
    struct clickhouse_http *http;
    struct text answer; /* of the last question */
    struct run *run;    /* that is written; NULL: not yet */
    json_t *about;      /* the fact `run` */
    struct dmi_site *sites;
    uint32_t n_sites;
    uint64_t n_left_out;      /* parts of a record that are no whole rows of its tensor */
    uint64_t n_steps_refused; /* the writer takes none of their kind */
};

/* A run in @folder as x->about says. Return: as above. */
int fetch_begin(struct err *err, struct fetched *x, const char *folder);
/* The JSON object that a line holds. Return: as above. */
int fetch_fact(struct err *err, const char *line, size_t n, json_t **out);
/* Notes the steps whose facts are in x->answer, in any order. Return: as above. */
int fetch_steps(struct err *err, struct fetched *x);
/* Likewise the ends of requests. */
int fetch_ends(struct err *err, struct fetched *x);
/* Appends the records in x->answer. Return: as above. */
int fetch_rows(struct err *err, struct fetched *x);
