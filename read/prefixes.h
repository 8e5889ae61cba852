/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests by the ids of their first tokens: a tree, whose nodes are stretches of ids that requests have in common. A search goes
 * through what one request has, however many others there are. Not locked: the owner's thread.
 */
#pragma once

#include "core/hashed.h"

#include <stddef.h>
#include <stdint.h>

#define PREFIXES_NONE      SIZE_MAX
#define PREFIXES_MAX_LINKS (64u << 20) /* requests of nodes: more is what a hostile file claims */

/* Positions that all requests below this place have, with the same ids from position 0 on. */
struct prefixes_node {
    size_t parent;
    int64_t first, end;
    const int32_t *ids; /* of one of these requests, from position 0 on */
    size_t head, tail;  /* of its list of requests: index + 1 in links; 0: none */
};

struct prefixes {
    struct prefixes_node *nodes; /* the first one is the root, which has no positions */
    size_t n, room;
    struct prefixes_link {
        uint32_t request;
        size_t next; /* as head */
    } * links;
    size_t n_links, links_room;
    struct hashed by_hash; /* private: nodes by parent and first id */
};

/* Return: 0 or -ENOMEM. prefixes_deinit() accepts a zeroed struct. */
int prefixes_init(struct prefixes *prefixes);
void prefixes_deinit(struct prefixes *prefixes);

/**
 * prefixes_add() - add a request, and name it at the nodes that it may have rows of
 * @ids: of its positions 0 to @n - 1; borrowed for as long as the tree lives
 * @first: no row of an earlier position is its own
 * The requests of a node are in the order in which they were added. Return: 0, -ENOMEM, -E2BIG.
 */
int prefixes_add(struct prefixes *prefixes, uint32_t request, const int32_t *ids, int64_t n,
                 int64_t first);

/* The node after @node for a request that has @id at position nodes[node].end. Return: PREFIXES_NONE: there is none. */
size_t prefixes_next(const struct prefixes *prefixes, size_t node, int32_t id);
