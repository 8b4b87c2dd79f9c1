"""``edgepack demo``: the bundled example, built, pushed over real SSH, measured and reported."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.progress import Progress, Silent
from edgepack.base.resources import find_example_dir
from edgepack.builder.build import BuildResult, build
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.push import push
from edgepack.devices.inventory import Device, SshEntry
from edgepack.measure.bench.run import bench
from edgepack.project.profile import find_host_target
from edgepack.records.run import RunReport
from edgepack.results.page.html import write_html
from edgepack.results.store.store import ResultsStore, keep_report

PRESET = "quick"
STORE = "results.sqlite"


@dataclass(frozen=True)
class Demo:
    """What the demo made."""

    build: BuildResult
    report: RunReport
    html: Path


def demo(out: Path, *, preset: str = PRESET, progress: Progress | None = None) -> Demo:
    """Build the example for this machine, push it to a local SSH server, measure it there.

    The server listens on 127.0.0.1, takes one throw-away key, and is gone when this returns. The
    run is kept in a separate store, ``out/results.sqlite``: the user's history has no demos.

    Raises:
        EdgepackError: As any of the steps.
    """
    progress = progress or Silent()
    progress.note("building examples/digits for this machine")
    built = build(
        project=find_example_dir() / "edgepack.yaml",
        targets=[find_host_target()],
        out=out,
        progress=progress,
    )
    built.require_all()
    bundle = built.bundles[0].bundle
    with (
        tempfile.TemporaryDirectory(prefix="edgepack-demo-") as root,
        LoopbackServer(Path(root)) as server,
    ):
        progress.note(f"SSH server on {server.host}:{server.port}")
        device = make_demo_device(server)
        pushed = push(bundle.path, device, progress=progress)
        progress.note(f"pushed to {pushed.path}")
        report = bench(bundle.path, device, preset=preset, progress=progress)
    keep_report(ResultsStore(f"sqlite:///{(out / STORE).absolute()}"), report)
    html = write_html([report], out / "report.html")
    return Demo(built, report, html)


def make_demo_device(server: LoopbackServer) -> Device:
    """Return the inventory entry of a loopback server: its key pinned, the user's config unread."""
    import sys

    entry = SshEntry(
        transport="ssh",
        host=server.host,
        port=server.port,
        user=server.user,
        key=str(server.client_key_path),
        host_key=server.host_key_fingerprint,
        ssh_config="/dev/null",
        python=sys.executable,
        target=find_host_target(),
    )
    return Device("demo", entry)
