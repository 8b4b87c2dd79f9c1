"""``--help`` of every command against ``python -c "import typer"``, and a push of nothing new.

All are whole processes. ``push`` goes to a real OpenSSH on this machine, against ``ssh BOARD true``
and ``rsync -a`` of the same folder, which is there already.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from edgepack.base.statistics import median

from tests.bench.measuring import (
    EDGEPACK,
    Row,
    interleaved,
    own_folders,
    process_seconds,
    ratio_text,
    scratch,
)
from tests.docs.write_commands import command_names
from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.openssh_server import OpenSshServer, find_sshd

PAIRS = 30
FEW = 5
PUSHES = 15


def measure() -> Iterator[Row]:
    """Yield a row for the help of all commands, of the slowest one, and for each peer of a push."""
    typer = [sys.executable, "-c", "import typer"]
    process_seconds(typer)  # byte code and file cache are warm for both
    yield _row("edgepack --help / import typer", ["--help"], typer, PAIRS)
    names = command_names()
    found = {name: _pairs([*name.split(), "--help"], typer, FEW) for name in names}
    slowest = max(names, key=lambda name: median([ours / theirs for ours, theirs in found[name]]))
    what = f"the slowest --help of {len(names)} commands ({slowest}) / import typer"
    yield _row(what, [*slowest.split(), "--help"], typer, PAIRS)
    if find_sshd() is None:
        return
    before = dict(os.environ)
    with scratch() as folder, OpenSshServer(folder / "sshd") as server:
        os.environ.update(own_folders(folder))
        try:
            yield from _measure_push(folder, server)
        finally:
            os.environ.clear()
            os.environ.update(before)


def _pairs(words: list[str], other: list[str], count: int) -> list[tuple[float, float]]:
    ours = [EDGEPACK, *words]
    process_seconds(ours)
    return interleaved(lambda: process_seconds(ours), lambda: process_seconds(other), count)


def _row(what: str, words: list[str], typer: list[str], count: int) -> Row:
    pairs = _pairs(words, typer, count)
    ours, theirs = (median(side) for side in zip(*pairs, strict=True))
    said = f"medians {ours * 1e3:.0f} ms, {theirs * 1e3:.0f} ms"
    return Row(what, f"{count} pairs", ratio_text(pairs), "at most 1.5", said)


def _measure_push(folder: Path, server: OpenSshServer) -> Iterator[Row]:
    bundle = write_tiny_bundle(folder / "tiny-1.0.0-linux-x86-64")
    entry = {
        "transport": "ssh",
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "key": str(server.client_key_path),
        "host_key": server.host_key_fingerprint,
        "ssh_config": os.devnull,
        "python": sys.executable,
        "target": "linux-x86-64",
    }
    inventory = {"schema_version": 1, "devices": {"board": entry}}
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "edgepack"
    config.mkdir(parents=True)
    (config / "devices.yaml").write_text(json.dumps(inventory))
    push = [EDGEPACK, "push", str(bundle), "--device", "board", "--no-self-test"]
    login, port = f"{server.user}@{server.host}", str(server.port)
    ssh = ["ssh", *server.client_options(), "-p", port]
    there = folder / "there"
    rsync = ["rsync", "-a", "-e", " ".join(ssh), f"{bundle}/", f"{login}:{there}/"]
    peers = {"ssh BOARD true": [*ssh, login, "true"], "rsync -a": rsync}
    for argv in (push, *peers.values()):
        process_seconds(argv)
    for name, argv in peers.items():
        pairs = interleaved(
            lambda: process_seconds(push), lambda argv=argv: process_seconds(argv), PUSHES
        )
        ours, theirs = (median(side) for side in zip(*pairs, strict=True))
        yield Row(
            f"push of nothing new, one board / {name}",
            f"{PUSHES} pairs",
            ratio_text(pairs),
            "2.2 (0.8 s where ssh takes 0.37 s)" if name.startswith("ssh") else "1.9",
            f"medians {ours:.2f} s, {theirs:.2f} s",
        )
