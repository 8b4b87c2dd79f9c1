#!/bin/sh
# Tests an installed bundle by its golden outputs, with the Python that /etc/default/edgepack names.
set -eu

# Ends with another code than 0 where no variant of the bundle in the folder $1 is right here.
test_bundle() {
  settings="${DPKG_ROOT:-}/etc/default/edgepack"
  EDGEPACK_PYTHON=
  if [ -r "$settings" ]; then
    # shellcheck disable=SC1090
    . "$settings"
  fi
  if [ -z "$EDGEPACK_PYTHON" ]; then
    EDGEPACK_PYTHON=python3
    if ! python3 -c 'import numpy, onnxruntime' 2>/dev/null; then
      echo "edgepack: $1 is not tested: python3 has no numpy and onnxruntime. Name a Python that has: EDGEPACK_PYTHON=/path in $settings" >&2
      return 0
    fi
  fi
  program="$1/harness/edgepack_harness.py"
  if [ -e "$1/edgepack_pipeline.py" ]; then
    program="$1/harness/edgepack_stages.py" # of several models
  fi
  "$EDGEPACK_PYTHON" -B "$program" select --bundle "$1" >/dev/null
}

