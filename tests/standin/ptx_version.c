/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_version.c - which PTX a driver reads, and which one a text is
 */
#include "version.h"

#include <string.h>

int ptx_newest(int version)
{
    static const struct {
        int driver, ptx;
    } releases[] = {
        { 11000, 70 }, { 11010, 71 }, { 11020, 72 }, { 11030, 73 }, { 11040, 74 },
        { 11050, 75 }, { 11060, 76 }, { 11070, 77 }, { 11080, 78 }, { 12000, 80 },
        { 12010, 81 }, { 12020, 82 }, { 12030, 83 }, { 12040, 84 }, { 12050, 85 },
        { 12070, 86 }, { 12080, 87 }, { 12090, 88 }, { 13000, 90 },
    };
    int newest = 0;

    for (size_t i = 0; i < sizeof(releases) / sizeof(releases[0]); i++) {
        if (releases[i].driver <= version)
            newest = releases[i].ptx;
    }
    return newest;
}

/* Where the comments and blanks that @at begins with are over. */
static const char *skip(const char *at, const char *end)
{
    while (at < end) {
        const char *after = NULL;

        if (strchr(" \t\r\n", *at) && *at)
            at++;
        else if (end - at >= 2 && !memcmp(at, "//", 2))
            at = (after = memchr(at, '\n', (size_t)(end - at))) ? after : end;
        else if (end - at >= 2 && !memcmp(at, "/*", 2))
            at = (after = memmem(at + 2, (size_t)(end - at) - 2, "*/", 2)) ? after + 2 : end;
        else
            break;
    }
    return at;
}

static int number(const char **at, const char *end)
{
    int value = 0;

    for (; *at < end && **at >= '0' && **at <= '9' && value < 1000; (*at)++)
        value = 10 * value + **at - '0';
    return value;
}

int ptx_version(const char *text, size_t n_text)
{
    static const char directive[] = ".version";
    const char *end = text + n_text, *at = skip(text, end);
    int major;

    if ((size_t)(end - at) < sizeof(directive) || memcmp(at, directive, sizeof(directive) - 1))
        return 0;
    at = skip(at + sizeof(directive) - 1, end);
    major = number(&at, end);
    if (at == end || *at != '.')
        return 0;
    at++;
    return 10 * major + number(&at, end);
}
