/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A YAML 1.1 document (JSON is a subset) as a tree whose nodes know where they stand. What HookSpecs
 * have no use for (anchors, aliases, tags, several documents, deep nesting) is refused with its
 * place. A tree belongs to one thread; it holds no reference to the text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TREE_MAX_DEPTH 16
#define TREE_MAX_NODES 65536

enum tree_kind { TREE_SCALAR, TREE_LIST, TREE_MAP };

struct tree_node {
    enum tree_kind kind;
    uint32_t line, column; /* 1-based; columns count characters, not bytes */
    /* TREE_SCALAR; NUL-terminated, no other NUL inside */
    char *text;
    size_t n_text;
    bool plain;           /* written without quotes */
    uint32_t text_column; /* of text[0]; 0: spread over lines or with escapes, so not one to one */
    /* TREE_LIST, TREE_MAP: a map's items are key, value, key, value... */
    struct tree_node **items;
    size_t n_items;
};

struct tree {
    struct tree_node *root; /* NULL: the text holds no document */
    void *blocks;           /* private to tree.c */
};

struct tree_error {
    uint32_t line, column;
    char msg[256];
};

enum { TREE_E_SYNTAX = 1 };

/**
 * tree_parse() - read @text, which must be UTF-8
 * Return: 0, TREE_E_SYNTAX (@error says where and what), -ENOMEM. @out is to be freed with
 * tree_deinit() in every case.
 */
int tree_parse(const char *text, size_t n_text, struct tree *out, struct tree_error *error);

/* Frees all nodes; a zeroed tree is fine. */
void tree_deinit(struct tree *tree);
