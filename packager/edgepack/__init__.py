"""edgepack: one ONNX model in, bundles out that run well, and provably, on edge devices.

The public functions are in :mod:`edgepack.api`, under the names of the commands.
"""

import os
import sys

# Installers refuse an older Python; a checkout on the path, or a forced install, gets here.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.stderr.write(
        "error: edgepack needs Python 3.11 or newer, and this is %d.%d: %s\n"  # noqa: UP031
        "  hint: install it for a newer one, as in: pipx install --python python3.12 edgepack\n"
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )
    raise SystemExit(5)

# onnxruntime 1.29 and newer report usage unless this is set before the library loads
# (onnxruntime/Privacy.md in the 1.31.1 wheel). Child processes inherit it.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__version__ = "0.1.0"
