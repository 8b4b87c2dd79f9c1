"""The public functions, each under the name of its command.

::

    from edgepack.api import build, bench, load_device

    result = build(project=Path("edgepack.yaml"), targets=["raspberry-pi"])
    report = bench(result.bundles[0].bundle.path, load_device("pi5"))
"""

from edgepack.bench import bench, evaluate
from edgepack.build import build, dry_run
from edgepack.bundle import load_bundle
from edgepack.bundle.signing import require_signature, sign
from edgepack.demo import demo
from edgepack.deploying import deploy as push
from edgepack.deploying import roll_back as rollback
from edgepack.devices import load_device
from edgepack.errors import EdgepackError
from edgepack.inspection import inspect
from edgepack.results import list_reports, load_report, save_report, write_html
from edgepack.scaffold import init
from edgepack.verification import verify_here as verify

__all__ = [
    "EdgepackError",
    "bench",
    "build",
    "demo",
    "dry_run",
    "evaluate",
    "init",
    "inspect",
    "list_reports",
    "load_bundle",
    "load_device",
    "load_report",
    "push",
    "require_signature",
    "rollback",
    "save_report",
    "sign",
    "verify",
    "write_html",
]
