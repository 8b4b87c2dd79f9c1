# Print what this device's own histories say: sh -c SOURCE sh ROOT LINES
#
# First the device's time; then of each project under ROOT "project NAME", "current LINK", a line
# "SHA256  ./RELEASE/manifest.json" of each release, and the last LINES lines of its history. It needs
# a POSIX shell, changes nothing, and follows no link but "current", whose text it prints.
LC_ALL=C
export LC_ALL
root=$1 lines=$2
case $root in \~/*) root=$HOME/${root#\~/} ;; esac
date -u +%Y-%m-%dT%H:%M:%SZ
[ -e "$root" ] || exit 0
cd "$root" || exit 1
for name in */releases; do
  name=${name%/releases}
  [ -f "$name/history.jsonl" ] && [ ! -L "$name/history.jsonl" ] || continue
  printf 'project %s\n' "$name"
  printf 'current %s\n' "$(readlink "$name/current")"
  (cd "$name/releases" && sha256sum ./*/manifest.json 2>/dev/null)
  tail -n "$lines" "$name/history.jsonl" || exit 1
  printf '\n'
done
