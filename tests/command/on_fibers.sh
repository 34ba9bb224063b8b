#!/usr/bin/env bash
# `troupe train --device cuda` on real processes, with fibers in the place of GPUs (troupe_on_fibers): the parameters of the
# run on CPUs, on two meshes and after a worker is killed; what is refused.
# Usage: on_fibers.sh TROUPE_ON_FIBERS CONFIGS
set -euo pipefail
troupe=$1 configs=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for i in $(seq 400); do echo "the $((i * 7919 % 1000)) actors exchange $((i % 13)) messages;"; done >"$dir/text"

# hash NAME ARGUMENT...: trains, prints what the parameters come to.
hash() {
  local name=$1
  shift
  "$troupe" train "$configs/lm-tiny.toml" --data "$dir/text" --steps 2 --out "$dir/$name" --quiet "$@" >"$dir/$name.log" 2>&1 ||
    { cat "$dir/$name.log"; exit 1; }
  grep -o '"params_hash": *"[0-9a-f]*"' "$dir/$name/run.json"
}
same() { [ "$1" = "$2" ] || { echo "$3: $1, on CPUs $2"; exit 1; }; }
small=(--set model.layers=2 --set eval.every=0)
cpu=$(hash cpu "${small[@]}")
[ -n "$cpu" ]
same "$(hash fibers "${small[@]}" --device cuda)" "$cpu" "one worker on a device"
same "$(hash two "${small[@]}" --device cuda:0,1 --mesh dp=2 --zero 1)" "$cpu" "dp=2, ZeRO 1 on devices"
killed=$(hash killed "${small[@]}" --device cuda --mesh pp=2 --recovery slots --inject "SIGKILL@update:mid#1/worker1")
same "$killed" "$cpu" "a killed worker"
grep -q '"device": *"cuda"' "$dir/killed/run.json" || { echo "run.json does not say the device"; exit 1; }
tr -d ' \n' <"$dir/killed/run.json" | grep -q '"incidents":{"count":1,' || { echo "no worker was killed"; exit 1; }

# refused ARGUMENT TEXT
refused() {
  local code=0
  "$troupe" train "$configs/lm-tiny.toml" --data "$dir/text" --steps 1 --out "$dir/refused" --device "$1" >"$dir/log" 2>&1 || code=$?
  [ "$code" -ne 0 ] && grep -q -- "$2" "$dir/log" || { echo "--device $1: exit code $code:"; cat "$dir/log"; exit 1; }
}
refused rocm "no devices of kind 'rocm'"
refused cuda: "expected 'cpu', 'cuda'"
refused cuda:0,,1 "expected 'cpu', 'cuda'"
refused cpu:0 "expected 'cpu', 'cuda'"
echo "the same parameters on CPUs and on fibers"
