# shellcheck shell=sh
# dpkg and opkg call this once the files are there: deb-postinst(5).
# opkg calls it for the image that Yocto makes on another machine, too: $D is that image's root.
if [ -n "${D:-}" ]; then
  echo "edgepack: @PROJECT@ is not tested: this is the image $D" >&2
elif [ "$1" = configure ]; then
  folder="${DPKG_ROOT:-}/usr/lib/edgepack/@PROJECT@"
  # All versions' files have one time, by which Python would take the former one's byte code.
  find "$folder" -name __pycache__ -prune -exec rm -rf {} +
  test_bundle "$folder"
fi
