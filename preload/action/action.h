/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens at a site: an action is a kernel of ours that the launch is given beside the application's own, and
 * how its parameter is filled. Each has a row in table.c. Pure functions. Thread: launching.
 */
#pragma once

#include "preload/capture/operand.h"
#include "preload/context/context.h"

#include <stdint.h>

#define ACTION_PARAM_BYTES 256 /* of a kernel's one parameter */

/* A kernel of ours as the driver is to launch it, or as the calling thread is to do it. */
struct action_kernel {
    CUfunction function;
    void (*host)(const void *param);
    uint32_t blocks, threads;
    uint32_t form;                                         /* enum action_form, of a node */
    uint64_t param[ACTION_PARAM_BYTES / sizeof(uint64_t)]; /* a struct of the action's own */
};

/* One eager launch of it, admitted. */
struct action_launch {
    const struct context *context;
    const struct operand *operand;
    uint64_t number; /* the launch number */
    uint32_t occurrence;
    uint32_t first_row, n_rows; /* of those that the action takes */
    CUdeviceptr rows;           /* list of all of those, 0: they are the tensor's first ones */
    uint32_t at;                /* of an edit: DMI_EDIT_AT() */
    uint64_t slot,
        payload; /* of an action that publishes: running number in the ring, offset of its bytes */
};

/* Where a node of ours in a graph exec belongs. */
struct action_place {
    const struct context *context;
    CUdeviceptr state; /* of the exec: struct dmi_ticket */
    uint32_t number;   /* of its entry in the ticket */
    CUdeviceptr mark;  /* its own: struct dmi_copy_mark */
};

/* How an action is launched: each form has a kernel of its own. Nodes may have several, by what they read. */
enum action_form {
    ACTION_EAGER,
    ACTION_NODE,
    ACTION_NODE_ROWS,
    /* of up to DMI_COPIES copies at one place: all of ACTION_NODE, or whatever they read */
    ACTION_NODES,
    ACTION_NODES_ANY,
    /* the same in a graph that has no other node of ours */
    ACTION_ALONE,
    ACTION_ALONE_ANY,
    ACTION_FORMS
};

struct action {
    const char *kernels[ACTION_FORMS]; /* as kernels/ exports them; NULL: it has no such form */
    void (*host)(const void *param);   /* what the eager kernel does, in host memory */
    /* these fill all but the functions, of which the kernel's is that in the launch's context; as an eager launch, */
    void (*eager)(const struct action_launch *launch, struct action_kernel *out);
    /* as a node, in the form that is returned; also of an operand without bytes, whose place a later update may fill */
    enum action_form (*node)(const struct action_place *place, const struct operand *operand,
                             struct action_kernel *out);
};

/* What an eager launch gathers, from its first row on; *@rows: its list of rows or 0. */
struct dmi_gather action_gather(const struct action_launch *launch, uint64_t *rows);

/* What a node gathers; where its operand has no bytes, one byte that no ticket wants. */
struct dmi_gather action_node_gather(const struct operand *operand);

/* By enum spec_action. */
extern const struct action *const action_table[];

/* The names of all kernels that actions launch, for device_use_kernels(). */
const char *const *action_kernels(uint32_t *n);

/* What the action of the operand's site launches. */
void action_eager(const struct action_launch *launch, struct action_kernel *out);
void action_node(const struct action_place *place, const struct operand *operand,
                 struct action_kernel *out);

/*
 * The function of one node for several copies, of which each has the parameter that action_node() gives. @packed: all are of ACTION_NODE. @alone: no other node
 * of ours is in the graph.
 */
CUfunction action_copies(const struct context *context, bool packed, bool alone);

/* The word of the site's action, for messages. */
static inline const char *action_word(uint32_t site)
{
    return spec_actions[session_site(site)->action].word;
}
