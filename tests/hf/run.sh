#!/usr/bin/env bash
# run.sh TROUPE HF_LOGITS CONFIGS: exports and imports against Hugging Face's transformers. The Python that has them is
# $TROUPE_PYTHON, or else the one that install.sh makes, or else python3. 77: none has.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pythons=("${TROUPE_HF:-${XDG_CACHE_HOME:-$HOME/.cache}/troupe-hf}/bin/python" python3)
[ -z "${TROUPE_PYTHON:-}" ] || pythons=("$TROUPE_PYTHON")
folder=$(mktemp -d "${TMPDIR:-/tmp}/troupe-hf-XXXXXX")
trap 'rm -rf "$folder"' EXIT
for python in "${pythons[@]}"; do
  command -v "$python" >/dev/null || { echo "no $python"; continue; }
  status=0
  HF_HUB_OFFLINE=1 "$python" -B "$here/compare.py" "$folder" "$@" || status=$?
  [ "$status" -eq 77 ] || exit "$status"
done
echo "skipped: no Python with transformers (tests/hf/install.sh makes one)"
exit 77
