/*
 * Rates that runs of the tests are planned by: the same plans on every machine.
 */
#ifndef WEIR_TESTS_SUPPORT_COST_H
#define WEIR_TESTS_SUPPORT_COST_H

#include <weir/weir.h>

extern const struct weir_cost test_cost; /* the host device */
/* A GPU beside slow cores: updates of what lies in host memory cross the link. */
extern const struct weir_cost test_cost_slow_cores;

#endif
