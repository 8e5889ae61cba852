/* SPDX-License-Identifier: Apache-2.0 */
/* dmi-analyze: answers from what was captured. See docs/man/dmi-analyze.1. */
#include "tools/analyze/attention.h"
#include "tools/analyze/focus.h"
#include "tools/analyze/heads.h"
#include "tools/analyze/options.h"
#include "tools/analyze/rerank.h"
#include "tools/analyze/routing.h"
#include "tools/analyze/stats.h"
#include "tools/common/leftover.h"
#include "tools/common/say.h"
#include "tools/common/ticker.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct analyze_command commands[] = {
    { "attention", analyze_attention },
    { "heads", analyze_heads },
    { "focus", analyze_focus, .by_file = true },
    { "rerank", analyze_rerank, .by_file = true },
    { "stats", analyze_stats, .selects = true },
    { "routing", analyze_routing, .selects = true },
    { 0 },
};

int main(int argc, char **argv)
{
    leftover_install();
    struct analyze_options o;
    int status = options_parse(argc, argv, commands, &o);
    if (status < 0) {
        /* JSON on a terminal goes around the lines that the ticker knows of */
        if (!o.json || !isatty(STDOUT_FILENO))
            ticker_start(0);
        status = o.command->run(&o);
        ticker_stop();
    }
    return say_flush(status, ANALYZE_USAGE);
}
