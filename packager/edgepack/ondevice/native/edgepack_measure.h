#ifndef EDGEPACK_MEASURE_H
#define EDGEPACK_MEASURE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Run one mode with a program's arguments, argv[0] included, and return its exit code; see
 * edgepack_measure.c. One call at a time. */
int edgepack_measure(int argc, char **argv);

#ifdef __cplusplus
}
#endif

#endif
