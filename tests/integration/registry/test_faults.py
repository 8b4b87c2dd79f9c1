"""Whatever breaks, and however a registry lies: a release is whole and right, or there is none."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from edgepack import api
from edgepack.errors import BundleError, RegistryError, UsageError
from edgepack.registry import connection

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.boards import tree
from tests.support.servers.played_registry import PlayedRegistry, Reply, played_registry

SEEDS = range(100)
STATUSES = (200, 204, 206, 301, 400, 401, 403, 404, 416, 429, 500, 502, 503, 504)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a few files: nothing of it is run here."""
    bundle = write_tiny_bundle(tmp_path_factory.mktemp("small") / "bundle")
    kept = ("models/", "golden/", "edgepack_loader")

    def drop(manifest: dict[str, Any]) -> None:
        manifest["files"] = [one for one in manifest["files"] if one["path"].startswith(kept)]

    change_manifest(bundle, drop)
    for path in bundle.rglob("*.py"):
        if path.name != "edgepack_loader.py":
            path.unlink()
    shutil.rmtree(bundle / "harness")
    return bundle


class Breaking:
    """Breaks replies by chance, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.share = self.chance.choice((0.02, 0.1, 0.3))

    def __call__(self, method: str, _path: str, reply: Reply) -> Reply:
        if self.chance.random() > self.share:
            return reply
        content = reply.content if method == "GET" else b""
        at = self.chance.randrange(len(content)) if content else 0
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] if content else b""
        return self.chance.choice(
            (
                Reply(self.chance.choice(STATUSES)),
                replace(reply, content=content[:at], said_length=len(content)),
                replace(reply, content=content[:at]),
                replace(reply, content=flipped),
                replace(reply, content=content + b"more"),
                replace(reply, content=b"{}"),
                replace(reply, headers={}),
                replace(reply, headers={**reply.headers, "Docker-Content-Digest": "sha256:0"}),
            )
        )


def outlast(played: PlayedRegistry, seed: int, bundle: Path, folder: Path) -> list[str]:
    """Publish and fetch while replies break; return what was done in spite of it."""
    reference, done = api.Reference.parse(played.address("small:1")), []
    played.change = Breaking(seed)
    try:
        api.publish([bundle], reference)
        done.append("published")
    except (RegistryError, BundleError, UsageError):
        # Whatever is there, a tag leads to nothing that is not whole.
        played.change = None
        if "1" in played.tags:
            assert tree(api.fetch(reference, out=folder / "left")[0].path) == tree(bundle)
            done.append("tagged")
    played.change = None
    api.publish([bundle], reference)
    played.change = Breaking(-seed - 1)
    try:
        [got] = api.fetch(reference, out=folder / "out")
        assert tree(got.path) == tree(bundle)
        done.append("fetched")
    except (RegistryError, BundleError, UsageError):
        assert tree(folder / "out") == {}
    return done


@pytest.mark.in_turns
@pytest.mark.slow(reason="a hundred transfers that break")
def test_transfers_when_anything_breaks_are_whole_or_are_not(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "FIRST_WAIT_S", 0.0)
    found = []
    for seed in SEEDS:
        with played_registry() as played:
            found += outlast(played, seed, small, tmp_path / str(seed))
    # Most of them succeed, and some cannot.
    assert len(SEEDS) > found.count("fetched") > len(SEEDS) / 3
    assert len(SEEDS) > found.count("published") > len(SEEDS) / 3
