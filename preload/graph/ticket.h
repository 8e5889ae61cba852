/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the tickets of a launch reach its exec: as parameters of its opens, set right before the launch (launches that
 * are queued keep theirs). Another way of delivery is another file like this. Thread: as graph/exec.h.
 */
#pragma once

#include "preload/graph/exec.h"

#include <stdbool.h>

/* The places of @launch reach the exec. Return: false if they cannot: then it runs, and no action does anything. */
bool ticket_deliver(struct exec *exec, const struct admission_launch *launch);

/*
 * The same of a launch that repeats the last one, whose ticket is in the exec's state. Return: false if it cannot: ticket_deliver() then brings a whole ticket, or
 * says that no action does anything.
 */
bool ticket_deliver_again(struct exec *exec, const struct admission_launch *launch);

/* The exec's next launches do nothing of ours. */
void ticket_clear(struct exec *exec);

/* Opens and close are switched off while no site of the exec is on; ticket_deliver() switches them on again. */
void ticket_sleep(struct exec *exec);

/* Does the exec run anything of ours that looks at its state? */
bool ticket_is_read(const struct exec *exec);

/* Switches a node of ours for launches to come. Return: false if the driver would not. */
bool ticket_switch_node(const struct exec *exec, struct graph_node *node, bool off);
