"""What ``relay: bastion`` saves where boards are behind a jump host with a slow link.

A bundle of 45 MB goes to eight boards; the link to their jump host is a proxy on 127.0.0.1 with 10
ms round trip and 12.5 MB/s. Both hosts are real OpenSSH servers and share this machine's cores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measuring import EDGEPACK, Row, own_folders, process_seconds, scratch
from tests.bench.pushing import LINK, write_versions
from tests.support.servers.fault_proxy import FaultProxy
from tests.support.servers.jump_host import site_in
from tests.support.servers.openssh_server import find_sshd

BOARDS = 8


def measure() -> Iterator[Row]:
    """Yield how long both ways take, and what crosses the link."""
    if find_sshd() is None:
        sys.exit("there is no sshd: apt-get install openssh-server")
    with scratch() as folder:
        bundle = write_versions(folder / "bundles")["fresh"]
        size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
        plain_s, plain = _push(bundle, folder / "plain", None)
        relayed_s, relayed = _push(bundle, folder / "relayed", "bastion")
    yield Row(
        f"push of {size / 1e6:.0f} MB to {BOARDS} boards behind one link, by a relay",
        "1 run each",
        f"{plain_s / relayed_s:.1f}x",
        "each byte crosses once",
        f"{plain_s:.1f} s and {plain / size:.2f} bundles over the link without,"
        f" {relayed_s:.1f} s and {relayed / size:.2f} with",
    )


def _push(bundle: Path, folder: Path, relay: str | None) -> tuple[float, int]:
    """Return the seconds that a push to all boards took, and the bytes over the link."""
    folder.mkdir()
    with (
        site_in(folder) as site,
        FaultProxy(site.gate.port, to_server=LINK, to_client=LINK) as link,
    ):
        site.write_config(link.port)
        devices = {f"board-{number}": site.entry(number, relay=relay) for number in range(BOARDS)}
        inventory = {"schema_version": 1, "devices": devices}
        folders = own_folders(folder / "own")
        config = Path(folders["XDG_CONFIG_HOME"]) / "edgepack"
        config.mkdir(parents=True)
        (config / "devices.yaml").write_text(json.dumps(inventory))
        argv = [EDGEPACK, "push", str(bundle), "--device", "all", "--no-self-test"]
        spent = process_seconds(argv, folders)
        return spent, link.forwarded["to-server"]
