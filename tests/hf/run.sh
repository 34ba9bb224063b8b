#!/usr/bin/env bash
# run.sh TROUPE HF_LOGITS CONFIGS: exports and imports against Hugging Face's transformers. The Python that has them is
# $TROUPE_PYTHON, or else python3. 77: it has not.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${TROUPE_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
folder=$(mktemp -d "${TMPDIR:-/tmp}/troupe-hf-XXXXXX")
trap 'rm -rf "$folder"' EXIT
HF_HUB_OFFLINE=1 "$python" -B "$here/compare.py" "$folder" "$@"
