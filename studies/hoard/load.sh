# The load: makes the subject start, and waits until it has freed everything.
set -eu
pid=$LOWTIDE_SUBJECT_PID
kill -USR1 "$pid"
until [ "$(cat "/proc/$pid/comm")" = drained ]; do sleep 0.05; done
