#!/bin/sh
# rounds.sh LOWTIDE SERVER: a million requests at once, and what `inspect` says of the server at the peak, when all are
# answered, and when the clients have left; then a round in which the server is killed while it answers.
set -eu
lowtide=$1 server=$2
"$server" 127.0.0.1:17900 >/dev/null &
pid=$!
trap 'kill -9 $pid 2>/dev/null || true' EXIT
sleep 1
"$lowtide" load "http://127.0.0.1:17900/?server=axum&expire=40000" --http2 -c 8 -m 125000 --hold 15s --timeout 120s > load-1.txt &
client=$!
sleep 35
grep VmHWM /proc/$client/status > client.txt
"$lowtide" inspect $pid > peak.txt
while grep -q . /proc/$client/status 2>/dev/null && [ "$(ls /proc/$client/fd | wc -l)" -lt 5 ]; do sleep 1; done
# All are answered within 40 s and the time of sending them; the connections stay for 15 s.
sleep 32
"$lowtide" inspect $pid > drained.txt || true
wait $client
sleep 3
"$lowtide" inspect $pid > closed.txt
"$lowtide" load "http://127.0.0.1:17900/?server=axum&expire=30000" --http2 -c 8 -m 125000 --timeout 60s > load-2.txt &
client=$!
sleep 40
kill -9 $pid
wait $client || true
