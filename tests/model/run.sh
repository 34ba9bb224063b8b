#!/usr/bin/env bash
# run.sh model MODEL_DUMP: the whole model against tests/model/reference.py. run.sh training TROUPE, run.sh evaluation TROUPE:
# training, evaluation against tests/model/training.py, evaluation.py. run.sh logistic_regression EXAMPLE: an example, likewise. Debian's Python first: that is where python3-numpy goes.
# 77: no Python with NumPy.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d "${TMPDIR:-/tmp}/troupe-model-XXXXXX")
trap 'rm -rf "$folder"' EXIT
case "$1" in
  model)
    "$2" "$folder"
    check=("$here/reference.py" "$folder") ;;
  training | evaluation | logistic_regression) check=("$here/$1.py" "$2" "$folder") ;;
  *) echo "$0: '$1' is none of model, training, evaluation, logistic_regression" >&2; exit 2 ;;
esac
for python in /usr/bin/python3 python3; do
  command -v "$python" >/dev/null || continue
  status=0
  "$python" -B "${check[@]}" || status=$?
  [ "$status" -eq 77 ] || exit "$status"
done
echo "skipped: no Python with NumPy (apt-get install python3-numpy)"
exit 77
