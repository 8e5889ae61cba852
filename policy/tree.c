/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/tree.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define BLOCK_BYTES 16384

struct tree_block {
    struct tree_block *next;
    size_t used, size;
    _Alignas(16) char bytes[];
};

static void *take(struct tree *tree, size_t n)
{
    struct tree_block *block = tree->blocks;
    n = (n + 15) & ~(size_t)15;
    if (!block || block->size - block->used < n) {
        size_t size = n > BLOCK_BYTES ? n : BLOCK_BYTES;
        block = malloc(sizeof *block + size);
        if (!block)
            return NULL;
        *block = (struct tree_block){ .next = tree->blocks, .size = size };
        tree->blocks = block;
    }
    void *p = block->bytes + block->used;
    block->used += n;
    return memset(p, 0, n);
}

void tree_deinit(struct tree *tree)
{
    for (struct tree_block *block = tree->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    *tree = (struct tree){ 0 };
}

/* A list or map that is not closed yet. */
struct level {
    struct tree_node *node;
    size_t max_items;
};

struct tree_reader {
    struct tree *tree;
    struct tree_error *error;
    struct level levels[TREE_MAX_DEPTH];
    unsigned depth;
    unsigned n_nodes;
};

static int fail(struct tree_reader *r, const yaml_mark_t *mark, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(struct tree_reader *r, const yaml_mark_t *mark, const char *fmt, ...)
{
    r->error->line = (uint32_t)mark->line + 1;
    r->error->column = (uint32_t)mark->column + 1;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->error->msg, sizeof r->error->msg, fmt, ap);
    va_end(ap);
    return TREE_E_SYNTAX;
}

/* Appends @node to the innermost open list or map. */
static int append(struct tree_reader *r, struct tree_node *node)
{
    if (!r->depth) {
        r->tree->root = node;
        return 0;
    }
    struct level *level = &r->levels[r->depth - 1];
    struct tree_node *parent = level->node;
    if (parent->n_items == level->max_items) {
        size_t max = level->max_items ? level->max_items * 2 : 8;
        struct tree_node **items = take(r->tree, max * sizeof(struct tree_node *));
        if (!items)
            return -ENOMEM;
        if (parent->n_items)
            memcpy(items, parent->items, parent->n_items * sizeof(struct tree_node *));
        parent->items = items; /* the shorter array stays in its block until tree_deinit() */
        level->max_items = max;
    }
    parent->items[parent->n_items++] = node;
    return 0;
}

static size_t n_characters(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

static int add_scalar(struct tree_reader *r, const yaml_event_t *event, struct tree_node *node)
{
    size_t n = event->data.scalar.length;
    yaml_scalar_style_t style = event->data.scalar.style;
    node->text = take(r->tree, n + 1);
    if (!node->text)
        return -ENOMEM;
    memcpy(node->text, event->data.scalar.value, n);
    node->n_text = n;
    node->plain = style == YAML_PLAIN_SCALAR_STYLE;
    if (memchr(node->text, 0, n))
        return fail(r, &event->start_mark, "found a NUL character in a text; expected none");
    size_t quotes =
        style == YAML_SINGLE_QUOTED_SCALAR_STYLE || style == YAML_DOUBLE_QUOTED_SCALAR_STYLE;
    if (event->start_mark.line == event->end_mark.line &&
        event->end_mark.column - event->start_mark.column ==
            n_characters(node->text, n) + 2 * quotes)
        node->text_column = (uint32_t)(event->start_mark.column + quotes) + 1;
    return 0;
}

static int add(struct tree_reader *r, const yaml_event_t *event)
{
    const yaml_mark_t *mark = &event->start_mark;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    enum tree_kind kind = TREE_SCALAR;
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        kind = TREE_LIST;
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else {
        kind = TREE_MAP;
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    if (anchor)
        return fail(r, mark,
                    "found the anchor \"&%.40s\"; expected none: HookSpecs have no anchors "
                    "and aliases, write the value out",
                    (const char *)anchor);
    if (tag)
        return fail(r, mark, "found the tag \"%.40s\"; expected none: the key decides the type",
                    (const char *)tag);
    if (++r->n_nodes > TREE_MAX_NODES)
        return fail(r, mark, "found more than %d values; expected fewer", TREE_MAX_NODES);
    if (kind != TREE_SCALAR && r->depth == TREE_MAX_DEPTH)
        return fail(r, mark, "found more than %d levels of nesting; expected fewer",
                    TREE_MAX_DEPTH);
    struct tree_node *node = take(r->tree, sizeof *node);
    if (!node)
        return -ENOMEM;
    node->kind = kind;
    node->line = (uint32_t)mark->line + 1;
    node->column = (uint32_t)mark->column + 1;
    int rc = kind == TREE_SCALAR ? add_scalar(r, event, node) : 0;
    if (!rc)
        rc = append(r, node);
    if (!rc && kind != TREE_SCALAR)
        r->levels[r->depth++] = (struct level){ .node = node };
    return rc;
}

/* The reader counts bytes where it finds no valid character, and gives no mark. */
static yaml_mark_t mark_of_byte(const char *text, size_t n_text, size_t offset)
{
    yaml_mark_t mark = { 0 };
    for (size_t i = 0; i < n_text && i < offset; i++) {
        if (text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            mark.column++;
        }
    }
    return mark;
}

/* Do blanks and a tab stand before the words of line @n, counted from 0? */
static bool begins_with_tab(const char *text, size_t n_text, size_t n)
{
    const char *end = text + n_text, *p = text;
    while (n && p && (p = memchr(p, '\n', (size_t)(end - p)))) {
        p++;
        n--;
    }
    while (p && p < end && *p == ' ')
        p++;
    return p && p < end && *p == '\t';
}

static int syntax_error(struct tree_reader *r, const yaml_parser_t *parser, const char *text,
                        size_t n_text)
{
    if (parser->error == YAML_MEMORY_ERROR)
        return -ENOMEM;
    const char *problem = parser->problem ? parser->problem : "it cannot be read";
    if (parser->error == YAML_READER_ERROR) {
        yaml_mark_t mark = mark_of_byte(text, n_text, parser->problem_offset);
        return fail(r, &mark, "not YAML: %s; expected UTF-8 text", problem);
    }
    if (parser->error == YAML_SCANNER_ERROR &&
        begins_with_tab(text, n_text, parser->problem_mark.line))
        return fail(r, &parser->problem_mark,
                    "not YAML: found a tab; expected spaces before the words of a line");
    if (parser->context && parser->context_mark.line != parser->problem_mark.line)
        return fail(r, &parser->problem_mark, "not YAML: %s (%s that began at %zu:%zu)", problem,
                    parser->context, parser->context_mark.line + 1,
                    parser->context_mark.column + 1);
    return fail(r, &parser->problem_mark, "not YAML: %s%s%s%s", problem,
                parser->context ? " (" : "", parser->context ? parser->context : "",
                parser->context ? ")" : "");
}

static int take_event(struct tree_reader *r, const yaml_event_t *event, bool *done)
{
    switch (event->type) {
    case YAML_STREAM_END_EVENT: *done = true; return 0;
    case YAML_DOCUMENT_START_EVENT:
        if (r->tree->root)
            return fail(r, &event->start_mark, "found a second document; expected one a file");
        return 0;
    case YAML_SCALAR_EVENT:
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT: return add(r, event);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: r->depth--; return 0;
    case YAML_ALIAS_EVENT:
        return fail(r, &event->start_mark,
                    "found the alias \"*%.40s\"; expected a value: HookSpecs "
                    "have no anchors and aliases, write the value out",
                    (const char *)event->data.alias.anchor);
    default: return 0;
    }
}

int tree_parse(const char *text, size_t n_text, struct tree *out, struct tree_error *error)
{
    yaml_parser_t parser;
    struct tree_reader r = { .tree = out, .error = error };
    *out = (struct tree){ 0 };
    if (!yaml_parser_initialize(&parser))
        return -ENOMEM;
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    int rc = 0;
    if (n_text >= 3 &&
        !memcmp(text, "\xef\xbb\xbf", 3)) { /* libyaml minds its own byte order mark */
        text += 3;
        n_text -= 3;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n_text);
    for (bool done = false; !done && !rc;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            rc = syntax_error(&r, &parser, text, n_text);
            break;
        }
        rc = take_event(&r, &event, &done);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return rc;
}
