/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a report, each as members of its document. A program of one thread. */
#pragma once

#include "core/err.h"
#include "tools/view/cells.h"
#include "tools/view/document.h"

#include <dmi/analyze.h>
#include <dmi/read.h>

#define VIEW_REQUESTS 20 /* whose tensors a report has where none are named */

struct view_report {
    struct dmi_read *run;                /* with what is selected */
    struct dmi_read_selection selection; /* the same; what it points to is borrowed */
    const char *path, *other_path;       /* the second is NULL: there is no other run */
    struct dmi_read *other;              /* with the same of it; NULL: there is none */
    const struct dmi_read_name *
        pairs; /* requests as they were named: ID, or ID=NAME as the other run calls it; none: all */
    size_t n_pairs;
    const struct dmi_read_name
        *values; /* tensors, by site or SITE.LAYER, all of whose rows are wanted */
    size_t n_values;
    const struct dmi_read_name *answers; /* files that others computed from the run */
    size_t n_answers;
    const struct dmi_read_name *requests; /* that are chosen; none: all */
    size_t n_requests;
    const char *tokenizer;                /* a file that says what tokens stand for; NULL: none */
    const struct dmi_analyze_head *heads; /* that are wanted at full resolution, beside the best */
    size_t n_heads;
    struct dmi_analyze_model *model; /* that --config names; NULL: what the run says */
    uint64_t max_bytes;              /* of the report */
    uint64_t n_around;               /* of them, what the page itself has */
    struct document document;
    json_t *left_out;   /* list of sentences: owned */
    uint64_t n_damaged; /* rows that cannot be decoded */
    bool is_partial;    /* --tokens goes by what is not known of a request */
};

/* Bytes that are left for what comes. */
uint64_t view_room(const struct view_report *report);

/* Are its tensors in the report? */
bool view_is_chosen(const struct view_report *report, const struct dmi_read_request *request);

/* Notes a sentence, which the page and stderr have. */
void view_leave_out(struct view_report *report, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Members that say where a map's cells are. */
void view_cells(struct document *document, const struct cells *cells);

/* Members of a run: its sites with their accounts, and "total". Return: 0 or -ENOMEM with a sentence in @err. */
int view_sites(struct err *err, struct document *document, const struct dmi_read *run,
               const char *key);
/* The member "findings" of a run. */
void view_findings(struct document *document, struct dmi_read *run);

/* Index of a request of any run, -1: none. @id: NULL: none is meant. */
int64_t view_request(struct dmi_read *run, const char *id, uint64_t n);
/* The same of a tensor's. */
int64_t view_request_of(struct dmi_read *run, const struct dmi_read_tensor *tensor);

/* Its id as people see it, as a new value; null: none. */
json_t *view_id_of(const struct dmi_read_tensor *tensor);

/* Each adds its members. What is selected is the same afterwards. Return: 0 or -errno with a sentence in @err. */
int view_attention(struct err *err, struct view_report *report);
int view_overview(struct err *err, struct view_report *report);
/* Adds all tokens of the chosen requests; it is called before anything is selected. */
int view_tokens(struct err *err, struct view_report *report);
int view_lens(struct err *err, struct view_report *report);
int view_dla(struct err *err, struct view_report *report);
/* @of: a run that is open; @room: bytes of the document that they may take. */
int view_maps(struct err *err, struct view_report *report, struct dmi_read *of, const char *key,
              uint64_t room);
int view_values(struct err *err, struct view_report *report);

/*
 * view_other_open() opens the other run. view_other_maps() selects in it, and adds the maps of what it has. view_diff() adds both runs against
 * each other. What the other run lacks is no error. Return: as the others.
 */
int view_other_open(struct err *err, struct view_report *report);
int view_other_maps(struct err *err, struct view_report *report);
int view_diff(struct err *err, struct view_report *report);
