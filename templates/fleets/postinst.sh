# shellcheck shell=sh
# dpkg calls this once the files are there: deb-postinst(5).
if [ "$1" = configure ]; then
  folder="${DPKG_ROOT:-}/usr/lib/edgepack/@PROJECT@"
  # All versions' files have one time, by which Python would take the former one's byte code.
  find "$folder" -name __pycache__ -prune -exec rm -rf {} +
  test_bundle "$folder"
fi
