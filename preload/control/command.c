/* SPDX-License-Identifier: Apache-2.0 */
#include "preload/control/command.h"

#include "core/atomic.h"
#include "core/cleanup.h"
#include "preload/control/edit_command.h"
#include "preload/control/switch.h"
#include "preload/control/trace_command.h"
#include "preload/session/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- noted in the run */

static void refuse_note(struct text *answer, int error)
{
    line_refuse(answer, error == -ENOSPC
                            ? "the disk has not taken the notes of the changes before this one"
                            : "no memory");
}

/* Return: whether to go on. */
static bool note(const char *what, struct text *answer)
{
    int r = session_note_change(what, true);
    if (r)
        refuse_note(answer, r);
    return !r;
}

/* ------------------------------------------------------------------------- status */

static const char *const switches[] = { "on", "off", "given up" };

static void status(struct text *answer)
{
    const struct overload *o = session_overload();
    text_printf(answer, "{\"ok\": true, \"pid\": %d, \"run\": ", (int)session.pid);
    text_json(answer, run_path(session.run));
    text_printf(answer,
                ", \"steps\": %" PRIu64 ", \"overload\": {\"mode\": \"%s\", \"wait_ms\": %" PRIu64
                ", \"fallback\": \"%s\", \"strategy\": \"%s\", \"patterns\": %" PRIu32
                ", \"budgets\": %" PRIu32 ", \"share\": ",
                atomic_load_relaxed(&session.next_step), overload_mode_name(o->mode),
                o->wait_ns / 1000000, overload_mode_name(o->fallback),
                overload_strategy_name(o->strategy), o->n_keep, o->n_budgets);
    text_json_double(answer, o->strategy == OVERLOAD_SAMPLE ? o->share : 1);
    text_printf(answer, "}, \"sites\": [");
    const char *before = "";
    for (uint32_t i = 0; i < session.spec->n_sites; i++) {
        if (spec_is_place(session_site(i)))
            continue;
        text_printf(answer, "%s{\"name\": ", before);
        before = ", ";
        text_json(answer, session_site(i)->about.name);
        text_printf(answer, ", \"forward\": ");
        text_json(answer, session_site(i)->about.kind);
        text_printf(answer, ", \"state\": \"%s\"}", switches[atomic_load_relaxed(&session.off[i])]);
    }
    text_printf(answer, "]}\n");
}

/* ------------------------------------------------------------------------- sites */

static void sites(char *rest, const char *what, struct text *answer)
{
    const char *word = line_word(&rest);
    bool on = !strcmp(word, "on");
    if (!on && strcmp(word, "off")) {
        line_refuse(answer, "expected: sites on PATTERN... or sites off PATTERN...");
        return;
    }
    char why[256];
    if (!switch_knows(rest, why, sizeof why)) {
        line_refuse(answer, why);
        return;
    }
    int n = switch_sites(rest, on, what);
    if (n < 0)
        refuse_note(answer, n);
    else
        text_printf(answer, "{\"ok\": true, \"sites\": %d}\n", n);
}

/* ------------------------------------------------------------------------- overload */

#define MOST_REPLACED 1000 /* each stays in memory */

static void refuse_overload(const struct spec_errors *errors, struct text *answer)
{
    text_printf(answer, "{\"ok\": false, \"error\": ");
    text_json(answer, errors->n_lines ? errors->lines[0] : "no memory");
    text_printf(answer, ", \"errors\": [");
    for (size_t i = 0; i < errors->n_lines; i++) {
        text_printf(answer, "%s", i ? ", " : "");
        text_json(answer, errors->lines[i]);
    }
    text_printf(answer, "]}\n");
}

static void overload(const char *rest, const char *what, struct text *answer)
{
    static uint32_t n_replaced;
    struct spec_errors errors = { 0 };
    struct overload *o = NULL;
    if (n_replaced == MOST_REPLACED)
        line_refuse(answer, "overload was changed 1000 times: a run takes no more");
    else if (overload_parse("overload", rest, strlen(rest), session.spec, &errors, &o))
        refuse_overload(&errors, answer);
    else if (!note(what, answer))
        overload_free(o);
    else {
        session_set_overload(o); /* the one before stays: threads may look at it still */
        n_replaced++;
        text_printf(answer, "{\"ok\": true, \"mode\": \"%s\"}\n", overload_mode_name(o->mode));
    }
    spec_errors_deinit(&errors);
}

/* ------------------------------------------------------------------------- all of them */

void command_run(char *line, const struct line_peer *peer, struct text *answer)
{
    _cleanup_(freep) char *what = strdup(line);
    char *rest = line, *word = line_word(&rest);
    if (!what)
        line_refuse(answer, "no memory");
    else if (!strcmp(word, "trace"))
        trace_command(rest, peer, answer);
    else if (!session.spec)
        line_refuse(answer,
                    "there is no HookSpec: this process is traced alone; there is: trace keep [N]");
    else if (!strcmp(word, "status"))
        status(answer);
    else if (!strcmp(word, "sites"))
        sites(rest, what, answer);
    else if (!strcmp(word, "overload"))
        overload(rest, what, answer);
    else if (!strcmp(word, "edit"))
        edit_command(rest, peer, answer);
    else if (!strcmp(word, "bank"))
        bank_command(rest, peer, answer);
    else
        line_refuse(answer, "no such command; there are: status, sites on|off PATTERN..., "
                            "overload MAPPING, edit ..., bank ..., trace keep [N]");
}
