# Take a bundle on a device that has no Python, whole or not at all: whole files, no chunks.
#
# Run as: sh -c SOURCE sh OPERATION ROOT PROJECT DIGEST ..., with a POSIX shell, tar and sha256sum.
# stdin ends with what the operation reads.
#
# ask ROOT PROJECT DIGEST        stdin: lines "SHA256  PATH". Prints "have" and the release's path
#                                if the release is there with every byte, else the paths of the
#                                files that no release has, and "." at the end.
# push ROOT PROJECT DIGEST THEN KEEP KIB
#                                KIB is 0 if the answer was "have". Else stdin: a tar stream of
#                                ".files" (those lines), ".modes" (the paths of what can be run) and
#                                the files that were missing. Nothing gets its name under releases/
#                                before every hash was checked.
# switch ROOT PROJECT RELEASE ACTION KEEP
#                                RELEASE is "-" for the one before; ACTION is for the history.
#
# push and switch print "path PATH" and "from RELEASE". Exit codes: 0 done, 2 what came is not
# what was announced, 28 no space left, 1 other.
set -u
LC_ALL=C
export LC_ALL
operation=$1 root=$2 project=$3 given=$4
case $root in "~/"*) root=$HOME/${root#"~/"} ;; esac
base=$root/$project
release=$(printf %.16s "$given")

fail() {
  code=$1
  shift
  printf '%s\n' "$*" >&2
  exit "$code"
}

hash_of() { sha256sum "$1" 2>/dev/null | cut -d ' ' -f 1; }

current() {
  name=$(readlink current 2>/dev/null) || name=
  printf %s "${name##*/}"
}

# Whether the release in $1 has every byte. The manifest's own hash is its name.
is_whole() {
  [ -f "$1/manifest.json" ] && [ -f "$1/manifest.json.sha256" ] && [ -f "../chunks/$2.files" ] || return 1
  [ "$(hash_of "$1/manifest.json" | cut -c 1-16)" = "$2" ] || return 1
  (cd "$1" && sha256sum -c - >/dev/null 2>&1) <"../chunks/$2.files"
}

# Append to the history: each line has the hash of the one before.
record() {
  previous=
  [ -s history.jsonl ] && previous=$(tail -n 1 history.jsonl | sha256sum | cut -d ' ' -f 1)
  # A line that a crash has cut off stays one of its own.
  [ -z "$(tail -c 1 history.jsonl 2>/dev/null)" ] || echo >>history.jsonl
  before=null
  [ -n "$3" ] && before="\"$3\""
  printf '{"previous": "%s", "time": "%s", "action": "%s", "release": "%s", "from": %s}\n' \
    "$previous" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$1" "$2" "$before" >>history.jsonl
}

# Point "current" at a release in one rename.
switch_to() {
  was=$(current)
  if [ "$was" != "$2" ]; then
    rm -f .current-$$
    ln -s "releases/$2" .current-$$ || fail 1 "cannot make a link in $base"
    # Plain mv would put the link into the folder that the old one names.
    mv -T .current-$$ current 2>/dev/null || mv -h .current-$$ current 2>/dev/null || {
      rm -f .current-$$
      fail 1 "mv can replace no link here: install coreutils, or a busybox whose mv knows -T"
    }
    sync
    record "$1" "$2" "$was"
  fi
}

# Remove all but the last $2 releases, the one in $1 and the current one being the first of them.
remove_old() {
  now=$(current)
  kept=0 seen=
  for name in "$1" "$now" $(ls -t releases); do
    case " $seen " in *" $name "*) continue ;; esac
    seen="$seen $name"
    kept=$((kept + 1))
    [ "$kept" -le "$2" ] || [ "$name" = "$now" ] ||
      rm -rf "releases/$name" "chunks/$name.files" "chunks/$name.json"
  done
}

case $operation in
ask)
  mkdir -p "$base/releases" "$base/chunks" || exit 1
  cd "$base/releases" || exit 1
  cat >../.asked-$$
  signed=$(sed -n 's/  manifest\.json\.sig$//p' ../.asked-$$)
  if is_whole "$release" "$release" &&
    { [ -z "$signed" ] || [ "$(hash_of "$release/manifest.json.sig")" = "$signed" ]; }; then
    rm -f ../.asked-$$
    printf 'have\n%s\n' "$base/releases/$release"
    exit 0
  fi
  find . -type f ! -path './.partial-*' -exec sha256sum {} + | cut -d ' ' -f 1 | sort -u >../.have-$$
  while read -r sha path; do
    grep -q "^$sha\$" ../.have-$$ || printf '%s\n' "$path"
  done <../.asked-$$
  rm -f ../.have-$$ ../.asked-$$
  printf '.\n'
  ;;
