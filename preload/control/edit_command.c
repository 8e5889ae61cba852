/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/control/edit_command.h"

#include "core/cleanup.h"
#include "policy/number.h"
#include "preload/edit/accounts.h"
#include "preload/edit/donors.h"
#include "preload/edit/edits.h"
#include "preload/edit/places.h"
#include "preload/session/session.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)
#define EXPECTED                                                                                   \
    "expected: edit add|check|set NAME times=NUMBER|on NAME|off NAME|remove NAME|list|salt ID "    \
    "[TAGS]"

static void refuse(struct text *answer, const struct err *err)
{
    line_refuse(answer, err->msg);
}

static void say_step(struct text *answer, uint64_t step)
{
    text_printf(answer, "{\"ok\": true, \"step\": %" PRIu64 "}\n", step);
}

/* ------------------------------------------------------------------------- what came with the line */

/* What does not change while it is read: neither shrinks nor is written. Return: NULL, and why not. */
static const char *map_pack(int fd, void **map, size_t *n)
{
    struct stat st;
    if (fd < 0)
        return "no descriptor came with it: dmi-ctl sends one";
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size <= 0)
        return "its descriptor is no memory file";
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return "its descriptor is not sealed: it could change while it is read";
    *n = (size_t)st.st_size;
    *map = mmap(NULL, *n, PROT_READ, MAP_PRIVATE, fd, 0);
    return *map == MAP_FAILED ? "its descriptor cannot be mapped" : NULL;
}

static void add(const struct line_peer *peer, bool only_check, struct text *answer)
{
    struct err err = { 0 };
    void *map;
    size_t n;
    char who[64];
    uint64_t step = 0;
    const char *why = map_pack(peer->fd, &map, &n);
    if (why) {
        line_refuse(answer, why);
        return;
    }
    snprintf(who, sizeof who, ", by uid %u, pid %d", peer->uid, (int)peer->pid);
    int r = only_check ? edits_check(&err, map, n) : edits_add(&err, map, n, who, &step);
    munmap(map, n);
    if (r)
        refuse(answer, &err);
    else if (only_check)
        text_printf(answer, "{\"ok\": true, \"checked\": true}\n");
    else
        say_step(answer, step);
}

/* ------------------------------------------------------------------------- changing */

/* "times=1.5". Return: whether it is that. */
static bool take_times(const char *word, struct edit_coefficient *out)
{
    double v;
    *out = (struct edit_coefficient){ .from = EDIT_NUMBER };
    if (strncmp(word, "times=", 6) || !parse_decimal(word + 6, &v) || v > 3e38 || v < -3e38)
        return false;
    out->number = (float)v;
    return true;
}

static void change(const char *word, char *rest, const struct line_peer *peer, struct text *answer)
{
    struct err err = { 0 };
    struct edit_coefficient times;
    char who[64];
    uint64_t step = 0;
    char *name = line_word(&rest), *more = line_word(&rest);
    bool sets = !strcmp(word, "set"), removes = !strcmp(word, "remove");
    if (!*name || (sets && !take_times(more, &times)) || (!sets && *more)) {
        line_refuse(answer, EXPECTED);
        return;
    }
    snprintf(who, sizeof who, ", by uid %u, pid %d", peer->uid, (int)peer->pid);
    int r = removes ? edits_remove(&err, name, who, &step)
                    : edits_set(&err, name, sets ? &times : NULL, sets ? -1 : !strcmp(word, "on"),
                                who, &step);
    if (r)
        refuse(answer, &err);
    else
        say_step(answer, step);
}

/* ------------------------------------------------------------------------- asking */

static void add_use(struct text *t, const struct edit_use *use)
{
    uint64_t due = 0, written = 0, missed[DMI_EDIT_MISS_COUNT] = { 0 };
    accounts_sum(use->uid, &due, &written, missed);
    text_printf(t, "{\"name\": ");
    text_json(t, use->edit->name);
    text_printf(t, ", \"site\": ");
    text_json(t, use->edit->site);
    text_printf(t, ", \"on\": %s", use->off ? "false" : "true");
    if (use->times) {
        text_printf(t, ", \"times\": ");
        text_json_double(t, use->times->number);
    }
    text_printf(t, ", \"due\": %" PRIu64 ", \"written\": %" PRIu64 ", \"missed\": {", due, written);
    for (uint32_t i = 0, n = 0; i < DMI_EDIT_MISS_COUNT; i++)
        if (missed[i])
            text_printf(t, "%s\"%s\": %" PRIu64, n++ ? ", " : "", dmi_edit_miss_name(i), missed[i]);
    text_printf(t, "}");
    struct err err = { 0 };
    if (!edits_have_ranks() && places_lack(&err, use)) { /* another rank may have it */
        text_printf(t, ", \"lacks\": ");
        text_json(t, err.msg);
    }
    if (!places_seen(use))
        text_printf(t, ", \"unseen\": true");
    text_printf(t, "}");
}

