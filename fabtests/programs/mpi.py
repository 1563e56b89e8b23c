# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Open MPI over its TCP transport: ranks that exchange messages of all sizes, and their launcher."""

import os

from harness import case

EXCHANGE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <mpi.h>

/* Byte i of a message with this seed. */
static char byte_of(unsigned seed, int i) { return (char)(seed * 131u + (unsigned)i * 7u + (unsigned)i / 251u); }

/* Each rank sends to the next and receives from the one before, both at once. */
static int ring(int rank, int ranks, char *out, char *in, int size, unsigned round) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    unsigned own = round * 17u + (unsigned)rank, theirs = round * 17u + (unsigned)before;
    for (int i = 0; i < size; ++i)
        out[i] = byte_of(own, i);
    MPI_Sendrecv(out, size, MPI_CHAR, next, 0, in, size, MPI_CHAR, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < size; ++i)
        if (in[i] != byte_of(theirs, i))
            return i + 1;
    return 0;
}

/* Between the first two ranks, in seconds for all rounds, behind a tenth as many that do not count. */
static double pingpong(int rank, int rounds) {
    char byte[8] = {0};
    double start = 0;
    for (int i = -rounds / 10; i < rounds; ++i) {
        if (i == 0)
            start = MPI_Wtime();
        if (rank == 0)
            MPI_Send(byte, sizeof(byte), MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(byte, sizeof(byte), MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(byte, sizeof(byte), MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    }
    return MPI_Wtime() - start;
}

int main(int argc, char **argv) {
    int rank, ranks, rounds = atoi(argv[1]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc > 2) {
        double seconds = pingpong(rank, rounds);
        if (rank == 0)
            printf("%.1f a second\n", rounds / seconds);
        MPI_Finalize();
        return 0;
    }
    enum { most = 4 << 20 };
    char *out = malloc(most), *in = malloc(most);
    unsigned round = 0;
    for (int size = 1; size <= most; size *= 4)
        for (int i = 0; i < (size < 65536 ? rounds : 4); ++i) {
            int wrong = ring(rank, ranks, out, in, size, round++);
            if (wrong) {
                printf("rank %d: byte %d of %d is wrong\n", rank, wrong - 1, size);
                MPI_Abort(MPI_COMM_WORLD, 2);
            }
        }
    long sum = 0, mine = 0;
    for (int i = 0; i < rounds; ++i) {
        mine = (long)rank * i;
        MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        if (sum != (long)i * ranks * (ranks - 1) / 2)
            MPI_Abort(MPI_COMM_WORLD, 3);
    }
    if (rank == 0)
        printf("%d ranks, all bytes and sums as they should be\n", ranks);
    MPI_Finalize();
    return 0;
}
"""
NEEDS = ["mpirun", "mpicc"]


def launch(trial, ranks, *arguments, status=0):
    trial.port = None  # its processes pick their own
    source = trial.write("exchange.c", EXCHANGE)
    trial.run(["mpicc", "-O1", "-o", trial.path("exchange"), source], rsrun=False)
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return trial.run(["mpirun", "--oversubscribe", "-np", ranks, "--mca", "plm", "isolated", "--mca", "btl", "tcp,self", "--mca",
                      "pml", "ob1", "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo",
                      trial.path("exchange"), *arguments], environment=allowed, status=status)


@case("Open MPI", "two ranks: messages of 1 byte to 4 MiB both ways, sums of all", NEEDS)
def two_ranks(trial):
    ran = launch(trial, 2, trial.scale(500, 100))
    trial.expect(ran.text().startswith("2 ranks, all"), ran.text)
    trial.expect_upgraded(1)


@case("Open MPI", "four ranks in a ring, on as many processors as there are", NEEDS, limit=120)
def four_ranks(trial):
    ran = launch(trial, 4, trial.scale(300, 60))
    trial.expect(ran.text().startswith("4 ranks, all"), ran.text)
    trial.expect_upgraded(4)
