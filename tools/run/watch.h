/* SPDX-License-Identifier: Apache-2.0 */
/* A process beside the command which names those of the command's processes that the library is not in. */
#ifndef TOOLS_RUN_WATCH_H
#define TOOLS_RUN_WATCH_H

/**
 * watch_start() - watch this process, which becomes the command, and all that descend from it
 * @library: last name of the library's file
 * @log: what DMI_LOG says, or NULL. One line for each executable that has loaded the driver without the library;
 *       nothing is watched where lines go nowhere.
 * The watcher is nobody's child here, has a session of its own, holds no descriptor but stderr, and ends with this
 * process. Init only. What hinders it is a line of the log: the command runs all the same.
 */
void watch_start(const char *library, const char *log);

#endif
