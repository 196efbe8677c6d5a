/*
 * The library's only way to heap memory, so that tests can make the Nth allocation fail.
 */
#ifndef WEIR_CORE_MEMORY_H
#define WEIR_CORE_MEMORY_H

#include "core/status.h"
#include <stddef.h>
#include <stdint.h>

/* count * bytes zeroed bytes in *out (never NULL on success, even for 0), or WEIR_ERR_NOMEM naming
 * what was to be held. Overflow of the product is NOMEM too. */
enum weir_status weir_alloc(void *out, size_t count, size_t bytes, const char *what);
/* Grow *array (elements of `bytes`) so that it holds at least `need` elements; doubles. */
enum weir_status weir_grow(void *array, size_t *capacity, size_t need, size_t bytes,
                           const char *what);
void weir_free(void *memory); /* NULL is fine */
enum weir_status weir_strdup(char **out, const char *text);

/* Tests: fail the nth allocation from now (1 = the next), once; 0 turns it off. Returns the number
 * of allocations made since the last call, so that a loop knows when n is past the end. */
uint64_t weir_alloc_fail_at(uint64_t nth);
uint64_t weir_alloc_fail_from(uint64_t nth); /* the nth and every later one */
/* Bytes now held through weir_alloc (budget 7d counts trace and plan). */
uint64_t weir_alloc_bytes(void);

#endif
