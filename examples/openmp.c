#include "examples/openmp.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#define SPIN_COUNT "5000" /* turns; docs/benchmarks.md, "Beside other work" */

void openmp_spin_briefly(char **words)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    if (getauxval(AT_BASE) == 0) /* "ld.so PROGRAM": what was executed is the linker */
        return;
    /* By its path, not by the link: the kernel names a process after what was executed. */
    char path[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof path - 1);
    if (bytes < 0)
        return;
    path[bytes] = 0;
    if (setenv("GOMP_SPINCOUNT", SPIN_COUNT, 1) == 0)
        (void)execv(path, words);
}
