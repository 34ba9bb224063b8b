#!/usr/bin/env bash
# Measures Troupe beside what one would use instead, and writes docs/measurements/DATE-speed.md.
#
#   bench/run.sh [NAME...] [--rounds N] [--out FILE]
#
# NAME: model, workers, overhead, messages, all-reduce (default: all, about a quarter of an hour). Installs the peers:
# Debian's packages, and a current PyTorch wheel in a virtual environment at ${TROUPE_PEERS:-~/.cache/troupe-peers}.
# Nothing else should run on the machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TROUPE_PEERS=${TROUPE_PEERS:-$HOME/.cache/troupe-peers}

# OpenBLAS: without it Debian's PyTorch multiplies with the reference BLAS.
cmake/install-packages.sh python3-torch libopenblas0-pthread openmpi-bin libopenmpi-dev ucx-utils python3-venv
if [ ! -x "$TROUPE_PEERS/torch/bin/python" ]; then
  python3 -m venv "$TROUPE_PEERS/torch"
  "$TROUPE_PEERS/torch/bin/pip" install --quiet torch numpy
fi
mpicc -O3 -march=native bench/peers/all_reduce.c -o "$TROUPE_PEERS/all_reduce"

cmake -G Ninja -B build >/dev/null
cmake --build build --target troupe bench_gemm bench_messages
exec python3 bench/run.py "$@"
