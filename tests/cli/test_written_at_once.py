"""Commands that write, sixteen of each at once: nothing that any of them wrote is lost or torn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from edgepack.bundle.reading import load_bundle, verify
from edgepack.bundle.signing import require_signature
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.audit import read_audit_log, verify_audit_log
from edgepack.deploy.fleet.store import RolloutStore
from edgepack.devices.inventory import load_inventory
from edgepack.devices.ssh.host_keys import find_own_known_hosts
from edgepack.project.loading import read_project
from edgepack.results.store.store import ResultsStore

from tests.support.nets.tiny_models import conv_net
from tests.support.reports.example_report import varied_reports
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.loopback import ssh_entry

pytestmark = pytest.mark.slow(reason="starts many processes")

AT_ONCE = 16


def run_at_once(commands: Sequence[Sequence[object]]) -> list[int]:
    """Run commands at the same time, and return their exit codes; none says what is a bug."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "edgepack", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for command in commands
    ]
    said = [process.communicate(timeout=300)[1].decode() for process in started]
    assert not [text for text in said if "Traceback" in text or "BUG" in text], said
    print(*dict.fromkeys(said), sep="\n")  # noqa: T201  (what a failing test shows)
    return [process.returncode for process in started]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackServer]:
    monkeypatch.chdir(tmp_path)
    with LoopbackServer(tmp_path / "server") as running:
        yield running


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "dist" / "tiny-1.0.0-linux-x86-64")


def write_inventory(server: LoopbackServer, names: Sequence[str], **changes: object) -> None:
    entry = ssh_entry(server) | {"python": sys.executable} | changes
    devices = {name: entry | {"root": f"~/{name}"} for name in names}
    Path("devices.yaml").write_text(json.dumps({"schema_version": 1, "devices": devices}))


def count_records() -> Counter[str]:
    """Return how often each action is in the audit log, whose chain is whole."""
    assert verify_audit_log().torn == ()
    return Counter(record.action for record in read_audit_log().records)


def test_device_add_keeps_every_device(server: LoopbackServer) -> None:
    Path("devices.yaml").write_text("# ours\nschema_version: 1\n")
    address = f"{server.user}@{server.host}"
    given = ["--port", server.port, "--key", server.client_key_path]
    given += ["--fingerprint", server.host_key_fingerprint, "--target", "linux-x86-64"]
    names = [f"board-{number}" for number in range(AT_ONCE)]
    codes = run_at_once([["device", "add", name, address, *given] for name in names])
    assert codes == [0] * AT_ONCE
    assert sorted(load_inventory(Path("devices.yaml")).devices) == sorted(names)
    assert Path("devices.yaml").read_text().startswith("# ours\n")
    assert find_own_known_hosts().read_text() == f"{server.known_hosts_line}\n"
    assert count_records()["add"] == AT_ONCE


def test_device_trust_keeps_every_key(server: LoopbackServer, tmp_path: Path) -> None:
    names = [f"board-{number}" for number in range(AT_ONCE)]
    for name in names:
        (tmp_path / name).write_text(f"HostKeyAlias {name}\n")
    entry = ssh_entry(server) | {"host_key": None}
    devices = {name: entry | {"ssh_config": str(tmp_path / name)} for name in names}
    Path("devices.yaml").write_text(json.dumps({"schema_version": 1, "devices": devices}))
    pin = ["--fingerprint", server.host_key_fingerprint]
    assert run_at_once([["device", "trust", name, *pin] for name in names]) == [0] * AT_ONCE
    known = [line.split()[0] for line in find_own_known_hosts().read_text().splitlines()]
    assert sorted(known) == sorted(names)
    assert count_records()["trust"] == AT_ONCE


@pytest.mark.in_turns
def test_push_and_rollback_keep_every_rollout_and_record(
    server: LoopbackServer, bundle: Path
) -> None:
    write_inventory(server, ["board"], keep_releases=3)
    first = load_bundle(bundle).digest[:16]
    push = ["push", "dist", "--device", "board", "--no-self-test"]
    assert run_at_once([push] * AT_ONCE) == [0] * AT_ONCE
    change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))
    assert run_at_once([push]) == [0]
    back = ["rollback", "tiny", "--device", "board", "--to", first]
    assert run_at_once([back] * AT_ONCE) == [0] * AT_ONCE
    rollouts = RolloutStore().list_all()
    assert not rollouts.broken
    assert [rollout.id for rollout in rollouts.rollouts] == list(range(1, 2 * AT_ONCE + 2))
    assert {rollout.counts["done"] for rollout in rollouts.rollouts} == {1}
    assert (server.home / "board" / "tiny" / "current").readlink().name == first
    records = count_records()
    assert (records["push"], records["rollback"]) == (AT_ONCE + 1, AT_ONCE)


