#!/bin/sh
# Starts the three servers at three ports one behind the other, says when all are up, and stays.
#   sh serve.sh SERVER DIRECTORY PORT ADDRESS
set -eu
server=$1 directory=$2 port=$3 address=$4
for framework in axum actix salvo; do
    figures=$directory/$framework.json
    "$server" "$framework" --figures "$figures" "$address:$port" &
    # It is there once the server listens.
    until [ -e "$figures" ]; do
        kill -0 $! 2>/dev/null || exit 1
        sleep 0.05
    done
    port=$((port + 1))
done
echo "all three are up"
wait
