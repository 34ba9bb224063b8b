#!/usr/bin/env bash
# What checkpoints cost training, and how fast they are written and read: beside fio and PyTorch, on the same disk.
#
#   bench/checkpoint.sh [steps|slow|save|restore|memory]... [--rounds N] [--folder DIR]
#
# Prints Markdown tables. DIR (default: a new one in /var/tmp) is on the disk that is measured. Installs fio, which is
# run at several depths, the best one counts; PyTorch is the wheel that bench/run.sh installs. A peer that is not there is skipped, and its
# row says so. Nothing else should run on the machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TROUPE_PEERS=${TROUPE_PEERS:-$HOME/.cache/troupe-peers}
cmake/install-packages.sh
cmake/install-packages.sh fio || echo "$0: fio cannot be installed: its rows will be skipped" >&2
cmake -G Ninja -B build >/dev/null
cmake --build build --target troupe
exec python3 bench/checkpoint.py "$@"
