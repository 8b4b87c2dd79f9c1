"""Devices that pull: the real agent against a real registry, with what can go wrong on the way."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import itertools
import json
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from edgepack.deploy.push import push
from edgepack.ondevice.agent.edgepack_releases import is_whole

from tests.fleet.faults import Offers, make_base, run_one
from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.loopback import ssh_device
from tests.support.servers.openssh_server import OpenSshServer, find_sshd, put_python_first
from tests.support.servers.played_registry import Change, Reply, played_registry
from tests.support.servers.publisher import (
    ENTRY_TYPE,
    SIGNATURE_TYPE,
    Publisher,
    format_signer,
    make_key,
    sign,
)
from tests.support.servers.pulling import PullingDevice, write_bundle
from tests.support.servers.registry import running_registry
from tests.support.servers.registry_faults import (
    Gate,
    answer_with,
    cut_at,
    gate,
    leave,
)

Offered = Any
"""An image manifest."""


@dataclass
class Site:
    """A registry with a gate before it, who publishes, and a device."""

    folder: Path
    publisher: Publisher
    key: Path
    gate: Gate
    device: PullingDevice

    def offer(self, name: str, **changes: Any) -> Offered:
        """Publish a small bundle, and return its manifest."""
        bundle = write_bundle(self.folder / "bundles" / name, name, **changes)
        return self.publisher.publish(bundle, self.key)

    def move(self, offered: Offered, sequence: int, **changes: Any) -> str:
        """Move the channel there; return the release."""
        self.publisher.move(offered, "stable", sequence, self.key, **changes)
        release: str = offered["annotations"]["dev.edgepack.manifest"][:16]
        return release


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server.host


@pytest.fixture
def site(registry: str, tmp_path: Path) -> Iterator[Site]:
    key = make_key(tmp_path, "release")
    publisher = Publisher(
        registry, f"team{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]}/tiny"
    )
    with gate(registry) as standing:
        device = PullingDevice(
            tmp_path / "root",
            standing.host,
            format_signer(key),
            {"repository": publisher.repository},
        )
        yield Site(tmp_path, publisher, key, standing, device)


def test_a_release_is_installed_and_a_second_run_makes_one_small_request(site: Site) -> None:
    release = site.move(site.offer("one"), 1)
    assert site.device.pull().result == "installed"
    assert site.device.current == release
    text = (site.device.base / "current/name.txt").read_text()
    assert text == "one"
    assert (site.device.base / "current/manifest.json.sig").exists()
    before = len(site.gate.asked)
    pulled = site.device.pull()
    assert (pulled.code, pulled.result) == (0, "unchanged")
    [asked] = site.gate.asked[before:]
    assert asked.startswith("HEAD ")
    assert asked.endswith("/manifests/stable")


def test_only_chunks_that_differ_come_when_another_release_has_the_others(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.device.pull()
    before = read_received(site.device)
    release = site.move(site.offer("two"), 2)
    site.gate.asked.clear()
    assert site.device.pull().result == "installed"
    assert site.device.current == release
    assert (site.device.base / "current/models/net.onnx").read_bytes() == (
        site.folder / "bundles/two/models/net.onnx"
    ).read_bytes()
    ranged = [line for line in site.gate.asked if "bytes=" in line]
    assert ranged
    assert read_received(site.device) - before < 200_000
    assert (site.device.base / "current/golden/0.bin").stat().st_nlink == 2


def read_received(device: PullingDevice) -> int:
    report = json.loads((device.folder / "report.json").read_text())
    return int(report["received_bytes_total"])


def test_the_whole_blob_is_read_when_the_registry_ignores_ranges(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.device.pull()
    release = site.move(site.offer("two"), 2)
    site.gate.disturb("GET .*/blobs/", leave, without=("Range",))
    assert site.device.pull().result == "installed"
    assert site.device.current == release


def test_a_download_goes_on_where_it_broke(site: Site) -> None:
    release = site.move(site.offer("one"), 1)
    fault = site.gate.disturb("GET .*/blobs/", cut_at(120_000), times=200)
    pulled = site.device.pull()
    assert pulled.result == "installed", pulled
    assert fault.seen > 3
    assert site.device.current == release
    assert [line for line in site.gate.asked if "bytes=120000-" in line]


def test_a_busy_registry_is_asked_again_after_what_it_says(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.gate.disturb("GET .*/blobs/", answer_with(503), times=1)
    site.gate.disturb("HEAD ", answer_with(429, Retry_After="1"), times=1)
    assert site.device.pull().result == "installed"


def test_a_registry_that_stays_down_ends_the_run_and_changes_nothing(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.device.pull()
    site.device.write(patience_s=1.0)
    site.move(site.offer("two"), 2)
    before = site.device.current
    site.gate.disturb("GET .*/blobs/", answer_with(503))
    pulled = site.device.pull()
    assert (pulled.code, pulled.result) == (75, "registry")
    assert site.device.current == before
    site.gate.faults.clear()
    assert site.device.pull().result == "installed"


def test_what_is_given_to_the_registry_stays_there_when_it_leads_elsewhere(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.device.credentials = {"username": "board", "password": "canary"}
    site.device.write()
    site.gate.login, site.gate.is_basic = "board:canary", True
    seen: list[str | None] = []
    with gate(site.publisher.host) as elsewhere:
        elsewhere.watch = lambda headers: seen.append(headers.get("Authorization"))

        def redirect(answer: Any) -> None:
            digest = answer.headers["Docker-Content-Digest"]
            place = f"http://{elsewhere.host}/v2/{site.publisher.repository}/blobs/{digest}"
            answer.status, answer.body, answer.headers = 307, b"", {"Location": place}

        site.gate.disturb("GET .*/blobs/", redirect)
        assert site.device.pull().result == "installed"
    assert seen
    assert set(seen) == {None}


@pytest.mark.parametrize("is_basic", [True, False])
def test_a_storage_that_wants_a_login_gets_none(site: Site, *, is_basic: bool) -> None:
    site.move(site.offer("one"), 1)
    site.device.credentials = {"username": "board", "password": "canary"}
    site.device.write()
    site.gate.login, site.gate.is_basic = "board:canary", True
    seen: list[str | None] = []
    with gate(site.publisher.host) as storage:
        storage.watch = lambda headers: seen.append(headers.get("Authorization"))
        storage.login, storage.is_basic = "board:canary", is_basic
        storage.tokens.add("none")

        def redirect(answer: Any) -> None:
            place = f"http://{storage.host}/somewhere"
            answer.status, answer.body, answer.headers = 307, b"", {"Location": place}

        site.gate.disturb("GET .*/blobs/", redirect)
        assert site.device.pull().result == "denied"
        assert storage.asked == ["GET /somewhere"]
    assert seen == [None]


def test_a_token_server_that_fails_once_is_asked_again(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.device.credentials = {"username": "board", "password": "right"}
    site.device.write()
    site.gate.login = "board:right"
    site.gate.tokens.add("none")
    site.gate.broken_tokens = 1
    pulled = site.device.pull()
    assert pulled.result == "installed", pulled
    assert [line.partition("?")[0] for line in site.gate.asked[:4]] == [
        f"HEAD /v2/{site.publisher.repository}/manifests/stable",
        "GET /token",
        f"HEAD /v2/{site.publisher.repository}/manifests/stable",
        "GET /token",
    ]


def test_a_device_that_cannot_go_back_says_so_and_follows_the_channel_on(site: Site) -> None:
    first = site.move(site.offer("one"), 1)
    site.device.pull()
    damage = site.device.base / "releases" / first / "name.txt"
    site.device.write(health=["sh", "-c", f"echo x > {damage}; exit 1"])
    second = site.move(site.offer("two", version="1.1.0"), 2)
    pulled = site.device.pull()
    assert pulled.result == "health"
    assert "stays current, going back failed" in pulled.text
    assert site.device.current == second
    assert site.device.state["trial"] is None
    pulled = site.device.pull()
    assert pulled.result == "bad"
    assert "--sequence 3" in pulled.text
    site.device.write(health=[])
    third = site.move(site.offer("three", version="1.2.0"), 3)
    assert site.device.pull().result == "installed"
    assert site.device.current == third


def test_a_device_goes_back_when_one_release_is_to_be_kept(site: Site) -> None:
    first = site.move(site.offer("one"), 1)
    site.device.write(keep_releases=1)
    site.device.pull()
    site.device.write(health=["false"])
    site.move(site.offer("two", version="1.1.0"), 2)
    pulled = site.device.pull()
    assert (pulled.result, site.device.current) == ("health", first), pulled


def test_an_address_that_speaks_no_http_is_not_healthy(site: Site) -> None:
    first = site.move(site.offer("one"), 1)
    site.device.pull()
    with socketserver.TCPServer(("127.0.0.1", 0), Babbler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        site.device.write(health_url=url, hook_timeout_s=0.5)
        site.move(site.offer("two", version="1.1.0"), 2)
        pulled = site.device.pull()
        server.shutdown()
        thread.join()
    assert (pulled.result, site.device.current) == ("health", first), pulled


class Babbler(socketserver.StreamRequestHandler):
    """Answers, and not in HTTP."""

    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"what do you want?\r\n\r\n")


def test_a_number_that_is_none_in_the_chunks_is_corrupt(site: Site) -> None:
    lie = b'{"schema_version": 1, "files": {"models/net.onnx": [["%s", 1e999]]}}' % (b"0" * 64)
    bundle = write_bundle(site.folder / "bundles/one", "one")
    changed = {".edgepack/chunks.json": lie}
    site.move(site.publisher.publish(bundle, site.key, replaced=changed), 1)
    assert site.device.pull().result == "corrupt"


def test_what_the_agent_does_not_expect_is_reported_without_its_text(site: Site) -> None:
    site.move(site.offer("one"), 1)
    folder = site.folder / "metrics"
    folder.mkdir()
    site.device.credentials = {"username": "board", "password": ["canary"]}
    site.device.write(textfile=str(folder))
    (site.device.folder / "state.json").write_text('{"schema_version": 1, "channels": "canary"}')
    pulled = site.device.pull()
    assert (pulled.code, pulled.result) == (2, "failed")
    assert "canary" not in pulled.text + pulled.stderr
    assert 'result="failed"} 1' in (folder / "edgepack_pull_tiny.prom").read_text()


@pytest.mark.parametrize("fault", ["certificates", "proxy", "state"])
def test_a_fault_of_the_devices_own_files_is_reported(fault: str, site: Site) -> None:
    folder = site.folder / "metrics"
    folder.mkdir()
    site.device.credentials = {"proxy": "http:/bob:canary@proxy"} if fault == "proxy" else None
    site.device.write(textfile=str(folder))
    if fault == "certificates":
        (site.device.folder / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    elif fault == "state":
        (site.device.folder / "state.json").write_text("{")
    pulled = site.device.pull()
    assert (pulled.code, pulled.result) == (2, "settings")
    assert "canary" not in pulled.text + pulled.stderr
    text = (folder / "edgepack_pull_tiny.prom").read_text()
    assert '\nedgepack_pull_result{project="tiny",result="settings"} 1\n' in text


def test_other_reports_are_made_when_one_cannot_be(site: Site) -> None:
    site.move(site.offer("one"), 1)
    (site.device.folder / "report.json").mkdir()
    with reports() as (address, posted):
        site.device.write(textfile=str(site.folder / "gone"), report_url=address)
        pulled = site.device.pull()
    assert pulled.result == "installed"
    assert pulled.stderr.count("a report was not taken") == 2
    assert [document["result"] for document, _ in posted] == ["installed"]


def test_other_signers_begin_anew_and_what_they_did_not_sign_is_refused(site: Site) -> None:
    first = site.move(site.offer("one"), 2**53 - 1)
    site.device.pull()
    other = make_key(site.folder, "other")
    site.device.signers = format_signer(other)
    site.device.write()
    assert site.device.pull().result == "unsigned"
    bundle = write_bundle(site.folder / "bundles/two", "two")
    offered = site.publisher.publish(bundle, other)
    site.publisher.move(offered, "stable", 1, other)
    assert site.device.pull().result == "installed"
    assert site.device.current != first
    assert site.device.state["sequence"] == 1


@pytest.mark.parametrize("fault", ["nothing", "cut", "pages"])
def test_the_referrers_api_is_asked_where_there_is_one(fault: str, tmp_path: Path) -> None:
    key = make_key(tmp_path, "release")
    with played_registry() as played:
        publisher = Publisher(played.host, "team/tiny")
        offered = publisher.publish(write_bundle(tmp_path / "bundle", "one"), key)
        publisher.move(offered, "stable", 1, key)
        for tag in [tag for tag in played.tags if tag.startswith("sha256-")]:
            del played.tags[tag]
        played.change = {"nothing": None, "cut": cut_first(), "pages": page_by_page()}[fault]
        settings = {"repository": "team/tiny"}
        device = PullingDevice(tmp_path / "root", played.host, format_signer(key), settings)
        pulled = device.pull()
    assert pulled.result == "installed", pulled
    asked = [path for _, path in played.asked if "/referrers/" in path]
    assert len(asked) == {"nothing": 2, "cut": 3, "pages": 4}[fault]


def test_what_was_signed_last_is_found_behind_many_wrong_signatures(tmp_path: Path) -> None:
    key = make_key(tmp_path, "release")
    bundle = write_bundle(tmp_path / "bundle", "one")
    with played_registry() as played:
        publisher = Publisher(played.host, "team/tiny")
        offered = publisher.publish(bundle, None)
        for number in range(33):
            wrong = b"%d" % number
            publisher.refer(offered, SIGNATURE_TYPE, {"manifest.json.sig": wrong})
            files = {"channel.json": wrong, "channel.json.sig": wrong}
            publisher.refer(offered, ENTRY_TYPE, files, **{"dev.edgepack.channel": "stable"})
        text = (bundle / "manifest.json").read_bytes()
        right = {"manifest.json.sig": sign(text, key, "edgepack")}
        publisher.refer(offered, SIGNATURE_TYPE, right)
        publisher.move(offered, "stable", 1, key)
        settings = {"repository": "team/tiny"}
        device = PullingDevice(tmp_path / "root", played.host, format_signer(key), settings)
        assert device.pull().result == "installed"


def cut_first() -> Change:
    """Return what ends the first list of referrers too early."""
    cut: list[str] = []

    def change(_method: str, path: str, reply: Reply) -> Reply:
        if "/referrers/" not in path or cut:
            return reply
        cut.append(path)
        return replace(reply, content=reply.content[:9], said_length=len(reply.content))

    return change


def page_by_page() -> Change:
    """Return what gives two referrers as two pages (distribution-spec, "Listing Referrers")."""
    counter = itertools.count()

    def change(_method: str, path: str, reply: Reply) -> Reply:
        if "/referrers/" not in path:
            return reply
        index = json.loads(reply.content)
        first, last = index["manifests"]
        if next(counter) % 2:
            return replace(reply, content=json.dumps({**index, "manifests": [last]}).encode())
        link = {"Link": f'<{path}?page=2>; rel="next"'}
        return Reply(200, json.dumps({**index, "manifests": [first]}).encode(), link)

    return change


@pytest.mark.parametrize(
    ("from_year", "until_year", "result"),
    [(2001, 2002, "clock"), (2090, 2091, "clock"), (2001, 2091, "installed")],
)
def test_a_certificate_that_is_not_valid_now_is_told_from_one_that_is_wrong(
    from_year: int, until_year: int, result: str, registry: str, tmp_path: Path
) -> None:
    key = make_key(tmp_path, "release")
    name = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]
    publisher = Publisher(registry, f"{name}/tiny")
    offered = publisher.publish(write_bundle(tmp_path / "bundle", "one"), key)
    publisher.move(offered, "stable", 1, key)
    certificate = write_certificate(tmp_path / "tls.pem", from_year, until_year)
    with gate(registry, certificate) as standing:
        settings = {"repository": publisher.repository, "plain_http": False}
        device = PullingDevice(tmp_path / "root", standing.host, format_signer(key), settings)
        assert device.pull().result == "tls"
        (device.folder / "ca.pem").write_bytes(
            certificate.read_bytes().partition(b"-----BEGIN PRIV")[0]
        )
        pulled = device.pull()
    assert pulled.result == result, pulled
    assert ("this device's clock" in pulled.text) == (result == "clock")


def write_certificate(path: Path, from_year: int, until_year: int) -> Path:
    """Write a certificate of 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(from_year, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(until_year, 1, 1, tzinfo=datetime.UTC))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(made.public_bytes(Encoding.PEM) + secret)
    return path


