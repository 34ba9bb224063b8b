/* MPI_Allreduce of BYTES of floats, COUNT times: rank 0 prints the median in milliseconds as JSON. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int order(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int n = argc > 1 ? atoi(argv[1]) / 4 : 0, count = argc > 2 ? atoi(argv[2]) : 20;
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  float *terms = malloc(4ul * n), *sum = malloc(4ul * n);
  double* ms = malloc(sizeof(double) * count);
  for (int i = 0; i < n; ++i) terms[i] = (float)(rank + i % 7), sum[i] = 0;
  for (int i = -3; i < count; ++i) {
    const double begin = MPI_Wtime();
    MPI_Allreduce(terms, sum, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (i >= 0) ms[i] = (MPI_Wtime() - begin) * 1e3;
  }
  for (int i = 0; i < n; ++i)
    if (sum[i] != (float)(ranks * (ranks - 1) / 2 + ranks * (i % 7))) MPI_Abort(MPI_COMM_WORLD, 1);
  qsort(ms, count, sizeof *ms, order);
  if (rank == 0) printf("{\"ms\": %.3f}\n", ms[count / 2]);
  MPI_Finalize();
  return 0;
}
