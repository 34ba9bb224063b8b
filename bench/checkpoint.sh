#!/usr/bin/env bash
# What checkpoints cost training, and how fast they are written and read: beside fio and PyTorch, on the same disk.
#
#   bench/checkpoint.sh [steps|slow|save|restore|memory]... [--rounds N] [--folder DIR]
#
# Prints Markdown tables. DIR (default: a new one in /var/tmp) is on the disk that is measured. Installs fio; PyTorch is the wheel
# that bench/run.sh installs, and left out without it. Nothing else should run on the machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TROUPE_PEERS=${TROUPE_PEERS:-$HOME/.cache/troupe-peers}
cmake/install-packages.sh fio
cmake -G Ninja -B build >/dev/null
cmake --build build --target troupe
exec python3 bench/checkpoint.py "$@"
