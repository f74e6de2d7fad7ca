#!/bin/sh
# Draws all pictures of the posts beside ours, from the records in studies/ and bench/.
set -eu
cd "$(dirname "$0")/../.."
draw() { python3 docs/documents/draw.py "$@"; }

draw --style streams docs/documents/million-streams.svg studies/million-streams/document \
    bench/million-streams/record-own.tar.gz \
    glibc mimalloc2 glibc/refresh mimalloc2/refresh
million=bench/frameworks/record-million
draw docs/documents/frameworks.svg studies/frameworks/document \
    $million-glibc.tar.gz,$million-jemalloc.tar.gz,$million-mimalloc2.tar.gz \
    glibc/axum jemalloc/axum mimalloc2/axum glibc/actix glibc/salvo
draw --own-scale docs/documents/containers.svg studies/containers/document \
    bench/containers/record-containers.tar.gz \
    glibc/map glibc/map-of-vec glibc/tcp glibc/tcp-runtime-each
draw --style process --own-time --together docs/documents/python-httpx.svg studies/python-httpx/document \
    bench/python-httpx/record-proxies.tar.gz,bench/python-httpx/record-proxies-jemalloc.tar.gz \
    glibc mimalloc2 jemalloc tcmalloc
draw --style node --seconds 65 docs/documents/node-tls.svg studies/node-tls/document-1000 \
    bench/node-tls/record-1000-5.3.0.tar.gz \
    glibc/node-5.3.0
python3 docs/documents/periods.py docs/documents/periods.svg bench/hoard/periods.jsonl