def test_reports_go_to_a_textfile_and_to_an_address_and_a_failing_one_changes_nothing(
    site: Site,
) -> None:
    release = site.move(site.offer("one"), 7)
    folder = site.folder / "metrics"
    folder.mkdir()
    site.device.credentials = {"report_token": "canary"}
    with reports() as (address, posted):
        site.device.write(textfile=str(folder), report_url=address)
        assert site.device.pull().result == "installed"
        site.device.pull()
    assert site.device.pull().result == "unchanged"
    text = (folder / "edgepack_pull_tiny.prom").read_text()
    assert [path.name for path in folder.iterdir()] == ["edgepack_pull_tiny.prom"]
    assert f'release="{release}",version="1.0.0"' in text
    for line in (
        'edgepack_pull_sequence{project="tiny"} 7',
        'edgepack_pull_follows{project="tiny"} 1',
        'edgepack_pull_result{project="tiny",result="unchanged"} 1',
        'edgepack_pull_runs_total{project="tiny",result="installed"} 1',
        'edgepack_pull_runs_total{project="tiny",result="unchanged"} 2',
    ):
        assert f"\n{line}\n" in text
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {line.partition("{")[0] for line in text.splitlines() if line[0] != "#"} == families
    (first, token), _ = posted
    assert token == "Bearer canary"
    assert (first["result"], first["release"], first["sequence"]) == ("installed", release, 7)
    assert "canary" not in text + json.dumps(first)


