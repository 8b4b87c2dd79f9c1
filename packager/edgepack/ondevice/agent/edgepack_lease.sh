# Take, renew, list and release leases of a device that has no Python: edgepack_lease.py in a shell.
#
# Behind edgepack_lock.sh. Run as: sh -c SOURCE sh DO ROOT OWNER PURPOSE EXCLUSIVE RESERVED TTL WAIT, with a POSIX shell, awk,
# sed, sort and a date that knows -d @SECONDS. DO is hold, reserve, release, force (releases all) or
# list. OWNER and PURPOSE are JSON; EXCLUSIVE and RESERVED true or false; TTL and WAIT hundredths of
# seconds.
#
# Files, answers and what each line on stdin does are those of edgepack_lease.py, but that silence
# ends the program up to half a minute later.
set -u
LC_ALL=C
export LC_ALL
do=$1 root=$2 owner=$3 purpose=$4 exclusive=$5 reserved=$6 ttl=$7 wait=$8
case $root in \~/*) root=$HOME/${root#\~/} ;; esac
folder=$root/lease
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
id='' held='' watcher=''
trap '[ -z "$watcher" ] || kill $watcher 2>/dev/null; [ -z "$id" ] || rm -f "$folder/$id.json" "$folder/.$id"; [ -z "$held" ] || rm -f "$held"' EXIT
trap 'exit 143' HUP INT TERM PIPE

# Hundredths of seconds of the clock that no step of the wall clock moves.
now() { sed 's/ .*//; s/\.//; s/^0*//' /proc/uptime; }

seconds() { printf '%d.%02d' $(($1 / 100)) $(($1 % 100)); }

utc() { date -u -d "@$(($(date +%s) + $1))" +%Y-%m-%dT%H:%M:%SZ; }

octal() { printf '\\%03o' "$1"; }

# Send one message: its length as 4 bytes, and the document.
say() {
  body="{\"answer\": \"$1\", \"leases\": [$2], \"reason\": \"${3:-}\"}"
  size=${#body}
  printf "\\000$(octal $((size / 65536)))$(octal $((size / 256 % 256)))$(octal $((size % 256)))%s" "$body"
}

begin() { mkdir -p "$folder" && lock "$folder" || exit 1; }

# Print the valid leases, oldest first, a line each: id, whether it is in the way of what is wished,
# whether it is the owner's reservation, and the lease up to its end. Remove the others.
list_live() {
  for file in "$folder"/*.json; do
    [ -f "$file" ] || continue
    name=${file##*/}
    BOOT=$boot OWNER=$owner awk -v id="${name%.json}" -v now="$(now)" -v exclusive="$exclusive" \
      -v reserved="$reserved" '
      function value(name, at) {
        at = index($0, "\"" name "\": ")
        if (!at) return ""
        at = substr($0, at + length(name) + 4)
        sub(/[,}].*/, "", at)
        return at
      }
      {
        if (value("id") != "\"" id "\"" || value("boot_id") != "\"" ENVIRON["BOOT"] "\"") exit
        taken = value("taken_s") + 0; left = value("expires_s") - now / 100
        if (value("taken_s") == "" || 100 * taken > now + 1 || left <= 0) exit
        own = index($0, "{\"owner\": " ENVIRON["OWNER"] ", \"purpose\": ") == 1
        kept = value("reserved") == "true"
        against = (exclusive == "true" || value("exclusive") == "true") && !(own && (kept || reserved == "true"))
        lease = substr($0, 1, index($0, ", \"boot_id\": ") - 1) ", \"taken_at\": " value("taken_at")
        printf "%.2f %s %d %d %.2f %s\n", taken, id, against, own && kept, left, lease
        found = 1
        exit
      }
      END { exit !found }' "$file" || rm -f "$file"
  done | sort -n | cut -d ' ' -f 2-
}

# Read lines of list_live and print those whose word $1 is $2 as clients get them, a comma between.
tell() {
  between=
  while read -r name against own left lease; do
    [ -n "$name" ] || continue
    case $1 in against) flag=$against ;; own) flag=$own ;; *) flag= ;; esac
    [ "$flag" = "$2" ] || continue
    printf '%s%s, "left_s": %s, "until_at": "%s"}' "$between" "$lease" "$left" "$(utc "${left%.*}")"
    between=', '
  done
}

drop() {
  while read -r name against own rest; do
    { [ "$1" = all ] || [ "$own" = 1 ]; } && [ -n "$name" ] || continue
    rm -f "$folder/$name.json"
  done
}

# Write the lease $id with its end in one step.
write() {
  now=$(now)
  record="{\"owner\": $owner, \"purpose\": $purpose, \"exclusive\": $exclusive, \"reserved\": $reserved, \"id\": \"$id\""
  printf '%s, "boot_id": "%s", "taken_at": "%s", "taken_s": %s, "expires_s": %s}\n' \
    "$record" "$boot" "$taken_at" "$(seconds "$taken")" "$(seconds $((now + ttl)))" >"$folder/.$id" &&
    mv -f "$folder/.$id" "$folder/$id.json" || exit 1
  mine="$record, \"taken_at\": \"$taken_at\", \"left_s\": $(seconds "$ttl"), \"until_at\": \"$(utc $((ttl / 100)))\"}"
}

# Wait for the lease and write it, or say who has the device.
take() {
  deadline=$(($(now) + wait)) said=-500
  while :; do
    begin
    live=$(list_live)
    against=$(printf '%s\n' "$live" | tell against 1)
    [ -n "$against" ] || break
    unlock
    if [ "$(now)" -ge "$deadline" ]; then
      say refused "$against"
      exit 0
    fi
    if [ $(($(now) - said)) -ge 500 ]; then
      say waiting "$against"
      said=$(now)
    fi
    pause
  done
  [ "$reserved" = false ] || printf '%s\n' "$live" | drop own
  id=$(sed 's/-//g' /proc/sys/kernel/random/uuid) taken=$(now) taken_at=$(utc 0)
  write
  unlock
  say taken "$mine"
}

# End this program once its lease is over: where the client is gone, stdin may never end. It keeps no
# copy of stdout, which a shell's redirection of one command does: a client sees the end of a program
# that was killed by that.
watch() {
  exec </dev/null >/dev/null 2>&1
  trap 'kill $sleeper; exit' TERM
  while [ "$end" -gt "$(now)" ]; do
    sleep 30 &
    sleeper=$!
    wait "$sleeper"
    lives $$ || exit
    found=$(sed -n 's/.*"expires_s": \([0-9]*\)\.\([0-9]*\).*/\1\2/p' "$folder/$id.json")
    end=${found:-$end}
  done
  kill $$
}

case $do in
hold)
  take
  end=$((taken + ttl))
  watch &
  watcher=$!
  while read -r _; do
    begin
    # Its file proves that nobody had the device meanwhile: a new lease removes the file.
    if [ ! -f "$folder/$id.json" ]; then
      say lost "" "it was released, or it expired and others have had the device"
      exit 0
    fi
    write
    unlock
    say renewed "$mine"
  done
  ;;
reserve)
  take
  id=
  ;;
release | force)
  begin
  live=$(list_live)
  if [ "$do" = force ]; then
    printf '%s\n' "$live" | drop all
    say released "$(printf '%s\n' "$live" | tell all '')"
    say left ""
  else
    printf '%s\n' "$live" | drop own
    say released "$(printf '%s\n' "$live" | tell own 1)"
    say left "$(printf '%s\n' "$live" | tell own 0)"
  fi
  ;;
list)
  [ ! -d "$folder" ] || begin
  say left "$(list_live | tell all '')"
  ;;
esac