/* Is the site a place, and the first of its name? */
static bool is_new_place(const struct spec *spec, uint32_t site)
{
    for (uint32_t i = 0; i < site; i++)
        if (spec->sites[i].action == SPEC_EDIT &&
            !strcmp(spec->sites[i].about.name, spec->sites[site].about.name))
            return false;
    return spec->sites[site].action == SPEC_EDIT;
}

static void add_places(struct text *t)
{
    text_printf(t, "\"places\": [");
    for (uint32_t i = 0, n = 0; i < session.spec->n_sites; i++)
        if (is_new_place(session.spec, i)) {
            text_printf(t, "%s", n++ ? ", " : "");
            text_json(t, session.spec->sites[i].about.name);
        }
    text_printf(t, "]");
}

static void list(struct text *answer)
{
    struct edit_version *v = edits_hold();
    text_printf(answer, "{\"ok\": true, \"version\": %" PRIu64 ", \"edits\": [", v ? v->number : 0);
    for (uint32_t i = 0; v && i < v->n; i++) {
        text_printf(answer, "%s", i ? ", " : "");
        add_use(answer, &v->uses[i]);
    }
    text_printf(answer, "], ");
    add_places(answer);
    text_printf(answer, "}\n");
    version_release(v);
}

static void salt(char *rest, struct text *answer)
{
    char *id = line_word(&rest);
    struct edit_version *v = edits_hold();
    const char *lacks = NULL;
    uint64_t salt = v ? edits_request_salt(v, id, *rest ? rest : NULL, &lacks) : 0;
    if (lacks) {
        char why[256];
        snprintf(why, sizeof why,
                 "there is no salt yet: rows of one request under \"%s\" are to be patched in, and "
                 "none, or several, have them",
                 lacks);
        line_refuse(answer, why);
    } else if (salt)
        text_printf(answer, "{\"ok\": true, \"salt\": \"" EDIT_SALT_FORMAT "\"}\n", salt);
    else
        text_printf(answer, "{\"ok\": true, \"salt\": null}\n");
    version_release(v);
}

/* ------------------------------------------------------------------------- all of them */

static bool is_change(const char *word)
{
    return !strcmp(word, "set") || !strcmp(word, "on") || !strcmp(word, "off") ||
           !strcmp(word, "remove");
}

void edit_command(char *rest, const struct line_peer *peer, struct text *answer)
{
    const char *word = line_word(&rest);
    bool adds = !strcmp(word, "add"), checks = !strcmp(word, "check");
    if (!session.spec->n_places)
        line_refuse(answer, "the HookSpec has no site with \"write\": edits write there");
    else if ((adds || is_change(word)) && edits_have_ranks())
        line_refuse(answer, "the engine has several ranks, which would change at different steps: "
                            "there dmi-run --edits and the requests' own tags decide");
    else if (adds || checks)
        add(peer, checks, answer);
    else if (is_change(word))
        change(word, rest, peer, answer);
    else if (!strcmp(word, "list"))
        list(answer);
    else if (!strcmp(word, "salt"))
        salt(rest, answer);
    else
        line_refuse(answer, EXPECTED);
}

/* ------------------------------------------------------------------------- the bank */

#define MOST_LISTED 1000 /* an answer has an end */

static void list_bank(struct text *answer)
{
    text_printf(answer, "{\"ok\": true, \"bank\": [");
    uint32_t more = donors_list(answer, MOST_LISTED);
    text_printf(answer, "], \"more\": %u}\n", more);
}

static void drop(const char *name, const struct line_peer *peer, struct text *answer)
{
    _cleanup_(text_deinit) struct text what = { 0 };
    text_printf(&what, "bank drop %s, by uid %u, pid %d", name, peer->uid, (int)peer->pid);
    text_add(&what, "", 1);
    if (!donors_have(name))
        line_refuse(answer, "no request has rows under that name; bank list names them");
    else if (what.failed || session_note_change_with(what.data, NULL, true))
        line_refuse(answer, "the run takes no note of it");
    else
        text_printf(answer, "{\"ok\": true, \"dropped\": %u}\n", donors_drop(name));
}

void bank_command(char *rest, const struct line_peer *peer, struct text *answer)
{
    const char *word = line_word(&rest), *name = line_word(&rest);
    if (!session.spec->bank_bytes)
        line_refuse(answer, "the HookSpec has no \"edits: {bank: ...}\": edits save no rows");
    else if (!strcmp(word, "list") && !*name)
        list_bank(answer);
    else if (!strcmp(word, "drop") && *name && edits_have_ranks())
        line_refuse(answer,
                    "the engine has several ranks, which would forget rows at different steps");
    else if (!strcmp(word, "drop") && *name)
        drop(name, peer, answer);
    else
        line_refuse(answer, "expected: bank list|drop NAME");
}
