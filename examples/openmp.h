/*
 * How threads of the OpenMP team wait for each other.
 */
#ifndef WEIR_EXAMPLES_OPENMP_H
#define WEIR_EXAMPLES_OPENMP_H

/* First of all in main: GNU's OpenMP lets a thread that waits spin for 300,000 turns (libgomp
 * manual, GOMP_SPINCOUNT), unless the environment says otherwise when the program is loaded. A core
 * that spins is missed by the driver, by copies and I/O, and by whatever else runs on the machine,
 * for which the others then wait. So the program is begun anew with a short spin, in the same
 * process, unless the user has chosen one (GOMP_SPINCOUNT, OMP_WAIT_POLICY). Where that fails it
 * goes on as it is, only slower. */
void openmp_spin_briefly(char **words);

#endif
