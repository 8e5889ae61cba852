/* SPDX-License-Identifier: Apache-2.0 */
/* Tables and views on a ClickHouse server: created, compared, and brought to this version. A program of one thread.
 * Source: docs/clickhouse.md. */
#pragma once

#include "tools/common/clickhouse_http.h"

/**
 * clickhouse_schema_make() - have all tables and views there that the address asks for
 * What is there and is of others, or of a newer version, is left alone. Return: 0; -EINTR: the user wants to stop; -errno with a
 * sentence in @err.
 */
int clickhouse_schema_make(struct err *err, struct clickhouse_http *http,
                           const struct clickhouse_url *url);
