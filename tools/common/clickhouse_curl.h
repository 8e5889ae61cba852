/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcurl, loaded when a server is first asked: so a wheel need not bring it and its OpenSSL along, which are the system's
 * to update. A program of one thread. Source: curl/curl.h, whose functions these are.
 */
#pragma once

#include "core/err.h"

#include <curl/curl.h>

struct clickhouse_curl {
    __typeof__(&curl_easy_init) init;
    __typeof__(&curl_easy_cleanup) cleanup;
    __typeof__(&curl_easy_setopt) setopt;
    __typeof__(&curl_easy_perform) perform;
    __typeof__(&curl_easy_getinfo) getinfo;
    __typeof__(&curl_easy_escape) escape;
    __typeof__(&curl_easy_unescape) unescape;
    __typeof__(&curl_easy_strerror) strerror;
    __typeof__(&curl_free) free;
    __typeof__(&curl_slist_append) append;
    __typeof__(&curl_slist_free_all) free_all;
    __typeof__(&curl_url) url;
    __typeof__(&curl_url_cleanup) url_cleanup;
    __typeof__(&curl_url_get) url_get;
    __typeof__(&curl_url_set) url_set;
};

extern struct clickhouse_curl clickhouse_curl;

/* Before any of them; it stays loaded until the program ends. Return: 0 or -errno with a sentence in @err. */
int clickhouse_curl_load(struct err *err);
