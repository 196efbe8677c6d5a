#include "examples/openmp.h"

#include <stdlib.h>
#include <unistd.h>

#define SPIN_COUNT "5000" /* turns; docs/benchmarks.md, "Beside other work" */

void openmp_spin_briefly(char **words)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    if (setenv("GOMP_SPINCOUNT", SPIN_COUNT, 1) == 0)
        (void)execv("/proc/self/exe", words);
}
