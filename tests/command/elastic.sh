#!/bin/sh
# elastic.sh N [options of elastic.py]: N runs whose workers are killed, stopped, crash or exit.
exec python3 "$(dirname "$0")/elastic.py" "$@"
