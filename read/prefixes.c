/* SPDX-License-Identifier: Apache-2.0 */
#include "read/prefixes.h"

#include "core/grow.h"

#include <errno.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------- nodes by parent and first id */

static size_t hash_of(size_t parent, int32_t id)
{
    uint64_t h = (parent + 1) * 0x9E3779B97F4A7C15ull + (uint32_t)id;
    h *= 0x9E3779B97F4A7C15ull;
    return h ^ h >> 32;
}

static int32_t first_id(const struct prefixes_node *node)
{
    return node->ids[node->first];
}

/* Where the table has a node: its index and one, or 0. */
static uint32_t *slot_of(const struct prefixes *p, size_t parent, int32_t id)
{
    return HASHED_FIND(&p->by_hash, hash_of(parent, id), i,
                       p->nodes[i].parent == parent && first_id(&p->nodes[i]) == id);
}

/* Two more nodes have room after this: as many as a request adds at a time. */
static int make_room(struct prefixes *p)
{
    if (hashed_has_room(&p->by_hash, p->n + 1))
        return 0;
    if (!hashed_grow(&p->by_hash))
        return -ENOMEM;
    for (size_t i = 1; i < p->n; i++)
        *slot_of(p, p->nodes[i].parent, first_id(&p->nodes[i])) = (uint32_t)i + 1;
    return 0;
}

/* Return: its index; PREFIXES_NONE: no memory. */
static size_t add_node(struct prefixes *p, const struct prefixes_node *node)
{
    if (grow((void **)&p->nodes, p->n, &p->room, sizeof *p->nodes, 64))
        return PREFIXES_NONE;
    p->nodes[p->n] = *node;
    return p->n++;
}

/* ------------------------------------------------------------------------- requests of a node */

static int add_link(struct prefixes *p, size_t node, uint32_t request)
{
    if (p->n_links == PREFIXES_MAX_LINKS)
        return -E2BIG;
    if (PUSH(p->links, p->n_links, p->links_room, 64, (struct prefixes_link){ request, 0 }))
        return -ENOMEM;
    struct prefixes_node *to = &p->nodes[node];
    if (to->tail)
        p->links[to->tail - 1].next = p->n_links;
    else
        to->head = p->n_links;
    to->tail = p->n_links;
    return 0;
}

/* Cuts a node in two before position @at. @made: the first part, a new node. Return: 0, -ENOMEM, -E2BIG. */
static int split(struct prefixes *p, size_t node, int64_t at, size_t *made)
{
    struct prefixes_node upper = p->nodes[node];
    uint32_t *slot = slot_of(p, upper.parent, first_id(&upper));
    upper.end = at;
    upper.head = upper.tail = 0;
    *made = add_node(p, &upper);
    if (*made == PREFIXES_NONE)
        return -ENOMEM;
    *slot = (uint32_t)*made + 1;
    p->nodes[node].parent = *made;
    p->nodes[node].first = at;
    *slot_of(p, *made, first_id(&p->nodes[node])) = (uint32_t)node + 1;
    int r = 0;
    for (size_t i = p->nodes[node].head; !r && i; i = p->links[i - 1].next)
        r = add_link(p, *made, p->links[i - 1].request);
    return r;
}

/* ------------------------------------------------------------------------- all of it */

int prefixes_init(struct prefixes *p)
{
    static const struct prefixes_node root = { .parent = PREFIXES_NONE };
    *p = (struct prefixes){ 0 };
    return add_node(p, &root) == PREFIXES_NONE || make_room(p) ? -ENOMEM : 0;
}

void prefixes_deinit(struct prefixes *p)
{
    free(p->nodes);
    free(p->links);
    hashed_deinit(&p->by_hash);
    *p = (struct prefixes){ 0 };
}

size_t prefixes_next(const struct prefixes *p, size_t node, int32_t id)
{
    return (size_t)*slot_of(p, node, id) - 1; /* 0 - 1: PREFIXES_NONE */
}

/* Goes on to the next node on the way of a request, which ends where the ids of both do. Return: as prefixes_add(). */
static int step_down(struct prefixes *p, size_t *node, const int32_t *ids, int64_t n)
{
    int64_t at = p->nodes[*node].end;
    uint32_t *slot = slot_of(p, *node, ids[at]);
    size_t next = (size_t)*slot - 1;
    if (next == PREFIXES_NONE) {
        const struct prefixes_node leaf = { .parent = *node, .first = at, .end = n, .ids = ids };
        *node = add_node(p, &leaf);
        if (*node == PREFIXES_NONE)
            return -ENOMEM;
        *slot = (uint32_t)*node + 1;
        return 0;
    }
    const struct prefixes_node *known = &p->nodes[next];
    while (at < n && at < known->end && known->ids[at] == ids[at])
        at++;
    *node = next;
    return at < known->end ? split(p, next, at, node) : 0;
}

int prefixes_add(struct prefixes *p, uint32_t request, const int32_t *ids, int64_t n, int64_t first)
{
    int r = 0;
    for (size_t node = 0; !r && p->nodes[node].end < n;) {
        r = make_room(p);
        if (!r)
            r = step_down(p, &node, ids, n);
        if (!r && p->nodes[node].end > first)
            r = add_link(p, node, request);
    }
    return r;
}
