#!/bin/sh
# dpkg calls this before the files go: deb-prerm(5). It knows nothing of byte code, which root's programs leave.
set -eu
folder="${D:-${DPKG_ROOT:-}}/usr/lib/edgepack/@PROJECT@"
if [ -d "$folder" ]; then
  find "$folder" -name __pycache__ -prune -exec rm -rf {} +
fi