@contextmanager
def reports() -> Iterator[tuple[str, list[tuple[dict[str, Any], str]]]]:
    """Take what devices report; yield the address, and what came."""
    posted: list[tuple[dict[str, Any], str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((json.loads(body), self.headers["Authorization"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/reports", posted
        server.shutdown()
        thread.join()


def test_credentials_that_others_may_read_are_not_used(site: Site) -> None:
    site.device.credentials = {"username": "board", "password": "canary"}
    site.device.write()
    (site.device.folder / "credentials.json").chmod(0o640)
    pulled = site.device.pull()
    assert (pulled.code, pulled.result) == (2, "settings")
    assert "mode 640" in pulled.text
    assert site.gate.asked == []


def test_what_an_operator_switches_by_hand_stays_until_the_channel_moves(site: Site) -> None:
    first = site.move(site.offer("one"), 1)
    site.device.pull()
    site.move(site.offer("two", version="1.1.0"), 2)
    site.device.pull()
    (site.device.base / "current").unlink()
    (site.device.base / "current").symlink_to(f"releases/{first}")
    assert site.device.pull().result == "unchanged"
    assert site.device.current == first
    third = site.move(site.offer("three", version="1.2.0"), 3)
    assert site.device.pull().result == "installed"
    assert site.device.current == third


def test_the_history_says_who_switched_and_has_no_gap(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.device.pull()
    site.device.write(health=["false"])
    site.move(site.offer("two", version="1.1.0"), 2)
    assert site.device.pull().result == "health"
    lines = (site.device.base / "history.jsonl").read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in lines]
    assert [one["action"] for one in records] == ["push", "switch", "push", "switch", "rollback"]
    assert {one["by"] for one in records} == {"pull@stable"}
    for before, after in pairwise(lines):
        assert json.loads(after)["previous"] == hashlib.sha256(before).hexdigest()


@pytest.mark.slow(reason="three pushes over SSH beside runs of the agent")
def test_pushes_and_pulls_at_once_leave_whole_releases(site: Site, tmp_path: Path) -> None:
    if find_sshd() is None:
        pytest.skip("there is no sshd")
    offered = [site.offer(f"n{number}", version=f"1.{number}.0") for number in range(3)]
    pushed = write_tiny_bundle(tmp_path / "pushed")
    environment = {"PATH": put_python_first()}
    with OpenSshServer(tmp_path / "ssh", environment) as server, ThreadPoolExecutor(1) as pool:
        device = ssh_device(server, root=str(site.device.root))
        work = pool.submit(lambda: [push(pushed, device, self_test=False) for _ in range(3)])
        results = []
        for number, one in enumerate(offered):
            site.move(one, number + 1)
            results.append(site.device.pull().result)
        work.result()
    site.move(offered[2], 9, downgrade=True)
    assert site.device.pull().result in ("installed", "unchanged")
    assert site.device.current == offered[2]["annotations"]["dev.edgepack.manifest"][:16]
    assert set(results) <= {"installed", "unchanged", "busy", "older"}
    for release in (site.device.base / "releases").iterdir():
        digest = hashlib.sha256((release / "manifest.json").read_bytes()).hexdigest()
        assert is_whole(str(release), digest)


@pytest.mark.slow(reason="a repository of its own, and several runs of the agent")
@pytest.mark.parametrize("kind", ["entry-is-replayed", "agent-is-killed-in-its-trial"])
def test_a_disturbed_device_ends_with_the_right_release(
    kind: str, registry: str, tmp_path: Path
) -> None:
    with gate(registry) as standing:
        offers = Offers.write(tmp_path, registry, f"f{kind}/tiny")
        base = make_base(offers, standing, tmp_path / "base")
        place = tmp_path / "run"
        place.mkdir()
        assert run_one(kind, offers, standing, base, place, "1/1") == ""
