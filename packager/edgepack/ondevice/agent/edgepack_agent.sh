# Take a bundle on a device that has no Python, whole or not at all: whole files, no chunks.
#
# Behind edgepack_lock.sh. Run as: sh -c SOURCE sh OPERATION ROOT PROJECT DIGEST ..., with a POSIX
# shell, tar and sha256sum. stdin ends with what the operation reads.
#
# ask ROOT PROJECT DIGEST        stdin: lines "SHA256  PATH". Prints "have" and the release's path
#                                if the release is there with every byte, else the paths of the
#                                files that no release has, and "." at the end.
# push ROOT PROJECT DIGEST THEN KEEP KIB BY
#                                KIB is 0 if the answer was "have". Else stdin: a tar stream of
#                                "files" (those lines), "modes" (the paths of what can be run) and,
#                                below "new", the files that were missing. Nothing gets its name
#                                under releases/ before every hash was checked.
# switch ROOT PROJECT RELEASE ACTION KEEP BY
#                                RELEASE is "-" for the one before; ACTION and BY, a
#                                word, are for the history.
#
# push and switch print "path PATH" and "from RELEASE". Exit codes: 0 done, 2 what came is not
# what was announced, 28 no space left, 76 somebody else has removed a release that is needed,
# 1 other.
set -u
umask 022 # files have the modes of the stream
LC_ALL=C
export LC_ALL
operation=$1 root=$2 project=$3 given=$4
case $root in \~/*) root=$HOME/${root#\~/} ;; esac
base=$root/$project
release=$(printf %.16s "$given")

# What this process leaves has its number at the end of the name.
held=
trap 'rm -rf "$held" "$base"/.[a-z]*-$$ "$base"/releases/.partial-*-$$' EXIT
trap 'exit 143' HUP INT TERM PIPE

fail() {
  code=$1
  shift
  printf '%s\n' "$*" >&2
  exit "$code"
}

hash_of() { sha256sum "$1" 2>/dev/null | cut -d ' ' -f 1; }

current() {
  name=
  [ ! -L current ] || name=$(readlink current) || exit 1
  printf %s "${name##*/}"
}

# The hashes and paths of all files in releases. Not every find runs programs: OpenWrt's does not.
hash_all() {
  find . -type f ! -path './.partial-*' | while IFS= read -r name; do sha256sum "$name"; done
}

# Whether the release in $1 has every byte. The manifest's own hash is its name.
is_whole() {
  [ -f "$1/manifest.json" ] && [ -f "$1/manifest.json.sha256" ] && [ -f "../chunks/$2.files" ] || return 1
  [ "$(hash_of "$1/manifest.json" | cut -c 1-16)" = "$2" ] || return 1
  (cd "$1" && sha256sum -c - >/dev/null 2>&1) <"../chunks/$2.files"
}

