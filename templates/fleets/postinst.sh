# shellcheck shell=sh
# dpkg calls this once the files are there: deb-postinst(5).
if [ "$1" = configure ]; then
  test_bundle "${DPKG_ROOT:-}/usr/lib/edgepack/${DPKG_MAINTSCRIPT_PACKAGE#edgepack-}"
fi
