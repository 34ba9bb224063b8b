#!/usr/bin/env bash
# run.sh MODEL_DUMP: the whole model against tests/model/reference.py. Debian's Python first: that is where
# python3-numpy goes. 77: no Python with NumPy.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d "${TMPDIR:-/tmp}/troupe-model-XXXXXX")
trap 'rm -rf "$folder"' EXIT
"$1" "$folder"
for python in /usr/bin/python3 python3; do
  command -v "$python" >/dev/null || continue
  status=0
  "$python" -B "$here/reference.py" "$folder" || status=$?
  [ "$status" -eq 77 ] || exit "$status"
done
echo "skipped: no Python with NumPy (apt-get install python3-numpy)"
exit 77
