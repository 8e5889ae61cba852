/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statements to a ClickHouse server over HTTP, by libcurl. A server that is away, or short of something for now, is asked
 * again, at growing distances; whoever asks may therefore be answered after a statement was done twice. A program of one thread.
 * Source: ClickHouse's documentation, "HTTP Interface"; the numbers of errors: its dbms/src/Common/ErrorCodes.cpp.
 */
#pragma once

#include "storage/text.h"
#include "tools/common/clickhouse_url.h"

#include <stdint.h>

struct clickhouse_http;

/* @url: borrowed. Return: 0 or -errno with a sentence in @err. */
int clickhouse_http_new(struct err *err, const struct clickhouse_url *url,
                        struct clickhouse_http **out);
/* Accepts NULL. */
void clickhouse_http_free(struct clickhouse_http *http);

/* An answer may have so many bytes; 1 MiB unless said. A longer one is an error. */
void clickhouse_http_most(struct clickhouse_http *http, uint64_t n_bytes);

/**
 * clickhouse_http_ask() - have a statement done
 * @data: what it inserts, in the format that it names; NULL: nothing
 * @answer: gets what the server says, as TabSeparated where the statement names no format; NULL: of no interest
 * Before the first answer nothing is asked again. Return: 0; -EINTR: the user wants to stop; -errno with a sentence in @err.
 */
int clickhouse_http_ask(struct err *err, struct clickhouse_http *http, const char *sql,
                        const struct text *data, struct text *answer);
