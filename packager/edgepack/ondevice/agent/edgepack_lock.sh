# A lock between programs of a device that may have no flock: a link whose text says who has it.
#
# This goes before edgepack_agent.sh and edgepack_lease.sh, which remove $held when they end.

# Whether process $1 is one of these programs, whose command lines have this text: numbers are given
# again, after a reboot the same ones.
lives() {
  kill -0 "$1" 2>/dev/null && { [ ! -e /proc/self/cmdline ] || grep -q edgepack-lock "/proc/$1/cmdline" 2>/dev/null; }
}

# Not every sleep knows parts of a second.
pause() { sleep 0.2 2>/dev/null || sleep 1; }

# Wait until this program has the lock of the folder $1; where no link can be made, end it.
lock() {
  tries=0
  until ln -s "$$.$(date +%s)" "$1/.held" 2>/dev/null; do
    holder=$(readlink "$1/.held")
    # One with this program's own number is from before a reboot.
    if [ "${holder%%.*}" != $$ ] && lives "${holder%%.*}"; then
      tries=0
    # Whoever makes this folder may remove the link of a program that has ended, and nobody else: by
    # the time that another would, it may be the next one's.
    elif [ -n "$holder" ] && mkdir "$1/.ended-$holder" 2>/dev/null; then
      [ "$(readlink "$1/.held")" != "$holder" ] || rm -f "$1/.held"
      rmdir "$1/.ended-$holder"
      continue
    fi
    tries=$((tries + 1))
    [ $tries -lt 9 ] || { echo "cannot make the link $1/.held; remove .ended-* there" >&2; exit 1; }
    pause
  done
  held=$1/.held
}

unlock() { rm -f "$held"; held=; }
