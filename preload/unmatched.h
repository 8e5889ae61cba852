/* SPDX-License-Identifier: Apache-2.0 */
/* Sites of the spec that no launch matched: why, as far as the library knows. */
#pragma once

/* Reports each to the session, and says so in the log. The run is open. Thread: the one of the last flush. */
void unmatched_report(void);
