"""``make service-test``: a bundle with ``--service`` as an image, a container and a systemd unit.

::

    sudo .venv/bin/python -m tests.service.run [written] [container] [PROGRAM ...]

As :mod:`tests.mobile.run`, with the modules beside this file. The image is made without a daemon
(buildah), on a Debian that is made once and kept in ``.machines``, from wheels that are kept in
``.service``; it runs with a read-only root in namespaces of its own (runc).

Exit codes: 0 all held, 1 something did not, 2 an argument is none of these, 3 this machine cannot
run it.
"""

from __future__ import annotations

import os
import shutil
import sys

from edgepack.base.processes import run_program

from tests.mobile.run import run_proofs
from tests.service.image import PYTHON
from tests.support.reports.proof_report import report

PLATFORMS = {"written": ("unit", "compose"), "container": ("systemd", "container")}
"""The modules with each platform's proofs, in the order in which they run."""
PROGRAMS = {
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "runc": "runc",
    "iproute2": "ip",
    "systemd": "systemd-analyze",
    "util-linux": "nsenter",
}
"""A Debian package, and a program of it."""
CANNOT_RUN_EXIT = 3


def main() -> int:
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if why := explain_unable():
        sys.stdout.write(f"service: cannot run here: {why}\n")
        report("service", [], 0.0, not_run=why)
        return CANNOT_RUN_EXIT
    return run_proofs("service", PLATFORMS, "Prove what bundles carry to answer over HTTP.")


def explain_unable() -> str:
    """Return why this machine cannot run it; empty where it can."""
    missing = [package for package, program in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        return f"missing Debian packages: apt-get install {' '.join(missing)}"
    if os.geteuid() != 0:
        return "it makes a root file system and namespaces, so it needs root"
    argv = ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    found = run_program(argv, timeout_s=60).text.strip()
    if found != PYTHON:
        return f"/usr/bin/python3 is {found or 'not there'}, and the wheels are for {PYTHON}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
