/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/analyze/describe.h"

#include "tools/common/edit_words.h"
#include "tools/common/proof.h"

static void say_proof(struct report *r, const struct dmi_analyze_proof *p)
{
    if (!p->n_rows)
        report_line(r, "A v = z  not checked: v or z was not captured");
    else
        report_line(
            r, "A v = z  %s%s: off by %.1e of z's norm at most (head %d.%u), %.0e is allowed",
            proof_state_name(p->state), p->state == DMI_ANALYZE_UNCHECKED ? " everywhere" : "",
            p->error, p->layer, p->head, p->bound);
}

void describe_answer(struct report *r, struct asked *a)
{
    struct dmi_read_run run = { .size = sizeof run };
    struct dmi_analyze_shape s = { .size = sizeof s };
    struct dmi_analyze_proof p = { .size = sizeof p };
    dmi_read_run(a->run, &run);
    dmi_analyze_shape(a->answer, &s);
    dmi_analyze_proof(a->answer, -1, -1, &p);
    report_member(r, "run", value_text(run.path));
    report_member(r, "uuid", value_text(run.uuid));
    report_member(r, "request", s.request ? value_bytes(s.request, s.request_bytes) : json_null());
    report_member(r, "layers", json_integer(s.n_layers));
    report_member(r, "heads", json_integer(s.n_heads));
    report_member(r, "kv_heads", json_integer(s.n_kv_heads));
    report_member(r, "queries", value_u64(s.n_queries));
    report_member(r, "keys", json_integer(s.n_keys));
    report_member(r, "multiplier", value_double(s.multiplier));
    report_member(r, "borrowed", value_u64(s.n_borrowed));
    report_member(r, "proof", proof_value(&p));
    report_line(r, "run      %s", run.path);
    report_line(r, "request  %.*s", s.request ? (int)s.request_bytes : 1,
                s.request ? s.request : "-");
    report_line(r, "heads    %u layers of %u heads, which share %u of k and v", s.n_layers,
                s.n_heads, s.n_kv_heads);
    report_line(r, "tokens   %llu queries, %lld keys", (unsigned long long)s.n_queries,
                (long long)s.n_keys);
    if (s.n_borrowed)
        report_line(r, "cached   %llu positions have rows of another request",
                    (unsigned long long)s.n_borrowed);
    edit_words_report(r, a->run, edit_words_request(a->run, s.request, s.request_bytes));
    say_proof(r, &p);
}
