/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/options.h"

#include "policy/number.h"
#include "tools/common/say.h"

#include <errno.h>
#include <string.h>

#define FIRST        256 /* getopt_long()'s number of the first row */
#define VERSION      (FIRST + OPTIONS_MOST)
#define MOST_LETTERS 32
#define MOST_WORD    32

/* What getopt_long() is given. */
struct getopts {
    char words[OPTIONS_MOST][MOST_WORD];
    char letters[MOST_LETTERS];
    struct option longs[OPTIONS_MOST + 3];
};

/* '\0': the row has none. */
static char letter_of(const struct option_row *row)
{
    const char *after = strstr(row->shown, ", -");
    return row->shown[1] != '-' ? row->shown[1] : after && after[3] != '-' ? after[3] : '\0';
}

static bool has_value(const struct option_row *row)
{
    return row->shown[strcspn(row->shown, " ,")] == ' ';
}

const char *option_word(const struct option_row *row)
{
    static char word[MOST_WORD];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(row->shown + 2, " ,"), row->shown + 2);
    return word;
}

static void add_row(struct getopts *g, const struct option_row *row, size_t i, struct option **to)
{
    char letter = letter_of(row), more[] = { letter, has_value(row) ? ':' : '\0', '\0' };
    strncat(g->letters, more, sizeof g->letters - strlen(g->letters) - 1);
    if (row->shown[1] != '-')
        return;
    strcpy(g->words[i], option_word(row));
    *(*to)++ = (struct option){ g->words[i],
                                row->optional    ? optional_argument
                                : has_value(row) ? required_argument
                                                 : no_argument,
                                NULL, FIRST + (int)i };
}

static void make(const struct options_table *t, struct getopts *g)
{
    struct option *to = g->longs;
    strcpy(g->letters, t->stops ? "+h" : "h");
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].take)
            add_row(g, &t->rows[i], i, &to);
    to[0] = (struct option){ "help", no_argument, NULL, 'h' };
    to[1] = (struct option){ "version", no_argument, NULL, VERSION };
}

/* The row that getopt_long() means by @c. */
static size_t row_of(const struct options_table *t, int c)
{
    size_t i = 0;
    if (c >= FIRST)
        return (size_t)(c - FIRST);
    while (!t->rows[i].take || letter_of(&t->rows[i]) != c)
        i++;
    return i;
}

int options_read(const struct options_table *t, int argc, char **argv, void *into, uint64_t *given)
{
    struct getopts g = { 0 };
    make(t, &g);
    argv[0] = program_invocation_short_name; /* getopt_long() begins its sentence with it */
    for (int c; (c = getopt_long(argc, argv, g.letters, g.longs, NULL)) != -1;) {
        if (c == '?')
            return usage_hint();
        if (c == 'h')
            return options_help(t, stdout);
        if (c == VERSION)
            return printf("%s %s\n", t->name, DMI_VERSION) < 0;
        size_t i = row_of(t, c);
        int status = t->rows[i].take(&t->rows[i], into);
        if (status >= 0)
            return status;
        if (given)
            *given |= (uint64_t)1 << i;
    }
    return -1;
}

/* Is @word one of @words? */
static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = words; *at; at += strspn(at, " ")) {
        size_t n_at = strcspn(at, " ");
        if (n_at == n && !memcmp(at, word, n))
            return true;
        at += n_at;
    }
    return false;
}

bool options_fit(const struct options_table *t, const char *command, uint64_t given)
{
    bool fits = true;
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct option_row *row = &t->rows[i];
        if (given >> i & 1 && row->commands && !has_word(row->commands, command)) {
            complain("%s does not take --%s", command, option_word(row));
            fits = false;
        }
    }
    return fits;
}

/* Lines below the first begin where that does. */
static void print_row(FILE *to, const struct option_row *row, int column)
{
    const char *line = row->help;
    fprintf(to, "  %-*s", *line ? column - 2 : 0, row->shown);
    do {
        size_t n = strcspn(line, "\n");
        fprintf(to, "%*s%.*s\n", line == row->help ? 0 : column, "", (int)n, line);
        line += n + (line[n] == '\n');
    } while (*line);
}

int options_help(const struct options_table *t, FILE *to)
{
    fputs(t->before, to);
    for (size_t i = 0; i < t->n_rows; i++)
        if (!t->rows[i].shown)
            fputs(t->rows[i].help, to);
        else if (t->rows[i].help)
            print_row(to, &t->rows[i], t->column);
    fputs(t->after, to);
    if (t->more)
        t->more(to);
    return to == stdout ? 0 : USAGE_WRONG;
}

int option_taken(bool taken)
{
    return taken ? -1 : usage_hint();
}

int option_flag(const struct option_row *row, void *into)
{
    *(bool *)option_field(row, into) = true;
    return -1;
}

int option_text(const struct option_row *row, void *into)
{
    *(const char **)option_field(row, into) = optarg;
    return -1;
}

int option_number(const struct option_row *row, void *into)
{
    int64_t n;
    bool good = parse_integer(optarg, &n) && n >= 1 && n <= row->most;
    *(uint32_t *)option_field(row, into) = good ? (uint32_t)n : 0;
    if (good)
        return -1;
    return usage_wrong("--%s: '%s' is no number from 1 to %u", option_word(row), optarg, row->most);
}
