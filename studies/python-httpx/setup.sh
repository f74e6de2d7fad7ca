#!/bin/sh
# Creates the virtual environment of the study in the given directory, unless it is already there.
set -eu
HTTPX=0.28.1
venv=$1/venv
if [ -e "$venv/httpx-$HTTPX" ]; then exit 0; fi
if ! command -v python3 >/dev/null; then
    echo "python3 is missing: install it (Debian: python3)" >&2
    exit 1
fi
mkdir -p "$1"
rm -rf "$venv"
if ! python3 -m venv "$venv" 2>"$1/venv.log"; then
    tail -n 3 "$1/venv.log" >&2
    echo "python3 cannot make a virtual environment: install its venv module (Debian: python3-venv)" >&2
    exit 1
fi
if ! "$venv/bin/pip" install --quiet --disable-pip-version-check "httpx==$HTTPX"; then
    echo "httpx $HTTPX could not be installed: is the package index reachable?" >&2
    exit 1
fi
touch "$venv/httpx-$HTTPX"
