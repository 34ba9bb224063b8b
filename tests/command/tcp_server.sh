#!/usr/bin/env bash
# apps/examples/tcp_server as its clients see it: each gets its own answers, in the order of its lines, whatever others ask
# or leaves; a client that waits is no stall; "end" ends the server with exit code 0.
# Usage: tcp_server.sh TCP_SERVER
set -euo pipefail
port=$((20000 + $$ % 12000))  # below those that the system gives to clients
timeout -s KILL 200 "$1" "$port" &
server=$!
trap 'kill -9 $server 2>/dev/null || true' EXIT

# ask NAME COUNT: a client that sends COUNT lines at once and compares the answers.
ask() {
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  for i in $(seq "$2"); do echo "$i $i $(($1 * 4)) $(($1 * 4))"; done >&3
  for i in $(seq "$2"); do
    read -r -t "${patience:-60}" answer <&3
    want=$(awk "BEGIN { printf \"%.6f\", ($i + $i + $1 * 8) / 4 }")
    [ "$answer" = "$want" ] || { echo "client $1, line $i: $answer, expected $want"; return 1; }
  done
}
for _ in $(seq 200); do
  kill -0 $server || { echo "the server has ended"; exit 1; }
  (patience=5 ask 1 1) 2>/dev/null && up=1 && break
  sleep 0.1
done
[ "${up:-}" ] || { echo "nothing listens on port $port"; exit 1; }

clients=()
for c in $(seq 12); do
  (ask "$c" $((c * 5))) &
  clients+=($!)
done
for _ in $(seq 5); do  # leave in mid-line, and before the answers
  (exec 3<>"/dev/tcp/127.0.0.1/$port" && for _ in $(seq 20); do printf '1 2 3 4\n'; done >&3 && printf '1 2' >&3)
done
for c in "${clients[@]}"; do wait "$c"; done
(ask 3 3)
(exec 3<>"/dev/tcp/127.0.0.1/$port" && echo end >&3)
wait $server

# A signal ends a server that waits for its next client, and leaves no process behind.
"$1" "$port" &
server=$!
for _ in $(seq 200); do (patience=5 ask 1 1) 2>/dev/null && break; sleep 0.1; done
worker=$(pgrep -P $server | head -1)
kill -TERM $server
code=0
wait $server 2>/dev/null || code=$?
trap - EXIT
[ $code -ne 0 ] || { echo "a server that SIGTERM has ended says that all is well"; exit 1; }
for _ in $(seq 100); do kill -0 "$worker" 2>/dev/null || break; sleep 0.1; done
if kill -0 "$worker" 2>/dev/null; then echo "its worker $worker lives on"; exit 1; fi
echo "answers as expected, and the end"
