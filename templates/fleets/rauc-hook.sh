# shellcheck shell=sh
# RAUC calls this once it has unpacked the archive into a slot, which is mounted then.
case "$1" in
slot-post-install)
  for manifest in "$RAUC_SLOT_MOUNT_POINT"/*/manifest.json; do
    test_bundle "${manifest%/manifest.json}"
  done
  ;;
esac
