# The load: has the subject begin, waits until it has freed everything, and, in the treatment that is
# called so, gives back once.
set -eu
pid=$LOWTIDE_SUBJECT_PID
kill -USR1 "$pid"
until [ "$(cat "/proc/$pid/comm")" = drained ]; do sleep 0.05; done
case $LOWTIDE_TREATMENT in
*/release)
    sleep 2 # so that what was held is seen
    exec "$LOWTIDE" release "$pid"
    ;;
esac
