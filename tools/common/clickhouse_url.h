/* SPDX-License-Identifier: Apache-2.0 */
/* What --to clickhouse://... says: a server, who asks it, and which table. A program of one thread. */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>

struct clickhouse_url {
    char *server;  /* http://HOST:PORT/ */
    char *cluster; /* letters, digits and _; NULL: one server has all */
    char **others; /* the cluster's other servers, as @server */
    size_t n_others;
    char *user, *password;
    char *database, *table; /* letters, digits and _ */
    char *run;              /* a UUID, which alone is asked for; NULL: not said */
    char *ca;           /* file with the certificates that sign the server's; NULL: the system's */
    unsigned give_up_s; /* a server that is away for so long; 0: never */
    bool dmilib;        /* DMI-Lib's layout */
};

/**
 * clickhouse_url_parse() - split an address
 * @where: [USER[:PASSWORD]@]HOST[:PORT]/[DATABASE][?NAME=VALUE&...]
 * The password may also be a file's first line or DMI_CLICKHOUSE_PASSWORD. Return: 0 or -errno with a sentence in @err.
 */
int clickhouse_url_parse(struct err *err, const char *where, struct clickhouse_url *out);
/* A run's UUID, in lower case? */
bool clickhouse_url_is_run(const char *text);
/* Accepts a zeroed struct. */
void clickhouse_url_deinit(struct clickhouse_url *url);
