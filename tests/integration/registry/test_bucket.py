"""Bundles in a bucket: written once, proven where they are read, and never half there."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from edgepack import api
from edgepack.bundle.manifest import MANIFEST_SIGNATURE
from edgepack.bundle.signing import sign
from edgepack.cli.main import run
from edgepack.errors import (
    BundleError,
    EdgepackError,
    RegistryAwayError,
    RegistryError,
    ToolError,
    UsageError,
)
from edgepack.registry import bucket, connection

from tests.support.servers.boards import tree, with_file
from tests.support.servers.object_store import ObjectStore, object_store
from tests.support.servers.played_registry import played_registry
from tests.support.servers.signers import make_key, write_allowed

pytestmark = pytest.mark.slow(reason="moto takes seconds to load")
ADDRESS = "s3://team/bundles/tiny"
MODEL = "models/cpu-fp32.onnx"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_WAIT_S", 0.001)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def publish(bundle: Path, address: str = ADDRESS, **options: Any) -> api.Published:
    given = api.PublishOptions(**options)
    [published] = api.publish([bundle], api.Reference.parse(address), options=given)
    return published


def fetch(out: Path | None, name: str = "1.0.0", **options: Any) -> api.Fetched:
    reference = api.Reference.parse(ADDRESS).at(name)
    [fetched] = api.fetch(reference, out=out, options=api.FetchOptions(**options))
    return fetched


def find_object(path: Path) -> str:
    return f"bundles/tiny/blobs/sha256/{hashlib.sha256(path.read_bytes()).hexdigest()}"


def change(bundle: Path, folder: Path) -> Path:
    return with_file(Path(shutil.copytree(bundle, folder)), b"another", name="files/more.txt")


def test_bundle_when_it_was_published_is_the_same_here_and_as_in_a_registry(
    store: ObjectStore, whole: Path, tmp_path: Path
):
    published = publish(whole)
    fetched = fetch(tmp_path / "out")
    assert tree(fetched.path) == tree(whole)
    assert fetched.reference == published.reference == f"{ADDRESS}:1.0.0@{published.digest}"
    with played_registry() as played:
        there = publish(whole, played.address("tiny"))
    assert there.digest == published.digest
    objects = store.list_objects()
    blobs = [name for name in objects if "/blobs/" in name]
    assert len(blobs) == len(objects) - 1  # the tag
    for name in blobs:
        assert name == f"bundles/tiny/blobs/sha256/{hashlib.sha256(objects[name]).hexdigest()}"
    assert json.loads(objects["bundles/tiny/tags/1.0.0"])["digest"] == published.digest


def test_publish_when_all_is_there_writes_nothing(store: ObjectStore, whole: Path, tmp_path: Path):
    publish(whole)
    before = store.list_objects()
    store.asked.clear()
    again = publish(whole)
    assert (again.blobs_sent, again.bytes_sent) == (0, 0)
    assert store.list_objects() == before
    assert store.count("PUT", 200) == 0
    publish(change(whole, tmp_path / "changed"), f"{ADDRESS}:2")
    after = store.list_objects()
    assert {name: after[name] for name in before} == before


def test_publish_when_the_tag_leads_elsewhere_refuses(
    store: ObjectStore, whole: Path, tmp_path: Path
):
    published = publish(whole)
    before = store.list_objects()
    with pytest.raises(UsageError, match=f"leads to {published.digest} already"):
        publish(change(whole, tmp_path / "changed"))
    assert store.list_objects() == before


def test_bundle_when_it_is_signed_keeps_each_signature(
    store: ObjectStore, whole: Path, tmp_path: Path
):
    bundle = Path(shutil.copytree(whole, tmp_path / "bundle"))
    alice, bob = make_key(tmp_path / "alice"), make_key(tmp_path / "bob")
    allowed = write_allowed(tmp_path / "allowed", bob=bob)
    published = publish(bundle)
    with pytest.raises(BundleError, match="not signed"):
        fetch(tmp_path / "out", require_signature=True)
    for key in (alice, bob):
        sign(bundle, key)
        assert publish(bundle).digest == published.digest
    fetched = fetch(tmp_path / "out", require_signature=True, allowed_signers=allowed)
    assert fetched.signature is not None
    assert fetched.signature.signer == "bob"
    assert (fetched.path / MANIFEST_SIGNATURE).read_bytes() == (
        bundle / MANIFEST_SIGNATURE
    ).read_bytes()
    only_others = write_allowed(tmp_path / "others", carol=make_key(tmp_path / "carol"))
    with pytest.raises(BundleError):
        fetch(tmp_path / "refused", require_signature=True, allowed_signers=only_others)
    assert tree(tmp_path / "refused") == {}


def test_publish_when_two_do_it_at_once_loses_no_signature(
    store: ObjectStore, whole: Path, tmp_path: Path
):
    allowed = {}
    bundles = []
    for name in ("alice", "bob"):
        allowed[name] = make_key(tmp_path / name)
        bundles.append(Path(shutil.copytree(whole, tmp_path / f"of-{name}")))
        sign(bundles[-1], allowed[name])
    with ThreadPoolExecutor(2) as pool:
        done = [*pool.map(publish, bundles)]
    assert done[0].digest == done[1].digest
    for name, key in allowed.items():
        signers = write_allowed(tmp_path / f"allowed-{name}", **{name: key})
        fetched = fetch(tmp_path / f"for-{name}", require_signature=True, allowed_signers=signers)
        assert fetched.signature is not None
        assert fetched.signature.signer == name


def test_publish_when_others_take_the_tag_meanwhile_leaves_it_theirs(
    store: ObjectStore, whole: Path, tmp_path: Path
):
    ours, theirs = change(whole, tmp_path / "ours"), whole
    first: list[str] = []

    def overtake(method: str, path: str) -> str:
        if (method, path) == ("PUT", "/team/bundles/tiny/tags/1.0.0") and not first:
            first.append(path)
            publish(theirs)
        return ""

    store.fault = overtake
    with pytest.raises(UsageError, match="somebody was faster"):
        publish(ours)
    assert tree(fetch(tmp_path / "out").path) == tree(theirs)


@pytest.mark.parametrize("fault", ["flipped", "other", "short", "truncated", "gone"])
def test_fetch_when_the_store_lies_writes_nothing(
    fault: str, store: ObjectStore, whole: Path, tmp_path: Path
):
    publish(whole)
    place = f"/team/{find_object(whole / MODEL)}"
    store.fault = lambda method, path: fault if (method, path) == ("GET", place) else ""
    with pytest.raises((BundleError, RegistryError)) as raised:
        fetch(tmp_path / "out")
    kinds = {"truncated": RegistryAwayError, "short": RegistryAwayError}
    assert type(raised.value) is kinds.get(fault, BundleError)
    if fault == "flipped":
        digest = hashlib.sha256((whole / MODEL).read_bytes()).hexdigest()
        assert f"sends as sha256:{digest} has another digest" in str(raised.value)
    assert tree(tmp_path / "out") == {}
    with pytest.raises(EdgepackError):
        fetch(None)


@pytest.mark.parametrize("name", ["tags/1.0.0", "blobs/sha256/{digest}"])
@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b"x" * (5 << 20)])
def test_fetch_when_what_leads_to_files_was_changed_says_so(
    name: str, content: bytes, store: ObjectStore, whole: Path, tmp_path: Path
):
    digest = publish(whole).digest
    place = f"bundles/tiny/{name.format(digest=digest.partition(':')[2])}"
    store.write_object(place, content)
    with pytest.raises((BundleError, RegistryError)):
        fetch(tmp_path / "out")
    assert tree(tmp_path / "out") == {}


def test_fetch_when_the_store_has_another_bundle_there_refuses_it(
    store: ObjectStore, whole: Path, tmp_path: Path
):
    place = "bundles/tiny/blobs/sha256"
    ours = publish(whole).digest
    theirs = publish(change(whole, tmp_path / "changed"), f"{ADDRESS}:2").digest
    other = store.list_objects()[f"{place}/{theirs.partition(':')[2]}"]
    store.write_object(f"{place}/{ours.partition(':')[2]}", other)
    for name in ("1.0.0", ours):
        with pytest.raises(BundleError, match=f"sends as {ours} has another digest"):
            fetch(tmp_path / "out", name)
    assert tree(tmp_path / "out") == {}


def test_fetch_when_referrers_are_garbage_leaves_them_aside(
    store: ObjectStore, whole: Path, tmp_path: Path
):
    bundle = Path(shutil.copytree(whole, tmp_path / "bundle"))
    key = make_key(tmp_path / "alice")
    sign(bundle, key)
    published = publish(bundle)
    place = f"bundles/tiny/referrers/{published.digest.replace(':', '/')}"
    store.write_object(f"{place}/{'0' * 64}", b"garbage")
    signers = write_allowed(tmp_path / "allowed", alice=key)
    assert fetch(tmp_path / "out", require_signature=True, allowed_signers=signers).signature


@pytest.mark.parametrize(("fault", "kind"), [("5xx", RegistryAwayError), ("denied", RegistryError)])
def test_store_when_it_is_out_of_order_is_one_error_without_secrets(
    fault: str, kind: type, store: ObjectStore, whole: Path, tmp_path: Path
):
    publish(whole)
    before = store.list_objects()
    store.fault = lambda method, path: fault
    for action in (lambda: fetch(tmp_path / "out"), lambda: publish(whole, f"{ADDRESS}:2")):
        store.asked.clear()
        with pytest.raises(RegistryError) as raised:
            action()
        assert type(raised.value) is kind
        assert len(store.asked) == (connection.TRIES if fault == "5xx" else 1)
        assert "operator" not in str(raised.value)
        assert "canary" not in str(raised.value)
    assert store.list_objects() == before
    assert tree(tmp_path / "out") == {}


def test_store_when_it_is_silent_is_not_waited_for(
    store: ObjectStore, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    publish(whole)
    monkeypatch.setattr(bucket, "READ_S", 0.3)
    store.fault = lambda method, path: "slow"
    with pytest.raises(RegistryAwayError):
        fetch(tmp_path / "out")


def test_store_when_it_fails_for_a_while_is_asked_again(
    store: ObjectStore, whole: Path, tmp_path: Path
):
    seen: dict[tuple[str, str], int] = {}

    def fail_twice(method: str, path: str) -> str:
        seen[method, path] = seen.get((method, path), 0) + 1
        breaking = "truncated" if method == "GET" else "5xx"
        return breaking if seen[method, path] <= 2 else ""

    store.fault = fail_twice
    publish(whole)
    assert tree(fetch(tmp_path / "out").path) == tree(whole)
    assert max(seen.values()) > 2


def test_publish_when_writes_are_refused_ends_and_leaves_no_tag(store: ObjectStore, whole: Path):
    store.fault = lambda method, path: "denied" if method == "PUT" else ""
    with pytest.raises(RegistryError) as raised:
        publish(whole)
    assert "s3:PutObject" in raised.value.hint
    assert store.list_objects() == {}


def test_publish_when_it_ended_in_the_midst_is_finished_by_the_next(
    store: ObjectStore, whole: Path, tmp_path: Path
):
    model = f"/team/{find_object(whole / MODEL)}"
    store.fault = lambda method, path: "denied" if (method, path) == ("PUT", model) else ""
    with pytest.raises(RegistryError):
        publish(whole)
    assert not [name for name in store.list_objects() if "/tags/" in name]
    store.fault = lambda method, path: ""
    assert publish(whole).blobs_sent > 0
    assert tree(fetch(tmp_path / "out").path) == tree(whole)


def test_file_when_it_is_large_is_sent_in_parts(
    store: ObjectStore, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bucket, "AT_ONCE", 6 << 20)
    bundle = Path(shutil.copytree(whole, tmp_path / "bundle"))
    large, most = bytes(range(256)) * (12 << 12), bytes(6 << 20)
    with_file(bundle, large, name="files/large.bin")
    with_file(bundle, most, name="files/most.bin")
    publish(bundle)
    asked = [each for each in store.asked if each[1] == f"/team/{find_object(bundle / MODEL)}"]
    assert [method for method, _, _ in asked if method != "HEAD"] == ["PUT"]
    parts = [
        each
        for each in store.asked
        if each[1] == f"/team/{find_object(bundle / 'files/large.bin')}" and each[0] == "PUT"
    ]
    assert len(parts) == 3
    assert tree(fetch(tmp_path / "out").path) == tree(bundle)


@pytest.mark.parametrize("at_once", [1 << 20, 64 << 20])
def test_file_when_it_changes_while_it_is_sent_is_not_there(
    at_once: int, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bucket, "AT_ONCE", at_once)
    content = bytes(8 << 20)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    place = bucket.open_repository(api.Reference.parse(ADDRESS))
    with pytest.raises(BundleError, match="changed while it was sent"):
        place.write_blob(digest, len(content), lambda: content[:-1] + b"x")
    assert store.list_objects() == {}
    assert not place.has_blob(digest)


def test_fetch_when_the_disk_is_full_leaves_nothing(
    store: ObjectStore, whole: Path, tmp_path: Path
):
    bundle = with_file(
        Path(shutil.copytree(whole, tmp_path / "bundle")), bytes(1 << 20), name="files/large.bin"
    )
    publish(bundle)
    out = tmp_path / "out"
    argv = [sys.executable, "-m", "edgepack", "fetch", f"{ADDRESS}:1.0.0", "--out", str(out)]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19)),
    )
    assert done.returncode == ToolError.exit_code, done.stderr
    assert "cannot write to" in done.stderr
    assert tree(out) == {}


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda whole: publish(whole, move=True), "only registries move tags"),
        (lambda whole: publish(whole, channel="stable"), "and have channels"),
        (lambda whole: publish(whole, plain_http=True), "--plain-http is about registries"),
        (
            lambda _: api.promote(
                api.Reference.parse(ADDRESS), "lab", options=api.PublishOptions(channel="stable")
            ),
            "only registries have channels",
        ),
        (
            lambda whole: api.enroll_device(api.load_device("local"), ADDRESS, whole),
            "a device follows a channel",
        ),
    ],
)
def test_bucket_when_it_is_asked_for_what_changes_refuses(
    ask: Callable[[Path], Any], said: str, store: ObjectStore, whole: Path
):
    with pytest.raises(UsageError, match=said):
        ask(whole)
    assert store.asked == []


def test_bucket_when_its_libraries_are_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ToolError) as raised:
        bucket.open_repository(api.Reference.parse(ADDRESS))
    assert "edgepack[s3]" in raised.value.hint


def test_commands_when_they_are_typed_publish_verify_fetch_and_push(
    store: ObjectStore,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    assert run(["publish", str(whole), ADDRESS, "--json"]) == 0
    [published] = json.loads(capsys.readouterr().out)
    assert run(["verify", f"{ADDRESS}:1.0.0"]) == 0
    assert f"{ADDRESS}:1.0.0@{published['digest']}" in capsys.readouterr().out
    assert run(["fetch", f"{ADDRESS}@{published['digest']}", "--out", str(tmp_path / "out")]) == 0
    assert tree(tmp_path / "out" / "tiny-1.0.0-linux-x86-64") == tree(whole)
    assert run(["fetch", f"{ADDRESS}:2", "--out", str(tmp_path / "out")]) == 2
    assert "there is no tag '2'" in capsys.readouterr().err
    assert run(["channel", "show", ADDRESS]) == 0
    assert "tiny-1.0.0-linux-x86-64" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "root"
    entry = {"transport": "local", "target": "linux-x86-64", "root": str(root)}
    document = {"schema_version": 1, "devices": {"board": entry}}
    (tmp_path / "devices.yaml").write_text(json.dumps(document))
    assert run(["push", f"{ADDRESS}:1.0.0", "--device", "board", "--no-self-test"]) == 0
    assert (root / "tiny" / "current" / MODEL).is_file()
