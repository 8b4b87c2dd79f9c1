"""``edgepack export --format mender``: Mender's tool reads it, its module keeps to the protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from edgepack.deploy.verify import verify_device
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import ToolError, UsageError
from edgepack.fleets.export import ExportSettings, export_bundle
from edgepack.ondevice.agent.edgepack_mender import read_settings

from tests.chaos.disks import can_mount
from tests.integration.fleets.test_packages import ask, break_goldens
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.tools import require_tool, unpack

SETTINGS = ExportSettings(compatible=["rpi4", "rpi5"])
OK = ["SupportsRollback", "Download", "ArtifactInstall", "NeedsArtifactReboot", "ArtifactCommit",
      "Cleanup"]  # fmt: skip


@pytest.fixture(autouse=True)
def _tool() -> None:
    require_tool("mender-artifact")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


def export(bundle: Path, to: Path) -> Path:
    return export_bundle(bundle, "mender", to, SETTINGS).path


@dataclass
class Client:
    """Calls the module as the protocol of update modules says, and fails where it is told to."""

    home: Path
    module: Path
    fails_after: str = ""
    called: list[str] = field(default_factory=list)
    said: str = ""

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)
        self.root = self.home / "root"
        lines = f"EDGEPACK_ROOT={self.root}\nEDGEPACK_PYTHON='{sys.executable}'\nOTHER=1\n"
        (self.home / "settings").write_text(lines)

    def call(self, *argv: str) -> str | None:
        self.called.append(argv[0])
        done = subprocess.run(
            [self.module, *argv], cwd=argv[1] if len(argv) > 1 else None, check=False,
            env={**os.environ, "EDGEPACK_SETTINGS": str(self.home / "settings")},
            capture_output=True, text=True,
        )  # fmt: skip
        self.said += done.stderr
        return None if done.returncode or argv[0] == self.fails_after else done.stdout

    def install(self, artifact: Path) -> bool:
        """Go through the states of an update; return whether it was committed."""
        folder = self.home / f"update-{len(self.called)}"
        for name in ("files", "tmp"):
            (folder / name).mkdir(parents=True)
        with tarfile.open(artifact) as outer:
            payload = outer.extractfile("data/0000.tar.gz")
            with tarfile.open(fileobj=payload) as inner:
                unpack(inner, folder / "files")
        supports = self.call("SupportsRollback") == "Yes\n"
        is_done = self.call("Download", str(folder)) is not None
        for state in ("ArtifactInstall", "NeedsArtifactReboot", "ArtifactCommit"):
            words = [state] if state == "NeedsArtifactReboot" else [state, str(folder)]
            is_done = is_done and self.call(*words) is not None
        if not is_done:
            for state in [*(["ArtifactRollback"] if supports else []), "ArtifactFailure"]:
                assert self.call(state, str(folder)) is not None, self.said
        assert self.call("Cleanup", str(folder)) is not None, self.said
        return is_done

    @property
    def current(self) -> str | None:
        link = self.root / "tiny/current"
        return link.readlink().name if link.is_symlink() else None

    def check(self) -> None:
        """Require that everything there is as it was sent, by the history too."""
        entry = LocalEntry(transport="local", target="linux-x86-64", root=str(self.root))
        verify_device(Device("board", entry)).require_whole()


@pytest.fixture
def client(bundle: Path, tmp_path: Path) -> Client:
    export(bundle, tmp_path)
    return Client(tmp_path / "board", tmp_path / "mender/edgepack")


def test_artifact_when_menders_tool_reads_it_is_valid(bundle: Path, tmp_path: Path) -> None:
    path = export(bundle, tmp_path / "out")
    assert path.name == "tiny-1.0.0-linux-x86-64.mender"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["mender", path.name]
    ask("mender-artifact", "validate", path)
    said = ask("mender-artifact", "read", path)
    for line in ("Name: tiny-1.0.0-linux-x86-64", "[rpi4 rpi5]", "Type:   edgepack",
                 "rootfs-image.tiny.version: 1.0.0"):  # fmt: skip
        assert line in said
    with zipfile.ZipFile(tmp_path / "out/mender/edgepack") as module:
        assert module.testzip() is None
    first = (tmp_path / "out/mender/edgepack").read_bytes()
    export(bundle, tmp_path / "again")
    assert (tmp_path / "again/mender/edgepack").read_bytes() == first


def test_artifact_when_a_key_is_given_is_signed(bundle: Path, tmp_path: Path) -> None:
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    ask("openssl", "genrsa", "-traditional", "-out", key, "2048")
    ask("openssl", "rsa", "-in", key, "-pubout", "-out", public)
    settings = ExportSettings(compatible=["rpi4"], key=key)
    path = export_bundle(bundle, "mender", tmp_path, settings).path
    assert "signed and verified" in ask("mender-artifact", "read", "--key", public, path)
    key.write_text("no key")
    with pytest.raises(ToolError, match="mender-artifact failed"):
        export_bundle(bundle, "mender", tmp_path, settings)
    with pytest.raises(UsageError, match="needs --compatible"):
        export_bundle(bundle, "mender", tmp_path, ExportSettings())


def test_update_when_it_is_right_is_current_and_committed(
    bundle: Path, tmp_path: Path, client: Client
) -> None:
    assert client.install(export(bundle, tmp_path)), client.said
    assert client.called == OK
    first = client.current
    assert first is not None
    change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))
    assert client.install(export(bundle, tmp_path)), client.said
    assert client.current not in (None, first)
    client.check()
    program = "from edgepack_loader import load; print(load().variant)"
    place = client.root / "tiny/current"
    argv = [sys.executable, "-B", "-c", program]
    assert subprocess.run(argv, cwd=place, capture_output=True, check=True).stdout


def test_settings_when_they_are_those_of_the_docs_are_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs/fleets.md").read_text()
    [block] = [each for each in text.split("```") if each.startswith("sh\nEDGEPACK_PYTHON=")]
    path = tmp_path / "docs"
    path.write_text(block.removeprefix("sh\n"))
    assert read_settings(str(path)) == {
        "EDGEPACK_ROOT": "/var/lib/edgepack",
        "EDGEPACK_PYTHON": "/opt/edgepack/venv/bin/python",
        "EDGEPACK_KEEP": "3",
    }
    lines = ("# don't", "export EDGEPACK_ROOT='/srv/my bundles'", "EDGEPACK_KEEP=5 # x")
    path.write_text("\n".join(lines))
    found = read_settings(str(path))
    assert (found["EDGEPACK_ROOT"], found["EDGEPACK_KEEP"]) == ("/srv/my bundles", "5")


@pytest.mark.parametrize(
    "line", ["EDGEPACK_KEEP=three", "EDGEPACK_KEEP=0", "EDGEPACK_ROOT=bundles", "EDGEPACK_ROOT='/x"]
)
def test_settings_when_one_is_wrong_install_nothing(
    bundle: Path, tmp_path: Path, client: Client, line: str
) -> None:
    with (client.home / "settings").open("a") as file:
        file.write(f"{line}\n")
    assert not client.install(export(bundle, tmp_path))
    assert "edgepack: ArtifactInstall: " in client.said
    assert "Traceback" not in client.said
    assert not client.root.exists()


def test_project_when_its_name_has_other_signs_is_installed(
    bundle: Path, tmp_path: Path, client: Client
) -> None:
    change_manifest(bundle, lambda manifest: manifest.update(name="My_Net.v2"))
    assert client.install(export(bundle, tmp_path)), client.said
    assert (client.root / "My_Net.v2/current/manifest.json").exists()


def test_update_when_its_goldens_are_wrong_never_becomes_current(
    bundle: Path, tmp_path: Path, client: Client
) -> None:
    assert client.install(export(bundle, tmp_path))
    first = client.current
    change_manifest(bundle, break_goldens)
    assert not client.install(export(bundle, tmp_path))
    assert client.current == first
    assert "dB near the golden one" in client.said
    assert "ended with the code 3" in client.said
    assert client.called[-4:] == ["ArtifactInstall", "ArtifactRollback", "ArtifactFailure",
                                  "Cleanup"]  # fmt: skip
    assert [path.name for path in (client.root / "tiny/releases").iterdir()] == [first]
    history = (client.root / "tiny/history.jsonl").read_text().splitlines()
    assert [json.loads(line)["release"] for line in history] == [first]
    client.check()


@pytest.mark.slow(reason="goes through three updates, each with self-tests")
@pytest.mark.parametrize("state", ["ArtifactInstall", "ArtifactCommit"])
def test_update_when_a_later_state_fails_is_taken_back(
    bundle: Path, tmp_path: Path, client: Client, state: str
) -> None:
    artifact = export(bundle, tmp_path)
    client.fails_after = state
    assert not client.install(artifact)
    assert client.current is None
    client.fails_after = ""
    assert client.install(artifact)
    first = client.current
    change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))
    client.fails_after = state
    assert not client.install(export(bundle, tmp_path))
    assert client.current == first
    client.check()


def test_update_when_it_is_the_current_one_changes_nothing_and_stays(
    bundle: Path, tmp_path: Path, client: Client
) -> None:
    artifact = export(bundle, tmp_path)
    assert client.install(artifact)
    first = client.current
    client.fails_after = "ArtifactCommit"
    assert not client.install(artifact)
    assert client.current == first


@pytest.mark.slow(reason="goes through five updates, each with self-tests")
def test_releases_when_updates_are_many_are_three(
    bundle: Path, tmp_path: Path, client: Client
) -> None:
    for number in range(5):
        change_manifest(bundle, lambda manifest, n=number: manifest.update(version=f"1.0.{n}"))
        assert client.install(export(bundle, tmp_path))
    assert len(list((client.root / "tiny/releases").iterdir())) == 3


REAL = """
mount --bind "$1/modules" /usr/share/mender/modules/v3
mount --bind "$1/etc" /etc/mender
shift
exec mender "$@"
"""


@pytest.mark.skipif(not can_mount(), reason="needs to bind folders over others")
@pytest.mark.slow(reason="goes through four updates of Mender's own client")
def test_mender_itself_when_it_installs_commits_and_goes_back_keeps_what_is_right(
    bundle: Path, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tool("mender")
    home = tmp_path / "mender-client"
    for name in ("modules", "etc", "data"):
        (home / name).mkdir(parents=True)
    (home / "modules/edgepack").write_bytes(client.module.read_bytes())
    (home / "modules/edgepack").chmod(0o755)
    (home / "etc/artifact_info").write_text("artifact_name=base\n")
    (home / "etc/mender.conf").write_text("{}\n")
    (home / "data/device_type").write_text("device_type=rpi4\n")
    monkeypatch.setenv("EDGEPACK_SETTINGS", str(client.home / "settings"))

    def mender(*words: str | Path) -> int:
        argv = ["unshare", "-m", "sh", "-euc", REAL, "sh", home, "--no-syslog"]
        argv += ["--data", home / "data", "--config", "/etc/mender/mender.conf", *words]
        return subprocess.run(argv, capture_output=True, check=False, timeout=120).returncode

    assert (mender("install", export(bundle, tmp_path)), mender("commit")) == (0, 0)
    first = client.current
    assert first is not None
    change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))
    assert (mender("install", export(bundle, tmp_path)), client.current == first) == (0, False)
    assert (mender("rollback"), client.current) == (0, first)
    assert (mender("install", export(bundle, tmp_path)), mender("commit")) == (0, 0)
    second = client.current
    change_manifest(bundle, break_goldens)
    assert mender("install", export(bundle, tmp_path)) == 1
    assert client.current == second != first
    client.check()


def alter_model(folder: Path) -> None:
    path = folder / "models/cpu-fp32.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def alter_code(folder: Path) -> None:
    path = folder / "edgepack_names.py"
    path.write_text(path.read_text() + "# one more line\n")


def link_out(folder: Path) -> None:
    (folder / "README.md").symlink_to("/etc/passwd")


def name_a_path(folder: Path) -> None:
    change_manifest(folder, lambda manifest: manifest.update(name="../../x"))


def remove_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    "change", [alter_model, alter_code, link_out, name_a_path, remove_manifest]
)
def test_payload_when_it_is_no_whole_bundle_is_refused(
    bundle: Path, tmp_path: Path, client: Client, change: Callable[[Path], None]
) -> None:
    change(bundle)
    inner = tmp_path / "payload.tar.gz"
    with tarfile.open(inner, "w:gz") as archive:
        for path in sorted(bundle.rglob("*")):
            if path.is_symlink() or path.is_file():
                archive.add(path, f"tiny/{path.relative_to(bundle)}", recursive=False)
    artifact = tmp_path / "own.mender"
    ask("mender-artifact", "write", "module-image", "-T", "edgepack", "-n", "x", "-t", "rpi4", "-f",
        inner, "-o", artifact)  # fmt: skip
    assert not client.install(artifact)
    assert client.current is None
    assert "edgepack: ArtifactInstall: " in client.said
    assert "Traceback" not in client.said
    assert not (tmp_path / "x").exists()


def test_module_when_it_is_asked_what_it_does_not_know_says_nothing(client: Client) -> None:
    assert client.call("NotKnownYet", str(client.home)) == ""
    assert client.call("NeedsArtifactReboot") == "No\n"
    (client.home / "tmp").mkdir()
    for state in ("ArtifactRollback", "ArtifactRollback", "ArtifactFailure", "Cleanup"):
        assert client.call(state, str(client.home)) == ""
    assert client.call("ArtifactCommit", str(client.home)) is None
    assert "nothing was installed in this update" in client.said