def test_sign_leaves_one_whole_signature(bundle: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
    subprocess.run(keygen, check=True)
    public = key.with_suffix(".pub").read_text()
    (tmp_path / "signers").write_text(f'me namespaces="edgepack" {public}')
    codes = run_at_once([["sign", bundle, "--key", key]] * AT_ONCE)
    assert codes == [0] * AT_ONCE
    assert require_signature(bundle, tmp_path / "signers").signer == "me"
    assert sorted(path.name for path in bundle.iterdir() if "sig" in path.name) == [
        "manifest.json.sig"
    ]


def test_init_writes_one_whole_project_file(tmp_path: Path) -> None:
    conv_net(tmp_path / "net.onnx", batch=1)
    codes = run_at_once([["init", tmp_path / "net.onnx"]] * AT_ONCE)
    assert Counter(codes) == {0: 1, 2: AT_ONCE - 1}
    assert read_project(tmp_path / "edgepack.yaml").project.name == "net"


def test_build_leaves_one_whole_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "net.onnx", batch=1)
    build = ["build", "net.onnx", "--target", "linux-x86-64", "--variant", "cpu-fp32"]
    assert run_at_once([build] * AT_ONCE) == [0] * AT_ONCE
    made = sorted(path.name for path in (tmp_path / "dist").iterdir())
    assert made == ["net-0.0.0-linux-x86-64", "net-0.0.0-linux-x86-64.tar.gz"]
    assert verify(tmp_path / "dist" / made[0]).manifest.name == "net"


def test_imports_and_pages_of_reports_keep_every_run(tmp_path: Path) -> None:
    paths = []
    for number, report in enumerate(varied_reports(AT_ONCE, samples=20)):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(report.model_dump_json())
    assert run_at_once([["runs", "import", path] for path in paths]) == [0] * AT_ONCE
    assert len(ResultsStore().rows()) == AT_ONCE
    page = tmp_path / "page.html"
    assert run_at_once([["report", "--html", page]] * AT_ONCE) == [0] * AT_ONCE
    assert page.read_text().rstrip().endswith("</html>")
    assert [path for path in tmp_path.iterdir() if path.suffix == ".partial"] == []


TUNED = """
import sys
from pathlib import Path
from edgepack.bundle.manifest import Manifest, ManifestVariant
from edgepack.measure.tune.writing import make_override, write_override
from edgepack.project.profile import SessionSettings, load_profile
from edgepack.records.tuning import Settings

target, threads = sys.argv[1], int(sys.argv[2])
variant = load_profile(target).find_variant("cpu-fp32")
names = ("id", "backend", "recipe", "dialect", "providers", "session")
entry = ManifestVariant.model_construct(**{name: getattr(variant, name) for name in names})
manifest = Manifest.model_construct(name="tiny", target=target, variants=[entry])
session = SessionSettings(intra_op_num_threads=threads)
settings = Settings(variant="cpu-fp32", session=session, providers=variant.providers)
override = make_override(Path("edgepack.yaml"), manifest, settings, "tuned")
sys.stdin.read()
write_override(override)
"""


def test_answers_of_tuning_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("edgepack.yaml").write_text("schema_version: 1\nname: tiny\nmodel: m.onnx # ours\n")
    targets = ["intel", "jetson", "linux-aarch64", "linux-x86-64", "raspberry-pi", "android"]
    gate, opener = os.pipe()
    argv = [sys.executable, "-c", TUNED]
    started = [
        subprocess.Popen([*argv, target, str(number)], stdin=gate)
        for number, target in enumerate(targets, start=2)
    ]
    os.close(gate)
    os.close(opener)
    assert [process.wait(60) for process in started] == [0] * len(targets)
    text = Path("edgepack.yaml").read_text()
    assert "# ours" in text
    for number in range(2, len(targets) + 2):
        assert f"intra_op_num_threads: {number}" in text
