#!/usr/bin/env bash
# apps/examples/tcp_server as its clients see it: each gets its own answers, in the order of its lines, whoever else asks
# or leaves; a client that waits is no stall; "end" ends the server with exit code 0.
# Usage: tcp_server.sh TCP_SERVER
set -euo pipefail
port=$((20000 + $$ % 20000))
"$1" "$port" &
server=$!
trap 'kill -9 $server 2>/dev/null || true' EXIT

# ask NAME COUNT: a client that sends COUNT lines at once and compares the answers.
ask() {
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  for i in $(seq "$2"); do echo "$i $i $(($1 * 4)) $(($1 * 4))"; done >&3
  for i in $(seq "$2"); do
    read -r -t 60 answer <&3
    want=$(awk "BEGIN { printf \"%g\", ($i + $i + $1 * 8) / 4 }")
    [ "$answer" = "$want" ] || { echo "client $1, line $i: $answer, expected $want"; return 1; }
  done
}
for _ in $(seq 200); do
  kill -0 $server || { echo "the server has ended"; exit 1; }
  (ask 1 1) 2>/dev/null && up=1 && break
  sleep 0.1
done
[ "${up:-}" ] || { echo "nothing listens on port $port"; exit 1; }

clients=()
for c in $(seq 12); do
  (ask "$c" $((c * 5))) &
  clients+=($!)
done
for _ in $(seq 5); do (exec 3<>"/dev/tcp/127.0.0.1/$port" && printf '1 2 3 4\n1 2' >&3); done  # leave in mid-line
for c in "${clients[@]}"; do wait "$c"; done
(ask 3 3)
(exec 3<>"/dev/tcp/127.0.0.1/$port" && echo end >&3)
wait $server
trap - EXIT
echo "answers as expected, and the end"
