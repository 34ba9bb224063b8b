#!/usr/bin/env bash
# From a fresh machine to a trained language model: installs, builds, trains for about two minutes on real English text
# over four worker processes (dp=2,pp=2), and prints a sample.
#
#   apps/quickstart.sh [--data FILE] [--out DIR] [further arguments of `troupe train`]
set -euo pipefail

data='' out='' more=()
while [ $# -gt 0 ]; do
  case $1 in
    --data | --out)
      [ $# -ge 2 ] || { echo "quickstart: $1 needs a value" >&2; exit 2; }
      if [ "$1" = --data ]; then data=$2; else out=$2; fi
      shift 2 ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) more+=("$1"); shift ;;
  esac
done
if [ -n "$data" ] && [ ! -r "$data" ]; then
  echo "quickstart: cannot read --data $data" >&2
  exit 2
fi
# Paths given are relative to where the user stands; the default output folder is in the repository.
[ -z "$data" ] || data=$(realpath -- "$data")
[ -z "$out" ] || out=$(realpath -m -- "$out")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${out:-runs/quickstart}

dictionary=/usr/share/dictd/gcide.dict.dz   # Debian's dict-gcide: 40 MB of English, gzip inside
if [ -n "$data" ] || [ -r "$dictionary" ]; then cmake/install-packages.sh; else cmake/install-packages.sh dict-gcide; fi
cmake -G Ninja -B build >/dev/null
cmake --build build --target troupe

if [ -z "$data" ]; then
  [ -r "$dictionary" ] || { echo "quickstart: $dictionary is not there; name a text with --data FILE" >&2; exit 1; }
  mkdir -p "$out"
  data=$out/gcide.txt
  if [ ! -s "$data" ]; then
    zcat < "$dictionary" > "$data.part"
    mv "$data.part" "$data"
  fi
fi

build/apps/troupe train apps/configs/quickstart.toml --mesh dp=2,pp=2 --data "$data" --out "$out" --trace \
  --sample "The " ${more[@]+"${more[@]}"}

cat <<END

curve    $out/loss.svg       open it in a browser
trace    $out/trace.json     drop it on https://ui.perfetto.dev: a row per actor, arrows for messages
plan     $out/plan.txt       who does what where, and what it costs
numbers  $out/metrics.jsonl  one line per step; $out/run.json has the whole configuration
END
