# Builds the subject of the study in the given directory.
#   sh setup.sh DIRECTORY
set -eu
home=$(cd "$(dirname "$0")" && pwd)
subject=$home/../../subjects/hoard/hoard.c
older=$home/../../target/glibc-bullseye/lib
mkdir -p "$1"
program=$1/hoard
compiler=${CC:-cc}
if ! command -v "$compiler" > /dev/null; then
    echo "there is no C compiler \`$compiler\`: install one (Debian: build-essential), or name it by CC=" >&2
    exit 1
fi
# A program that is linked with an older C library also runs with a newer one, but not the reverse.
if [ -e "$older/libc.so.6" ]; then
    exec "$compiler" -O2 -pthread -nodefaultlibs -o "$program" "$subject" \
        "$older/libpthread.so.0" "$older/libc.so.6" -lgcc -Wl,-rpath-link,"$older"
fi
exec "$compiler" -O2 -pthread -o "$program" "$subject"
