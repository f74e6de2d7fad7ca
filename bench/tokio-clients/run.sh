#!/bin/sh
# Usage, in this directory: run.sh LOWTIDE > raw.jsonl. Connections are recycled after 200 requests each, under full load.
set -eu
lowtide=$1
here=$(pwd)
cargo build --release -q
go build -o target/client-go client.go
address=127.0.0.1:19400
for linger in 1000 0; do
    for client in go reqwest hyper-util tonic; do
        for bytes in 0 20000; do
            [ "$client:$bytes" != tonic:20000 ] || continue
            ./target/release/server $address 200 $linger > /dev/null &
            server=$!
            sleep 1
            case $client in
            go) result=$("$here"/target/client-go $address 15 $bytes) ;;
            *) result=$(./target/release/client $client $address 15 $bytes) ;;
            esac
            figures=$(curl -s http://$address/figures)
            echo "{\"linger_ms\":$linger,\"result\":$result,\"figures\":$figures}"
            kill $server
            wait $server || true
        done
    done
done
# A steady load: 2,000 requests/s for 15 s.
./target/release/server $address 200 1000 > /dev/null &
server=$!
sleep 1
result=$("$lowtide" load http://$address/ --http2 -c 8 -m 100 --rate 2000 -z 15s --json 2> /dev/null)
figures=$(curl -s http://$address/figures)
echo "{\"steady\":$result,\"figures\":$figures}"
kill $server
wait $server || true
