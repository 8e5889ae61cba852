/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sites/head.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* A key of the file's own mapping begins in the first column. */
static bool is_key(const char *line)
{
    return isalpha((unsigned char)*line) || *line == '"' || *line == '\'';
}

static bool is_ours(const char *line)
{
    static const char *const ours[] = { "forward", "sites", "absent" };
    line += *line == '"' || *line == '\'';
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        size_t n = strlen(ours[i]);
        if (!strncmp(line, ours[i], n) && line[n] && strchr(":\"' \t", line[n]))
            return true;
    }
    return false;
}

/* Comments and empty lines belong to the key that follows. */
static bool is_above(const char *line)
{
    return *line == '#' || *line == '\n' || *line == '\r';
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

void head_copy(const char *text, FILE *out)
{
    bool keep = true;
    for (const char *line = text, *next; *line; line = next) {
        const char *above = line;
        while (is_above(line))
            line = next_line(line);
        next = next_line(line);
        if (is_key(line))
            keep = !is_ours(line);
        if (!keep || !*line)
            continue;
        fwrite(above, 1, (size_t)(next - above), out);
        fputs(next[-1] == '\n' ? "" : "\n", out);
    }
}
