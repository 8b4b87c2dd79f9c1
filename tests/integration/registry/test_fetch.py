"""What a registry sends counts only after it was hashed: each lie is one error."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from edgepack import api
from edgepack.bundle.signing import sign
from edgepack.cli.main import run
from edgepack.errors import BundleError, EdgepackError, RegistryAwayError, RegistryError
from edgepack.registry import connection
from edgepack.registry.artifact import FILE_PATH
from edgepack.registry.documents import TITLE

from tests.support.servers.boards import tree
from tests.support.servers.played_registry import PlayedRegistry, Reply, played_registry
from tests.support.servers.signers import make_key, write_allowed

MODEL = "models/cpu-fp32.onnx"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_WAIT_S", 0.001)


@pytest.fixture
def played(whole: Path) -> Iterator[PlayedRegistry]:
    with played_registry() as playing:
        api.publish([whole], api.Reference.parse(playing.address("tiny:1")))
        yield playing


def fetch(played: PlayedRegistry, out: Path | None, name: str = "tiny:1", **options: Any) -> Path:
    given = api.FetchOptions(**options)
    reference = api.Reference.parse(played.address(name))
    [got] = api.fetch(reference, out=out, options=given)
    return got.path


def find_layer(document: Any, title: str) -> Any:
    return next(each for each in document["layers"] if each["annotations"][TITLE] == title)


def lie_about(played: PlayedRegistry, change: Any) -> None:
    """Let the tag lead to a changed image manifest."""
    document = played.document("1")
    change(document)
    played.put(json.dumps(document).encode(), "1")


def drop_model(document: Any) -> None:
    document["layers"].remove(find_layer(document, MODEL))


def swap_files(document: Any) -> None:
    one, other = (find_layer(document, name) for name in (MODEL, "golden/0-x.bin"))
    one["digest"], other["digest"] = other["digest"], one["digest"]
    one["size"], other["size"] = other["size"], one["size"]


def leave_the_folder(document: Any) -> None:
    layer = find_layer(document, MODEL)
    layer["annotations"] = {TITLE: "../../outside.onnx", FILE_PATH: "../../outside.onnx"}


def add_a_file(document: Any) -> None:
    title = "sitecustomize.py"
    document["layers"].append({**find_layer(document, MODEL), "annotations": {TITLE: title}})


def name_another_release(document: Any) -> None:
    document["annotations"]["dev.edgepack.manifest"] = "0" * 64


def lengthen(document: Any) -> None:
    find_layer(document, MODEL)["size"] += 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop_model, "is missing"),
        (swap_files, "another file than"),
        (leave_the_folder, "none of the bundle's files"),
        (add_a_file, "none of the bundle's files"),
        (name_another_release, "names the release 0000000000000000"),
        (lengthen, "another file than"),
    ],
)
def test_fetch_when_the_image_manifest_lies_writes_nothing(
    change: Any, said: str, played: PlayedRegistry, tmp_path: Path
):
    lie_about(played, change)
    with pytest.raises(BundleError, match=said):
        fetch(played, tmp_path / "out")
    assert tree(tmp_path) == {}
    with pytest.raises(BundleError, match=said):
        fetch(played, None)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda d: d.update(artifactType="application/x"), "no bundle"),
        (lambda d: d["annotations"].pop("dev.edgepack.project"), "no bundle"),
        (lambda d: d["annotations"].update({"dev.edgepack.manifest": "../x"}), "no bundle"),
        (lambda d: d["layers"][0].update(digest="md5:0"), "none that is known"),
        (lambda d: d["layers"][0].update(size=-1), "none that is known"),
        (lambda d: d.update(schemaVersion=1), "none that is known"),
        (lambda d: d["annotations"].update(much="x" * (5 << 20)), "more than 4 MiB"),
    ],
)
def test_fetch_when_there_is_no_bundle_says_what_is_wrong(
    change: Any, error: str, played: PlayedRegistry, tmp_path: Path
):
    lie_about(played, change)
    with pytest.raises(RegistryError, match=error):
        fetch(played, tmp_path / "out")


def make_liar(wanted: str, lie: Any) -> Any:
    def change(method: str, path: str, reply: Reply) -> Reply:
        return lie(reply) if method == "GET" and path.endswith(wanted) else reply

    return change


def test_fetch_when_a_blob_is_another_refuses_it(
    played: PlayedRegistry, whole: Path, tmp_path: Path
):
    digest = hashlib.sha256((whole / MODEL).read_bytes()).hexdigest()
    lies = {
        "has another digest": lambda reply: replace(reply, content=reply.content[:-1] + b"?"),
        "is longer than it says": lambda reply: replace(reply, content=reply.content + b"?"),
    }
    for said, lie in lies.items():
        played.change = make_liar(digest, lie)
        with pytest.raises(BundleError, match=said):
            fetch(played, tmp_path / "out")
        assert tree(tmp_path) == {}


def test_fetch_when_a_blob_ends_early_asks_for_the_rest(
    played: PlayedRegistry, whole: Path, tmp_path: Path
):
    data = (whole / "edgepack_loader.py").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    asked = []

    def cut(method: str, path: str, reply: Reply) -> Reply:
        if method == "GET" and path.endswith(digest):
            asked.append(len(reply.content))
            if len(asked) < 4:
                half = reply.content[: len(reply.content) // 2]
                return replace(reply, content=half, said_length=len(reply.content))
        return reply

    played.change = cut
    assert tree(fetch(played, tmp_path / "out")) == tree(whole)
    assert asked[0] == len(data)
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] < len(data) / 4


def test_fetch_when_a_blob_stays_short_gives_up(
    played: PlayedRegistry, whole: Path, tmp_path: Path
):
    digest = hashlib.sha256((whole / MODEL).read_bytes()).hexdigest()
    played.change = make_liar(digest, lambda reply: Reply(200, reply.content[:100]))
    with pytest.raises(RegistryAwayError, match="sends 100 of"):
        fetch(played, tmp_path / "out")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_fetch_when_the_registry_is_away_for_a_while_goes_on(
    status: int, played: PlayedRegistry, whole: Path, tmp_path: Path
):
    left = [3]

    def fail(_method: str, _path: str, reply: Reply) -> Reply:
        if left[0]:
            left[0] -= 1
            return Reply(status, headers={"Retry-After": "0"})
        return reply

    played.change = fail
    assert tree(fetch(played, tmp_path / "out")) == tree(whole)


def test_fetch_when_the_registry_stays_away_says_so(played: PlayedRegistry, tmp_path: Path):
    played.change = lambda *_: Reply(503)
    with pytest.raises(RegistryAwayError, match="answers GET with 503"):
        fetch(played, tmp_path / "out")
    assert len(played.asked) > connection.TRIES


def test_fetch_when_nobody_listens_says_so(tmp_path: Path):
    with pytest.raises(RegistryAwayError, match="does not answer"):
        api.fetch(api.Reference.parse("oci://127.0.0.1:9/tiny:1"), out=tmp_path)


def test_fetch_when_a_tag_says_another_digest_refuses_it(played: PlayedRegistry, tmp_path: Path):
    def lie(_method: str, _path: str, reply: Reply) -> Reply:
        said = {"Docker-Content-Digest": f"sha256:{'0' * 64}"}
        return replace(reply, headers={**reply.headers, **said})

    played.change = lie
    with pytest.raises(BundleError, match="another digest"):
        fetch(played, tmp_path / "out")


def test_fetch_when_a_digest_leads_to_another_manifest_refuses_it(
    played: PlayedRegistry, tmp_path: Path
):
    digest = played.tags["1"]
    other = played.document("1")
    other["annotations"]["x"] = "y"
    content = json.dumps(other).encode()
    played.manifests[digest] = (other["mediaType"], content)
    # As a registry answers that does not say the digest itself.
    kept = ("Content-Type",)
    played.change = lambda _method, _path, reply: replace(
        reply, headers={name: reply.headers[name] for name in kept if name in reply.headers}
    )
    with pytest.raises(BundleError, match="another digest"):
        fetch(played, tmp_path / "out", f"tiny@{digest}")


@pytest.mark.parametrize("target", ["http://127.0.0.1:9/x", "/v2/loop"])
def test_fetch_when_it_is_led_in_circles_or_away_ends(
    target: str, played: PlayedRegistry, tmp_path: Path
):
    played.change = lambda *_: Reply(307, headers={"Location": target})
    with pytest.raises(RegistryError):
        fetch(played, tmp_path / "out")


def test_fetch_when_it_is_led_to_storage_shows_it_nothing(
    played: PlayedRegistry, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    auth = tmp_path / "auth.json"
    auth.write_text(json.dumps({"auths": {played.host: {"auth": "YWxpY2U6c2VjcmV0"}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(auth))
    with played_registry() as storage:
        storage.blobs = played.blobs

        def lead(method: str, path: str, reply: Reply) -> Reply:
            if played.shown[-1] != "Basic YWxpY2U6c2VjcmV0":
                return Reply(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
            if method == "GET" and "/blobs/" in path:
                return Reply(307, headers={"Location": f"http://{storage.host}{path}"})
            return reply

        played.change = lead
        assert tree(fetch(played, tmp_path / "out")) == tree(whole)
        assert storage.asked
        assert {*storage.shown} == {""}


def test_fetch_when_signatures_are_garbage_refuses_them_unless_one_is_right(
    played: PlayedRegistry, whole: Path, tmp_path: Path
):
    bundle = Path(shutil.copytree(whole, tmp_path / "signed"))
    alice, mallory = (make_key(tmp_path / name) for name in ("alice", "mallory"))
    allowed = write_allowed(tmp_path / "signers", alice=alice)
    reference = api.Reference.parse(played.address("tiny:1"))
    options = {"allowed_signers": allowed, "require_signature": True}
    with pytest.raises(BundleError, match="is not signed"):
        fetch(played, tmp_path / "out", **options)
    sign(bundle, mallory)
    api.publish([bundle], reference)
    with pytest.raises(BundleError, match="does not let it sign"):
        fetch(played, tmp_path / "out", **options)
    sign(bundle, alice)
    api.publish([bundle], reference)
    assert tree(fetch(played, tmp_path / "out", **options)) == tree(bundle)
    for digest, content in played.blobs.items():
        if content.startswith(b"-----BEGIN SSH SIGNATURE"):
            played.blobs[digest] = content.swapcase()
    with pytest.raises(EdgepackError, match="is not signed"):
        fetch(played, tmp_path / "other", **options)
    assert not (tmp_path / "other").exists()


def test_fetch_when_the_cache_has_it_gets_no_file_again(played: PlayedRegistry, whole: Path):
    path = fetch(played, None)
    assert tree(path) == tree(whole)
    (path.parent / f".{path.name}-killed").mkdir()
    before = len(played.asked)
    assert fetch(played, None) == path
    blobs = [path for _, path in played.asked[before:] if "/blobs/" in path]
    assert len(blobs) == 1  # manifest.json, whose signature is looked for
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    (path / MODEL).write_bytes(b"altered in the cache")
    assert tree(fetch(played, None)) == tree(whole)


@pytest.mark.parametrize("is_cached", [True, False])
def test_fetch_when_two_do_it_at_once_both_have_it(
    played: PlayedRegistry, whole: Path, tmp_path: Path, *, is_cached: bool
):
    out = None if is_cached else tmp_path / "out"
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: fetch(played, out), range(2))
    assert one == other
    assert tree(one) == tree(whole)
    assert [path.name for path in one.parent.iterdir()] == [one.name]


def test_push_when_the_bundle_is_in_a_registry_is_as_from_a_folder(
    played: PlayedRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "root"
    entry = {"transport": "local", "target": "linux-x86-64", "root": str(root)}
    document = {"schema_version": 1, "devices": {"board": entry}}
    (tmp_path / "devices.yaml").write_text(json.dumps(document))
    address = f"{played.address('tiny')}@{played.tags['1']}"
    assert run(["push", address, "--device", "board", "--no-self-test"]) == 0
    assert (root / "tiny" / "current" / MODEL).is_file()
    before = len(played.asked)
    assert run(["push", played.address("tiny:1"), "--device", "board", "--no-self-test"]) == 0
    assert "was there already" in capsys.readouterr().out
    asked = played.asked[before:]
    assert len([path for _, path in asked if "/blobs/" in path]) == 1
