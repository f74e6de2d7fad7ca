#!/bin/sh
# Starts the three servers on three consecutive ports, reports when all are up, and waits.
#   sh serve.sh SERVER DIRECTORY PORT ADDRESS
set -eu
server=$1 directory=$2 port=$3 address=$4
for framework in axum actix salvo; do
    figures=$directory/$framework.json
    "$server" "$framework" --figures "$figures" "$address:$port" &
    # The file exists once the server listens.
    until [ -e "$figures" ]; do
        kill -0 $! 2>/dev/null || exit 1
        sleep 0.05
    done
    port=$((port + 1))
done
echo "all three are up"
wait
