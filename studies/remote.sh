#!/bin/sh
# Runs lowtide on another machine over ssh, with the same arguments.
#   sh remote.sh HOST ARGUMENT…
set -eu
host=$1
shift
command=lowtide
for word in "$@"; do
    command="$command '$(printf '%s' "$word" | sed "s/'/'\\\\''/g")'"
done
exec ssh -o BatchMode=yes -- "$host" "$command"