# Append to the history: each line has the hash of the one before. A program that is killed, as for
# want of memory, must not be taken for one that found nothing.
record() {
  previous=
  if [ -s history.jsonl ]; then
    tail -n 1 history.jsonl >.last-$$ && ends=$(wc -l <.last-$$) && previous=$(hash_of .last-$$) &&
      [ ${#previous} = 64 ] || fail 1 "cannot read $base/history.jsonl"
    # A line that a crash has cut off, or of which a power loss has left zeros, stays one of its own.
    [ "$ends" -eq 1 ] || echo >>history.jsonl
  fi
  before=null
  [ -n "$3" ] && before="\"$3\""
  printf '{"previous": "%s", "time": "%s", "action": "%s", "release": "%s", "from": %s, "by": "%s"}\n' \
    "$previous" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$1" "$2" "$before" "$by" >>history.jsonl ||
    fail 1 "cannot write $base/history.jsonl"
}

# Plain mv would put a link into the folder that the other one names.
replace() { mv -T "$1" "$2" 2>/dev/null || mv -h "$1" "$2" 2>/dev/null; }

# Point "current" at a release in one rename.
switch_to() {
  was=$(current) || fail 1 "cannot read $base/current"
  if [ "$was" != "$2" ]; then
    ln -s releases .next-$$ && ln -s "releases/$2" .current-$$ || fail 1 "cannot make a link in $base"
    replace .current-$$ .next-$$ ||
      fail 1 "mv can replace no link here: install coreutils, or a busybox whose mv knows -T"
    # The history comes first: if this is cut off in between, the earlier release is still current.
    record "$1" "$2" "$was"
    sync
    replace .next-$$ current || fail 1 "cannot replace $base/current"
  fi
}

# Remove what processes that have ended left.
remove_dead() {
  for name in "$base"/.[a-z]*-* "$base"/releases/.partial-*; do
    lives "${name##*-}" || rm -rf "$name"
  done
}

# Whether there is room. Where df cannot tell, as in a chroot, tar finds out.
fits() {
  free=$(df -Pk . 2>/dev/null | awk 'NR == 2 {print $4}')
  [ "${free:-$kib}" -ge "$kib" ]
}

# Remove what processes that have ended left, and all but the last $2 releases: the one in $1, the
# current one, then those that the history names last. Clocks do not count.
remove_old() {
  sync
  now=$(current) || fail 1 "cannot read $base/current"
  kept=0 seen=
  for name in "$1" "$now" $(tail -n 99 history.jsonl | sed -n 's/.*"release": "\([0-9a-f]*\)".*/\1/p' | sed '1!G;h;$!d') $(ls releases); do
    case " $seen " in *" $name "*) continue ;; esac
    [ ${#name} = 16 ] && [ -d "releases/$name" ] || continue
    seen="$seen $name"
    kept=$((kept + 1))
    [ "$kept" -le "$2" ] || [ "$name" = "$now" ] || mv "releases/$name" "releases/.partial-$name-gone"
  done
  remove_dead
  for name in chunks/*; do
    at=releases/${name##*/}
    [ -d "${at%%.*}" ] || rm -f "$name"
  done
}

case $operation in
ask)
  for name in awk cut find grep sed sha256sum sort tar; do
    command -v $name >/dev/null || fail 1 "there is neither $name nor Python: install one of them"
  done
  mkdir -p "$base/releases" "$base/chunks" || exit 1
  cd "$base/releases" || exit 1
  cat >../.asked-$$ || exit 1
  signed=$(sed -n 's/  manifest\.json\.sig$//p' ../.asked-$$)
  if is_whole "$release" "$release" &&
    { [ -z "$signed" ] || [ "$(hash_of "$release/manifest.json.sig")" = "$signed" ]; }; then
    printf 'have\n%s\n' "$base/releases/$release"
    exit 0
  fi
  hash_all | cut -d ' ' -f 1 | sort -u >../.have-$$
  while IFS= read -r line; do
    grep -q "^${line%%  *}\$" ../.have-$$ || printf '%s\n' "${line#*  }"
  done <../.asked-$$
  printf '.\n'
  ;;
push)
  then=$5 keep=$6 kib=$7 by=$8
  cd "$base/releases" || exit 1
  if [ "$kib" -gt 0 ]; then
    # A push that broke may have left what fills the disk.
    fits || remove_dead
    fits || fail 28 "$kib KiB are needed, $free are free"
    partial=.partial-$release-$$
    new=$partial/new
    rm -rf "$partial"
    mkdir "$partial" || exit 1
    tar -xf - -C "$partial" || fail 2 "the stream ends too early"
    [ -f "$partial/files" ] && [ -f "$partial/modes" ] || fail 2 "the stream has no list of files"
    hash_all >../.have-$$
    while IFS= read -r line; do
      sha=${line%%  *} path=${line#*  }
      case /$path/ in */../* | */./* | *//*) fail 2 "the path $path leaves the bundle" ;; esac
      if [ ! -e "$new/$path" ]; then
        other=$(grep "^$sha " ../.have-$$ | head -n 1 | cut -c 67-)
        # Whoever pushes or goes back meanwhile may remove the release that had it.
        [ -e "${other:-/-}" ] || fail 76 "$path did not come, and no release has it"
        mkdir -p "$new/$path" && rmdir "$new/$path" || exit 1
        grep -Fqxe "$path" "$partial/modes" && mode=755 || mode=644
        [ -x "$other" ] && had=755 || had=644
        # A link has the mode of the other release's file, which stays as it is.
        { [ "$mode" = "$had" ] && ln "$other" "$new/$path" 2>/dev/null; } ||
          { cp "$other" "$new/$path" && chmod "$mode" "$new/$path"; } || { [ -e "$other" ] && exit 1 || fail 76 "$path is in no release any more"; }
      fi
    done <"$partial/files" || exit $?
    [ "$(hash_of "$new/manifest.json")" = "$given" ] || fail 2 "the manifest is not the one that was announced"
    (cd "$new" && sha256sum -c ../files >/dev/null 2>&1) || fail 2 "the hash of a file is wrong"
    lock "$base"
    mv "$partial/files" "../chunks/$release.files" || exit 1
    sync
    # Another push may have brought it meanwhile.
    if is_whole "$release" "$release"; then
      cd ..
    else
      [ -e "$release" ] && mv "$release" ".partial-gone-$$"
      mv "$new" "$release" || exit 1
      cd ..
      record push "$release" ""
    fi
  else
    cat >/dev/null
    lock "$base"
    [ -d "$release" ] || fail 76 "the release $release is not here any more"
    cd ..
  fi
  was=$(current) || fail 1 "cannot read $base/current"
  [ "$then" = switch ] && switch_to switch "$release"
  remove_old "$release" "$keep"
  printf 'path %s\nfrom %s\n' "$base/releases/$release" "$was"
  ;;
switch)
  action=$5 keep=$6 by=$7
  cd "$base" 2>/dev/null && { [ "$action" = switch ] || [ -n "$(current)" ]; } ||
    fail 2 "no release of $project is current here"
  lock "$base"
  was=$(current) || fail 1 "cannot read $base/current"
  goal=$given
  if [ "$goal" = - ]; then
    # grep would take a file that has zeros for a binary one.
    goal=$(sed -n 's/.*"action": "switch", "release": "'"$was"'", "from": "\([0-9a-f]*\)".*/\1/p' history.jsonl | tail -n 1)
    [ -n "$goal" ] || fail 2 "no release was current before $was, which stays current"
  fi
  (cd releases && is_whole "$goal" "$goal") || fail 2 "the release $goal is not here any more, or not whole"
  switch_to "$action" "$goal"
  remove_old "$goal" "$keep"
  printf 'path %s\nfrom %s\n' "$base/releases/$goal" "$was"
  ;;
esac
