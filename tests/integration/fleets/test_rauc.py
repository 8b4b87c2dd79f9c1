"""``edgepack export --format rauc``: RAUC verifies the bundle, and its hook tests the slot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from edgepack.errors import ToolError, UsageError
from edgepack.fleets.export import ExportSettings, export_bundle

from tests.integration.fleets.test_packages import ask, break_goldens
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.tools import require_tool, unpack


@pytest.fixture(autouse=True)
def _tool() -> None:
    for name in ("rauc", "mksquashfs", "openssl"):
        require_tool(name)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ExportSettings:
    folder = tmp_path_factory.mktemp("keys")
    key, cert = folder / "key.pem", folder / "cert.pem"
    require_tool("openssl")
    ask("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
        "-days", "2", "-subj", "/O=Tests/CN=signer")  # fmt: skip
    return ExportSettings(compatible=["Some Board 2"], slot="appfs", key=key, cert=cert)


def extract(path: Path, settings: ExportSettings, folder: Path) -> Path:
    ask("rauc", "extract", f"--keyring={settings.cert}", path, folder)
    return folder


def run_hook(folder: Path, slot: Path, how: str = "slot-post-install") -> tuple[int, str]:
    """Do what RAUC does with an archive and its hook, after it made the file system of the slot."""
    with tarfile.open(folder / "tiny.tar.gz") as archive:
        unpack(archive, slot)
    (slot / "etc").mkdir()
    done = subprocess.run(
        [folder / "edgepack-hook.sh", how], capture_output=True, check=False, text=True,
        env={**os.environ, "RAUC_SLOT_MOUNT_POINT": str(slot), "RAUC_SLOT_CLASS": "appfs",
             "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    return done.returncode, done.stderr


def test_bundle_when_rauc_reads_it_is_signed_and_for_the_slot(
    bundle: Path, tmp_path: Path, settings: ExportSettings
) -> None:
    found = export_bundle(bundle, "rauc", tmp_path / "out", settings)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [found.path.name]
    said = ask("rauc", "info", f"--keyring={settings.cert}", "--output-format=json", found.path)
    facts = json.loads(said)
    assert (facts["compatible"], facts["version"]) == ("Some Board 2", "1.0.0")
    (image,) = facts["images"]
    assert image["appfs"]["filename"] == "tiny.tar.gz"
    assert image["appfs"]["hooks"] == ["post-install"]
    with pytest.raises(subprocess.CalledProcessError):
        ask("rauc", "info", "--keyring=/etc/ssl/certs/ca-certificates.crt", found.path)


def test_hook_when_rauc_calls_it_tests_what_is_in_the_slot(
    bundle: Path, tmp_path: Path, settings: ExportSettings
) -> None:
    path = export_bundle(bundle, "rauc", tmp_path, settings).path
    folder = extract(path, settings, tmp_path / "good")
    code, said = run_hook(folder, tmp_path / "slot")
    assert (code, "not tested" in said) == (0, False)
    assert (tmp_path / "slot/tiny/manifest.json").read_bytes() == (
        bundle / "manifest.json"
    ).read_bytes()
    change_manifest(bundle, break_goldens)
    path = export_bundle(bundle, "rauc", tmp_path, settings).path
    folder = extract(path, settings, tmp_path / "bad")
    code, said = run_hook(folder, tmp_path / "other")
    assert code == 3
    assert "dB near the golden one" in said
    assert run_hook(folder, tmp_path / "third", "slot-pre-install")[0] == 0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"slot": ""}, "needs --slot"),
        ({"slot": "a.b]"}, "no class of slots"),
        ({"key": None}, "needs --key"),
        ({"cert": None}, "needs --cert"),
        ({"compatible": []}, "needs --compatible"),
        ({"compatible": ["a", "b"]}, "one 'compatible'"),
        ({"compatible": ["a\nversion=2"]}, "no 'compatible' of RAUC"),
    ],
    ids=str,
)
def test_setting_when_it_is_missing_or_wrong_is_named(
    bundle: Path, tmp_path: Path, settings: ExportSettings, change: dict[str, object], problem: str
) -> None:
    wrong = ExportSettings(**(vars(settings) | change))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=problem):
        export_bundle(bundle, "rauc", tmp_path / "out", wrong)
    assert not (tmp_path / "out").exists()


def test_key_when_it_is_none_is_told_by_rauc_and_leaves_nothing(
    bundle: Path, tmp_path: Path, settings: ExportSettings
) -> None:
    (tmp_path / "key.pem").write_text("no key")
    wrong = ExportSettings(**(vars(settings) | {"key": tmp_path / "key.pem"}))
    with pytest.raises(ToolError, match=r"rauc failed with the code 1.*\n.*key"):
        export_bundle(bundle, "rauc", tmp_path / "out", wrong)
    assert list((tmp_path / "out").iterdir()) == []


def test_setting_when_a_format_has_none_is_refused(
    bundle: Path, tmp_path: Path, settings: ExportSettings
) -> None:
    with pytest.raises(UsageError, match="format deb has no compatible"):
        export_bundle(bundle, "deb", tmp_path / "out", settings)