push)
  then=$5 keep=$6 kib=$7
  cd "$base/releases" || exit 1
  if [ "$kib" -gt 0 ]; then
    free=$(df -Pk . | tail -n 1 | awk '{print $4}')
    [ "$free" -ge "$kib" ] || fail 28 "$kib KiB are needed, $free are free"
    partial=.partial-$release-$$
    rm -rf "$partial"
    mkdir "$partial" || exit 1
    trap 'rm -rf "$base/releases/$partial"' EXIT
    trap 'exit 143' HUP INT TERM
    tar -xf - -C "$partial" || {
      [ "$(df -Pk . | tail -n 1 | awk '{print $4}')" -gt 64 ] || fail 28 "the disk is full"
      fail 2 "the stream ends too early"
    }
    [ -f "$partial/.files" ] && [ -f "$partial/.modes" ] || fail 2 "the stream has no list of files"
    find . -type f ! -path './.partial-*' -exec sha256sum {} + >../.have-$$
    while read -r sha path; do
      case /$path/ in */../* | */./* | *//*) fail 2 "the path $path leaves the bundle" ;; esac
      if [ ! -e "$partial/$path" ]; then
        other=$(grep "^$sha " ../.have-$$ | head -n 1 | cut -c 67-)
        [ -n "$other" ] || fail 2 "$path did not come"
        mkdir -p "$partial/$path" && rmdir "$partial/$path" || exit 1
        grep -Fqx "$path" "$partial/.modes" && runs=yes || runs=no
        [ -x "$other" ] && ran=yes || ran=no
        # A link has the mode of the other release's file, which stays as it is.
        { [ $runs = $ran ] && ln "$other" "$partial/$path" 2>/dev/null; } ||
          cp "$other" "$partial/$path" || exit 28
      fi
    done <"$partial/.files" || exit $?
    rm -f ../.have-$$
    [ "$(hash_of "$partial/manifest.json")" = "$given" ] || fail 2 "the manifest is not the one that was announced"
    (cd "$partial" && sha256sum -c .files >/dev/null 2>&1) || fail 2 "the hash of a file is wrong"
    find "$partial" -type f -links 1 -exec chmod 644 {} +
    while read -r path; do
      find "$partial/$path" -links 1 -exec chmod 755 {} + || exit 1
    done <"$partial/.modes" || exit $?
    mv "$partial/.files" "../chunks/$release.files"
    rm -f "$partial/.modes"
    sync
    [ -e "$release" ] && mv "$release" ".partial-gone-$$"
    mv "$partial" "$release" || exit 1
    trap - EXIT
    # What others left an hour ago; younger ones may still be written.
    find . -maxdepth 1 -name '.partial-*' -mmin +60 -exec rm -rf {} + 2>/dev/null
    rm -rf ".partial-gone-$$"
    cd ..
    record push "$release" ""
  else
    cat >/dev/null
    cd ..
  fi
  was=$(current)
  [ "$then" = switch ] && switch_to switch "$release"
  remove_old "$release" "$keep"
  printf 'path %s\nfrom %s\n' "$base/releases/$release" "$was"
  ;;
switch)
  action=$5 keep=$6
  cd "$base" 2>/dev/null && { [ "$action" = switch ] || [ -n "$(current)" ]; } ||
    fail 2 "no release of $project is current here"
  was=$(current)
  goal=$given
  if [ "$goal" = - ]; then
    goal=$(grep '"action": "switch", "release": "'"$was"'"' history.jsonl | tail -n 1 | sed -n 's/.*"from": "\([0-9a-f]*\)".*/\1/p')
    [ -n "$goal" ] || fail 2 "no release was current before $was"
  fi
  (cd releases && is_whole "$goal" "$goal") || fail 2 "the release $goal is not here any more, or not whole"
  switch_to "$action" "$goal"
  remove_old "$goal" "$keep"
  printf 'path %s\nfrom %s\n' "$base/releases/$goal" "$was"
  ;;
esac
