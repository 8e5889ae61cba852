/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file `edits` of a run with places: what became of the rows that edits want, for each edit and request,
 *
 *     due = written + missed[reason...]               after a clean close, and of requests that have ended
 *     lost_at_kill = due - written - missed           when the process was killed
 *
 * A shared mapping that the capturing process updates, so that it survives the process. What is due is added before the launch
 * that writes it is handed to the driver; what was written the device has counted. Source: docs/format.md 10.2.
 */
#ifndef DMI_EDIT_ACCOUNT_H
#define DMI_EDIT_ACCOUNT_H

#include <assert.h>
#include <stdint.h>

#define DMI_EDIT_ACCOUNTS_MAGIC   0x00314144454d44ull /* the bytes "DMEDA1" and zero */
#define DMI_EDIT_ACCOUNTS_VERSION 1
#define DMI_EDIT_ACCOUNTS         4096u

/* Why a row that an edit wants is not written. Numbers are part of the format. */
enum dmi_edit_miss {
    DMI_EDIT_MISS_NOT_RUN = 0,     /* its launch or node did not come to it */
    DMI_EDIT_MISS_WIDTH = 1,       /* vectors, columns or heads do not suit the tensor */
    DMI_EDIT_MISS_BAD_TAG = 2,     /* the tag that is its coefficient is no number */
    DMI_EDIT_MISS_NO_STEP = 3,     /* the engine did not say whose the rows are */
    DMI_EDIT_MISS_UNSUPPORTED = 4, /* where the launch is, edits cannot be */
    DMI_EDIT_MISS_BAD_POINTER =
        5,                    /* the tensor does not lie in live memory, or its expressions fail */
    DMI_EDIT_MISS_DRIVER = 6, /* the driver refused our kernel, its parameters or a question */
    DMI_EDIT_MISS_NO_ROOM =
        7, /* too many launches in flight have lists of rows, or too many requests have edits */
    DMI_EDIT_MISS_RANK = 8, /* the tensor is divided between ranks */
    DMI_EDIT_MISS_CACHE_SHARED =
        9, /* the engine caches prefixes, or does not say so, and the request has not the salt of its edits */
    DMI_EDIT_MISS_CACHED =
        10, /* the row came from a prefix cache, whose rows are not known to have the edit */
    DMI_EDIT_MISS_LOST =
        11, /* its process was killed before it was known: dmi-dump recover counts it */
    DMI_EDIT_MISS_NO_SOURCE =
        12, /* the row that it takes from another request is not there (yet), or not the one it asks for */
    DMI_EDIT_MISS_COUNT,
    DMI_EDIT_MISS_ROOM = 16 /* entries on disk */
};

/* As tools spell it; "unknown" for a number that is none. Pure function: any thread. */
static inline const char *dmi_edit_miss_name(uint32_t reason)
{
    static const char *const names[DMI_EDIT_MISS_COUNT] = {
        "not_run", "width", "bad_tag",      "no_step", "unsupported", "bad_pointer", "driver",
        "no_room", "rank",  "cache_shared", "cached",  "lost",        "no_source",
    };
    return reason < DMI_EDIT_MISS_COUNT ? names[reason] : "unknown";
}

enum dmi_edit_account_state {
    DMI_EDIT_ACCOUNT_FREE = 0,
    DMI_EDIT_ACCOUNT_OPEN =
        1, /* of an edit in a request, or (no id) in rows whose request is not known */
    DMI_EDIT_ACCOUNT_REST = 2,  /* of an edit in requests for which there was no account */
    DMI_EDIT_ACCOUNT_TOTAL = 3, /* of an edit in all requests that have ended */
};

struct dmi_edit_account {
    uint64_t uid;          /* of the edit in the process, from 1 */
    uint32_t state;        /* enum dmi_edit_account_state; written last */
    uint32_t n_request;    /* bytes of the id; 0: none */
    uint64_t due, written; /* rows, each once at each place and layer */
    uint64_t missed[DMI_EDIT_MISS_ROOM];
    char edit[128];      /* its name, and at least one zero */
    uint64_t not_finite; /* rows that were written, with an infinity or NaN in what was stored */
    char request[256];
};

struct dmi_edit_accounts {
    uint64_t magic;
    uint32_t version;
    uint32_t n; /* accounts */
    uint8_t run_uuid[16];
    uint64_t ended;    /* requests x edits whose accounts are in totals */
    uint64_t marked;   /* of those, the ones with a row that was missed */
    uint64_t in_force; /* edits that are, and are not off */
    uint64_t reserved;
    struct dmi_edit_account accounts[];
};

static_assert(sizeof(struct dmi_edit_account) == 552, "on-disk layout");
static_assert(sizeof(struct dmi_edit_accounts) == 64, "on-disk layout");

#endif
