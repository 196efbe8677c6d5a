/*
 * ctrl-C. Files are unlinked from the moment that they are made, so leaving at any instant leaves
 * nothing behind; the places below are where it is done, so that it is never between a file's
 * making and its unlinking. A second signal does not wait for one.
 */
#ifndef WEIR_BENCH_LEAVE_H
#define WEIR_BENCH_LEAVE_H

/* From now on SIGINT and SIGTERM are noted. */
void leave_on_signals(void);
/* Ends the process with status 128 + signal if one came. */
void leave_if_asked(void);

#endif
