#!/bin/sh
# Runs the load of one round: see the study.
#   sh load.sh URL CONNECTIONS STREAMS EXPIRE PATIENCE LOWTIDE…
set -eu
url=$1 connections=$2 streams=$3 expire=$4 patience=$5
shift 5
case $LOWTIDE_ROUND in
1) # no request sleeps: the throughput of the server
    exec "$@" --json load "$url/" --http2 -c "$connections" -m 100 -n $((connections * streams)) ;;
3) # a few requests, now and then
    exec "$@" --json load "$url/" --http2 -c "$connections" --rate 20/s -z 8s ;;
*) # all requests, asleep at once
    exec "$@" --json load "$url/?expire=$expire" --http2 -c "$connections" -m "$streams" \
        --timeout "$patience" ;;
esac
