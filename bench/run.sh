#!/usr/bin/env bash
# Measures Troupe beside what one would use instead, and writes docs/measurements/DATE-speed.md.
#
#   bench/run.sh [NAME...] [--rounds N] [--out FILE]
#
# NAME: model, workers, overhead, tensor, messages, all-reduce (default: all). Long: PyTorch is first tried in many forms, compiled ones
# among them. Installs the peers: Debian's packages, and a current PyTorch wheel in a virtual environment at
# ${TROUPE_PEERS:-~/.cache/troupe-peers}. A peer that cannot be installed is skipped, and its row says so. Exit code 1 where a peer
# did other work than Troupe: its row says "failed". Nothing else should run on the machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TROUPE_PEERS=${TROUPE_PEERS:-$HOME/.cache/troupe-peers}

cmake/install-packages.sh
# OpenBLAS: without it Debian's PyTorch multiplies with the reference BLAS. python3-dev: torch.compile compiles a module.
for packages in "python3-torch libopenblas0-pthread" libtcmalloc-minimal4 "openmpi-bin libopenmpi-dev" ucx-utils "python3-venv python3-dev"; do
  # shellcheck disable=SC2086  # words
  cmake/install-packages.sh $packages || echo "$0: $packages cannot be installed: what needs it will be skipped" >&2
done
mkdir -p "$TROUPE_PEERS"
python="$TROUPE_PEERS/torch/bin/python"
if [ ! -x "$python" ] || ! "$python" -c 'import torch' 2>/dev/null; then
  { python3 -m venv "$TROUPE_PEERS/torch" && "$TROUPE_PEERS/torch/bin/pip" install --quiet torch numpy; } ||
    echo "$0: no PyTorch wheel can be installed: its rows will be skipped" >&2
fi
rm -f "$TROUPE_PEERS/all_reduce"
mpicc -O3 -march=native bench/peers/all_reduce.c -o "$TROUPE_PEERS/all_reduce" ||
  echo "$0: no mpicc: the rows of Open MPI will be skipped" >&2

cmake -G Ninja -B build >/dev/null
cmake --build build --target troupe bench_gemm bench_messages
exec python3 bench/run.py "$@"
