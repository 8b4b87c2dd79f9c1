# Run a command in a session of its own, and kill it when nobody listens any more: what
# edgepack_supervisor.py does, for devices without Python.
#
# Run as: sh -c SOURCE sh COMMAND..., with a POSIX shell and setsid. The command's stdin is empty;
# the end of ours kills what it has started. The exit code is the command's, as a shell says it.
set -u
export ORT_DISABLE_TELEMETRY=1
exec 3<&0
setsid "$@" </dev/null 3<&- &
command=$!

# "kill -s TERM -- -PID" is POSIX's way, which busybox does not take.
kill_group() {
  # Until setsid has made the group, there is only the process.
  until kill -TERM "-$command" 2>/dev/null; do
    kill -0 "$command" 2>/dev/null || return 0
    sleep 1
  done
  for _ in 1 2 3 4 5; do
    kill -0 "-$command" 2>/dev/null || return 0
    sleep 1
  done
  kill -KILL "-$command" 2>/dev/null
}

{
  reader=
  trap 'kill $reader; exit' TERM
  cat <&3 &
  reader=$!
  wait "$reader"
  kill_group
} >/dev/null 2>&1 &
watcher=$!
trap 'kill_group; exit 143' HUP INT TERM
wait "$command"
code=$?
kill "$watcher" 2>/dev/null
kill_group
# Where the user may not enter a folder of PATH, setsid says 126 of what is nowhere.
[ "$code" != 126 ] || command -v "$1" >/dev/null 2>&1 || code=127
exit "$code"
