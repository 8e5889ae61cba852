/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokens of an expression, one at a time, and what is said about one that does not fit. Shared by expr_lex.c
 * and expr_parse.c; nobody else includes it. A lexer belongs to one thread.
 */
#pragma once

#include "policy/expr.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum token {
    TOKEN_END,
    TOKEN_NUMBER,
    TOKEN_NAME,
    TOKEN_SIGN, /* one character, in .sign */
};

struct lexer {
    const char *text; /* borrowed; not NUL-terminated */
    size_t n, at;     /* text[start..at) is the token */
    enum token token;
    size_t start;
    char sign;      /* of a TOKEN_SIGN */
    int64_t number; /* of a TOKEN_NUMBER */
    struct expr_error *error;
};

/**
 * lex_next() - go on to the next token
 * Return: 0 or EXPR_E_SYNTAX (see lexer.error).
 */
int lex_next(struct lexer *x);

/* Fills in lexer.error. Return: EXPR_E_SYNTAX. */
int lex_fail(struct lexer *x, size_t offset, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* What the token is, in words, for messages. Return: @buffer. */
const char *lex_found(const struct lexer *x, char *buffer, size_t n);

/* Fails at the token: "found TOKEN; expected @what". */
int lex_expected(struct lexer *x, const char *what);

/* true if the token is this sign */
bool lex_at_sign(const struct lexer *x, char sign);

/* true if the token is this name */
bool lex_at_name(const struct lexer *x, const char *name);

/**
 * lex_take_sign() - go past @sign, which has to be the token
 * @what: the sign in words, for the message if it is not
 * Return: 0 or EXPR_E_SYNTAX.
 */
int lex_take_sign(struct lexer *x, char sign, const char *what);
