#!/bin/sh
# Draws all pictures of the documents beside ours, from the records in studies/ and bench/.
set -eu
cd "$(dirname "$0")/../.."
draw() { python3 docs/documents/draw.py "$@"; }

draw docs/documents/million-streams.svg studies/million-streams/document \
    bench/2026-11-25-million-streams/record-own.tar.gz \
    glibc mimalloc2 glibc/refresh mimalloc2/refresh
million=bench/2026-11-25-frameworks/record-million
draw docs/documents/frameworks.svg studies/frameworks/document \
    $million-glibc.tar.gz,$million-jemalloc.tar.gz,$million-mimalloc2.tar.gz \
    glibc/axum jemalloc/axum mimalloc2/axum glibc/actix glibc/salvo
draw --own-scale docs/documents/containers.svg studies/containers/document \
    bench/2026-11-22-frameworks/record-containers.tar.gz \
    glibc/map glibc/map-of-vec glibc/tcp glibc/tcp-runtime-each
draw docs/documents/python-httpx.svg studies/python-httpx/document \
    bench/2026-11-25-python-httpx/record-six.tar.gz \
    glibc mimalloc2 jemalloc tcmalloc
draw --seconds 65 docs/documents/node-tls.svg studies/node-tls/document-1000 \
    bench/2026-11-25-node-tls/record-1000-5.3.0.tar.gz \
    glibc/node-5.3.0
python3 docs/documents/periods.py docs/documents/periods.svg bench/2026-11-25-hoard/periods.jsonl
