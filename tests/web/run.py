"""``make web-test``: what bundles for browsers carry is checked and run, in Node and in Chromium.

::

    python -m tests.web.run [node] [browser] [PROGRAM ...]

As :mod:`tests.mobile.run`, with the modules beside this file. The proofs need Node 20 or newer,
npm, and Chromium for those in a browser.

Exit codes: 0 all held, 1 something did not, 2 an argument is none of these.
"""

from __future__ import annotations

import sys

from tests.mobile.run import run_proofs

PLATFORMS = {
    "node": ("js_vectors", "js_types", "js_models", "js_changes", "js_shared"),
    "browser": ("js_browser", "js_bundlers", "js_memory", "js_sample", "js_bench"),
}
"""The modules with each platform's proofs, in the order in which they run."""


if __name__ == "__main__":
    sys.exit(run_proofs("web", PLATFORMS, "Prove what bundles for browsers carry."))
