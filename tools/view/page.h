/* SPDX-License-Identifier: Apache-2.0 */
/* The page's files, as tools/view/build_page.py packs them: the data of a report stands between the two. Constant: any thread. */
#pragma once

__attribute__((visibility("hidden"))) extern const char view_page_before[], view_page_before_end[];
__attribute__((visibility("hidden"))) extern const char view_page_after[], view_page_after_end[];
