/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of ClickHouse tables. A row is a part of a record: rows of one owner that follow one another, at most
 * CLICKHOUSE_PART bytes of them; of a tensor's row that is longer so many elements. A program of one thread.
 * Source: docs/clickhouse.md; RowBinary: ClickHouse's documentation, "Formats for Input and Output Data".
 */
#pragma once

#include "storage/text.h"
#include "tools/replay/item.h"

#include <stdbool.h>

#define CLICKHOUSE_PART (8u << 20)

struct clickhouse_column {
    const char *name;
    enum clickhouse_kind {
        KIND_U8,
        KIND_U32,
        KIND_U64,
        KIND_I32,
        KIND_I64,
        KIND_F64,
        KIND_STRING,
        KIND_SHAPE, /* unsigned */
        KIND_SIGNED_SHAPE
    } kind;
    size_t offset;  /* in struct table_row */
    unsigned since; /* the schema's version that brought it */
};

struct clickhouse_layout {
    const struct clickhouse_column *columns;
    size_t n_columns;
    unsigned version; /* of the schema; 0: it has none */
    const char *engine;
    const char *shard; /* what says on which server of a cluster a row is; NULL: on none */
};

extern const struct clickhouse_layout clickhouse_dmi, clickhouse_facts, clickhouse_dmilib;

/* "UInt64" and so on. */
const char *clickhouse_type(const struct clickhouse_column *column);

/* Where in an item; zeroed at first. */
struct clickhouse_place {
    size_t span;
    uint64_t row, element; /* in the span, in the row */
    uint64_t n_done;       /* bytes of the payload */
};

/* Adds the item's next part to @rows as RowBinary, and steps on. Return: false: there was none. */
bool clickhouse_part_next(const struct clickhouse_layout *layout, const struct item *item,
                          struct clickhouse_place *at, struct text *rows);

/* Adds an item without rows to @rows, as clickhouse_facts has it. */
void clickhouse_facts_add(const struct item *item, struct text *rows);
