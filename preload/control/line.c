/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/control/line.h"

#include <string.h>

void line_refuse(struct text *answer, const char *why)
{
    text_printf(answer, "{\"ok\": false, \"error\": ");
    text_json(answer, why);
    text_printf(answer, "}\n");
}

char *line_word(char **rest)
{
    char *word = *rest + strspn(*rest, " \t");
    char *end = word + strcspn(word, " \t");
    *rest = *end ? end + 1 : end;
    *end = 0;
    return word;
}
