"""A bundle of several models is one release: pushed, tried on the device, signed and kept whole."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgepack import api
from edgepack.builder.pipelines import build_pipeline
from edgepack.bundle.manifest import MANIFEST_SIGNATURE
from edgepack.bundle.reading import load_any, verify_any
from edgepack.bundle.signing import require_signature, sign
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.push import push, rollback
from edgepack.deploy.verify import verify_device
from edgepack.devices.inventory import Device
from edgepack.errors import BundleError, RemoteCommandError

from tests.support.nets.pipeline_nets import make_audio, write_wake_project
from tests.support.reports.tiny_bundle import change_manifest
from tests.support.servers.boards import tree
from tests.support.servers.loopback import ssh_device
from tests.support.servers.played_registry import played_registry

COMBINATION = "mel=cpu-fp32 embedding=cpu-fp32 classifier=cpu-fp32"

USE = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from edgepack_pipeline import load
pipeline = load(sys.argv[1])
frames = np.load(sys.argv[2])
np.save(sys.argv[3], np.concatenate([pipeline(frame[None])["score"] for frame in frames]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wake")
    return build_pipeline(write_wake_project(folder), out=folder / "dist").bundles[0].bundle.path


@pytest.fixture
def bundle(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / built.name))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path / "server") as running:
        yield running


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def device(server: LoopbackServer, root: Path, built: Path) -> Device:
    target = load_any(built).manifest.target
    return ssh_device(server, root=str(root), target=target, python=sys.executable)


def change_golden(bundle: Path) -> None:
    """Have the whole expect another score, with right hashes."""
    path = bundle / "golden/1/0/output-0.bin"
    (np.fromfile(path, np.float32) + 1).tofile(path)

    def rehash(manifest: dict[str, Any]) -> None:
        import hashlib

        entry = next(e for e in manifest["files"] if e["path"] == "golden/1/0/output-0.bin")
        entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()

    change_manifest(bundle, rehash)


def test_whole_is_pushed_over_ssh_and_tried_there(
    bundle: Path, device: Device, root: Path, tmp_path: Path
) -> None:
    pushed = push(bundle, device)
    assert pushed.variant == COMBINATION
    release = root / "wake/current"
    assert verify_any(release.resolve()).digest == load_any(bundle).digest
    verify_device(device).require_whole()
    frames, answers = tmp_path / "frames.npy", [tmp_path / "there.npy", tmp_path / "here.npy"]
    np.save(frames, make_audio(6, seed=3))
    for place, answer in zip((release, bundle), answers, strict=True):
        argv = [sys.executable, "-B", "-c", USE, place, frames, answer]
        subprocess.run([str(word) for word in argv], check=True)
    there, here = map(np.load, answers)
    assert np.array_equal(there, here)
    assert np.ptp(there) > 0.1
    again = push(bundle, device)
    assert (again.already_there, again.bytes_sent) == (True, 0)


def test_whole_that_is_not_near_its_goldens_never_becomes_current(
    bundle: Path, device: Device, root: Path
) -> None:
    first = push(bundle, device)
    change_golden(bundle)
    with pytest.raises(RemoteCommandError, match="although each part is near its own"):
        push(bundle, device)
    assert (root / "wake/current").readlink().name == first.release


def test_older_release_comes_back(bundle: Path, device: Device, root: Path) -> None:
    first = push(bundle, device)
    change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))
    second = push(bundle, device)
    assert second.switched_from == first.release
    # What both have was not sent again: the models, and the code that each part has.
    assert second.bytes_sent < first.bytes_sent / 5
    assert rollback("wake", device).release == first.release
    assert (root / "wake/current").readlink().name == first.release


def test_altered_file_of_a_part_is_found_on_the_device(
    bundle: Path, device: Device, root: Path
) -> None:
    push(bundle, device)
    (root / "wake/current/parts/mel/README.md").write_text("other")
    with pytest.raises(BundleError, match=r"parts/mel/README.md is altered"):
        verify_device(device).require_whole()


def test_engines_of_parts_stay_while_a_release_needs_them(
    bundle: Path, device: Device, root: Path
) -> None:
    push(bundle, device)
    models = [sha for part in load_any(bundle).manifest.parts.values() for sha in part.models]
    for name in (*models, "0" * 64):
        (root / "wake/cache" / name).mkdir(parents=True)
    change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))
    push(bundle, device)
    assert sorted(path.name for path in (root / "wake/cache").iterdir()) == sorted(models)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")
def test_one_signature_covers_every_part(
    bundle: Path, device: Device, root: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signers = tmp_path / "allowed_signers"
    signers.write_text(f'me namespaces="edgepack" {key.with_suffix(".pub").read_text()}')
    sign(bundle, key)
    found = require_signature(bundle, signers)
    assert (found.signer, found.manifest_sha256) == ("me", verify_any(bundle).digest)
    push(bundle, device, allowed_signers=signers)
    assert (root / "wake/current" / MANIFEST_SIGNATURE).is_file()
    # A part that is whole by itself, and not the one that was signed.
    change_manifest(bundle / "parts/mel", lambda manifest: manifest.update(version="9.9.9"))
    with pytest.raises(BundleError, match=r"parts/mel/manifest.json"):
        verify_any(bundle)


def test_commands_take_the_whole(
    bundle: Path, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_any(bundle).manifest.target
    inventory = root.parent / "devices.yaml"
    inventory.write_text(
        "schema_version: 1\ndevices:\n  here:\n    transport: local\n"
        f"    target: {target}\n    root: {root}\n    python: {sys.executable}\n"
    )
    monkeypatch.chdir(root.parent)
    assert run(["verify", str(bundle)]) == 0
    assert COMBINATION in capsys.readouterr().out
    assert run(["push", str(bundle), "--device", "here", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variant"] == COMBINATION
    assert run(["evaluate", str(bundle), "--device", "here"]) == 7
    assert "several models: mel, embedding, classifier" in capsys.readouterr().err


def test_whole_when_it_is_published_comes_back_with_its_parts(bundle: Path, tmp_path: Path) -> None:
    with played_registry() as played:
        reference = api.Reference.parse(played.address("wake:1"))
        [published] = api.publish([bundle], reference)
        [got] = api.fetch(reference, out=tmp_path / "out")
        assert got.release == published.release == load_any(bundle).digest
        assert tree(got.path) == tree(bundle)
        verify_any(got.path)
        [sbom] = [
            json.loads(content)
            for _, content in played.manifests.values()
            if json.loads(content)["artifactType"] == "application/vnd.cyclonedx+json"
        ]
        parts = [layer["annotations"]["org.opencontainers.image.title"] for layer in sbom["layers"]]
        assert parts == [
            *(f"parts/{part}/sbom.cdx.json" for part in ("classifier", "embedding", "mel")),
            "sbom.cdx.json",
        ]
