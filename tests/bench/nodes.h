/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the kernels of bench_nodes; addresses are the device's. */
#ifndef TESTS_BENCH_NODES_H
#define TESTS_BENCH_NODES_H

struct node_step {
    unsigned long long to, from;
    unsigned long long word;   /* a u32 */
    unsigned long long cycles; /* of the multiprocessor's clock */
    unsigned n16;              /* accesses of 16 bytes */
    unsigned reserved;
};

struct node_gather {
    unsigned long long table; /* of struct node_step, one a block */
};

#endif
