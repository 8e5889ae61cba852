/* SPDX-License-Identifier: Apache-2.0 */
/* Names that only one of two sides has. A program of one thread. */
#pragma once

#include "tools/common/report.h"

#include "storage/map.h"

/* Names in the order in which they came, and how many tensors have them. */
struct names {
    struct map index; /* name to entry */
    struct {
        const char *name; /* borrowed, not terminated */
        size_t n_name;
        uint64_t n;
    } * all;
    size_t n, room;
};

/* Counts one more of @name, which is borrowed. Return: 0 or -ENOMEM. */
int names_add(struct names *names, const char *name, size_t n_name);
void names_deinit(struct names *names);

/* A line that begins with @title, or an object under @key; nothing where there are no names, or (JSON) an empty one. */
void names_print(struct report *report, const char *title, const char *key,
                 const struct names *names);

/* SITE of a key REQUEST/SITE.LAYER. Return: its length. */
size_t names_site(const char *key, const char **site);
