"""Bundles in a real registry, and what other programs see of them there."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from edgepack import api
from edgepack.bundle.manifest import MANIFEST, MANIFEST_DIGEST, MANIFEST_SIGNATURE
from edgepack.bundle.reading import verify
from edgepack.bundle.signing import sign
from edgepack.cli.main import run
from edgepack.deploy.transfer.chunks import cut_file
from edgepack.errors import BundleError, RegistryError, UsageError
from edgepack.registry import connection
from edgepack.registry.repository import RegistryRepository

from tests.support.reports.tiny_bundle import change_manifest
from tests.support.servers.boards import tree, with_file
from tests.support.servers.played_registry import PlayedRegistry, Reply, played_registry
from tests.support.servers.registry import (
    PASSWORD,
    USER,
    Registry,
    make_htpasswd,
    require_skopeo,
    running_registry,
)
from tests.support.servers.signers import make_key, write_allowed


@pytest.fixture
def bundle(whole: Path, tmp_path: Path) -> Path:
    copied = Path(shutil.copytree(whole, tmp_path / "bundle"))
    with_file(copied, bytes(range(256)) * 1024, name="files/large.bin")
    with_file(copied, b"", name="files/empty.txt")
    return with_file(copied, b"#!/bin/sh\n", mode="755", name="files/run.sh")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with running_registry(tmp_path / "registry") as running:
        yield running


@pytest.fixture
def played() -> Iterator[PlayedRegistry]:
    with played_registry() as playing:
        yield playing


def publish(bundle: Path, address: str, **options: Any) -> api.Published:
    given = api.PublishOptions(**options)
    [published] = api.publish([bundle], api.Reference.parse(address), options=given)
    return published


def read_raw(address: str) -> Any:
    """Return what an independent client reads."""
    place = address.replace("oci://", "docker://")
    argv = [require_skopeo(), "inspect", "--raw", "--tls-verify=false", place]
    return json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)


def test_publish_when_the_registry_is_empty_makes_a_layer_of_each_file(
    bundle: Path, registry: Registry
):
    published = publish(bundle, registry.address("lab/tiny"))
    assert published.tags == ("1.0.0",)
    document = read_raw(registry.address("lab/tiny:1.0.0"))
    layers = {each["annotations"]["org.cncf.model.filepath"]: each for each in document["layers"]}
    manifest = json.loads((bundle / MANIFEST).read_text())
    assert layers.keys() == {MANIFEST, ".edgepack/chunks.json"} | {
        file["path"] for file in manifest["files"]
    }
    for file in manifest["files"]:
        layer = layers[file["path"]]
        assert (layer["digest"], layer["size"]) == (f"sha256:{file['sha256']}", file["size_bytes"])
    release = hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()
    assert layers[MANIFEST]["digest"] == f"sha256:{release}"
    assert document["annotations"]["dev.edgepack.manifest"] == release == published.release
    kinds = {path: layer["mediaType"].split(".")[3] for path, layer in layers.items()}
    assert kinds["models/cpu-fp32.onnx"] == "weight"
    assert kinds["golden/0-x.bin"] == "dataset"
    assert kinds["edgepack_loader.py"] == "code"
    assert document["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"


def test_publish_when_it_is_done_has_a_config_that_modelpack_takes(
    bundle: Path, registry: Registry
):
    publish(bundle, registry.address("lab/tiny"))
    document = read_raw(registry.address("lab/tiny:1.0.0"))
    assert document["config"]["mediaType"] == "application/vnd.cncf.model.config.v1+json"
    config = json.loads(registry.find_blob(document["config"]["digest"]).read_bytes())
    assert config["descriptor"]["name"] == "tiny"
    assert config["config"] == {"format": "onnx"}
    assert config["modelfs"]["type"] == "layers"
    assert config["modelfs"]["diffIds"] == [each["digest"] for each in document["layers"]]


def test_publish_when_files_are_large_lists_their_chunks(bundle: Path, registry: Registry):
    publish(bundle, registry.address("lab/tiny"))
    document = read_raw(registry.address("lab/tiny:1.0.0"))
    digest = document["layers"][-1]["digest"]
    listed = json.loads(registry.find_blob(digest).read_bytes())
    chunks = cut_file(bundle / "files/large.bin")
    assert listed["schema_version"] == 1
    assert listed["files"]["files/large.bin"] == [[each.sha256, each.size] for each in chunks]
    assert "files/run.sh" not in listed["files"]


def test_publish_when_all_is_there_sends_nothing(bundle: Path, registry: Registry):
    key = make_key(bundle.parent / "alice")
    sign(bundle, key)
    first = publish(bundle, registry.address("lab/tiny"))
    before = len(registry.list_requests())
    second = publish(bundle, registry.address("lab/tiny"))
    assert second.digest == first.digest
    assert (second.blobs_sent, second.bytes_sent) == (0, 0)
    methods = {method for method, *_ in registry.list_requests()[before:]}
    assert methods <= {"HEAD", "GET"}


def test_publish_when_one_file_changed_sends_that_alone(bundle: Path, registry: Registry):
    publish(bundle, registry.address("lab/tiny:one"))
    with_file(bundle, b"another", name="files/run.sh")
    changed = publish(bundle, registry.address("lab/tiny:two"))
    # The file, manifest.json, and the config, which lists them.
    assert changed.blobs_sent == 3


def test_publish_when_the_tag_leads_elsewhere_refuses_and_says_where(
    bundle: Path, registry: Registry
):
    first = publish(bundle, registry.address("lab/tiny:one"))
    with_file(bundle, b"another", name="files/run.sh")
    before = len(registry.list_requests())
    with pytest.raises(UsageError, match=first.digest):
        publish(bundle, registry.address("lab/tiny:one"))
    assert {method for method, *_ in registry.list_requests()[before:]} <= {"HEAD", "GET"}
    moved = publish(bundle, registry.address("lab/tiny:one"), move=True)
    found = RegistryRepository(api.Reference.parse(registry.address("lab/tiny"))).read_manifest(
        "one"
    )
    assert found is not None
    assert found.digest == moved.digest != first.digest


def test_publish_when_targets_are_several_tags_each_with_its_own(
    bundle: Path, registry: Registry, tmp_path: Path
):
    other = Path(shutil.copytree(bundle, tmp_path / "dist" / "other"))
    change_manifest(other, lambda manifest: manifest.update(target="raspberry-pi"))
    shutil.copytree(bundle, tmp_path / "dist" / "one")
    published = api.publish(
        [tmp_path / "dist"], api.Reference.parse(registry.address("lab/tiny:7"))
    )
    assert sorted(each.tags for each in published) == [("7-linux-x86-64",), ("7-raspberry-pi",)]
    got = api.fetch(api.Reference.parse(registry.address("lab/tiny:7")), out=tmp_path / "out")
    assert sorted(each.bundle for each in got) == [
        "tiny-1.0.0-linux-x86-64",
        "tiny-1.0.0-raspberry-pi",
    ]


def test_publish_when_the_bundle_is_broken_sends_nothing(bundle: Path, registry: Registry):
    (bundle / "models/cpu-fp32.onnx").write_bytes(b"broken")
    with pytest.raises(BundleError, match="hash"):
        publish(bundle, registry.address("lab/tiny"))
    assert registry.list_requests() == []


def test_publish_when_a_signature_is_required_refuses_a_bundle_without(
    bundle: Path, registry: Registry
):
    alice = make_key(bundle.parent / "alice")
    allowed = write_allowed(bundle.parent / "signers", alice=alice)
    with pytest.raises(BundleError, match="not signed"):
        publish(
            bundle, registry.address("lab/tiny"), require_signature=True, allowed_signers=allowed
        )
    sign(bundle, alice)
    options = {"require_signature": True, "allowed_signers": allowed}
    assert publish(bundle, registry.address("lab/tiny"), **options).signer == "alice"


@pytest.mark.parametrize("kind", ["real", "played"])
def test_publish_when_it_is_signed_the_signature_comes_back(
    kind: str, bundle: Path, tmp_path: Path, request: pytest.FixtureRequest
):
    registry = request.getfixturevalue("registry" if kind == "real" else "played")
    alice = make_key(tmp_path / "alice")
    allowed = write_allowed(tmp_path / "signers", alice=alice)
    sign(bundle, alice)
    publish(bundle, registry.address("lab/tiny"))
    options = api.FetchOptions(allowed_signers=allowed, require_signature=True)
    reference = api.Reference.parse(registry.address("lab/tiny:1.0.0"))
    [got] = api.fetch(reference, out=tmp_path / "out", options=options)
    assert got.signature is not None
    assert got.signature.signer == "alice"
    assert tree(got.path) == tree(bundle)
    assert (bundle / MANIFEST_SIGNATURE).read_bytes() == (
        got.path / MANIFEST_SIGNATURE
    ).read_bytes()
    assert (got.path / MANIFEST_DIGEST).read_bytes() == (bundle / MANIFEST_DIGEST).read_bytes()
    verify(got.path)


def test_publish_when_two_do_it_at_once_both_end_whole_and_again_has_both_signatures(
    bundle: Path, registry: Registry, tmp_path: Path
):
    """A registry without the API has no way to add to a list that others write meanwhile."""
    alice, bob = make_key(tmp_path / "alice"), make_key(tmp_path / "bob")
    other = Path(shutil.copytree(bundle, tmp_path / "same"))
    sign(bundle, alice)
    sign(other, bob)
    with ThreadPoolExecutor(2) as pool:
        done = [
            *pool.map(lambda each: publish(each, registry.address("lab/tiny")), (bundle, other))
        ]
    assert done[0].digest == done[1].digest
    for each in (bundle, other):
        publish(each, registry.address("lab/tiny"))
    referrers = RegistryRepository(
        api.Reference.parse(registry.address("lab/tiny"))
    ).list_referrers(done[0].digest)
    kinds = [each.artifact_type for each in referrers]
    assert kinds.count("application/vnd.edgepack.signature.v1") == 2


def test_publish_when_another_writes_the_list_before_the_tag_is_set_adds_to_it_again(
    whole: Path, tmp_path: Path
):
    bundles = [Path(shutil.copytree(whole, tmp_path / name)) for name in ("alice", "bob")]
    for each in bundles:
        sign(each, make_key(tmp_path / f"{each.name}-key"))
    with played_registry() as played:
        lists: list[bytes] = []

        def change(method: str, path: str, reply: Reply) -> Reply:
            reply.headers.pop("OCI-Subject", None)
            if method == "PUT" and path.endswith("/manifests/2") and lists:
                played.put(lists.pop(), made.digest.replace(":", "-"))
            return Reply(404) if "/referrers/" in path else reply

        played.change = change
        made = publish(bundles[0], played.address("tiny:1"))
        # What Alice wrote, who had read the list before Bob wrote his.
        lists.append(json.dumps(played.document(made.digest.replace(":", "-"))).encode())
        publish(bundles[1], played.address("tiny:2"))
        assert not lists
        listed = played.document(made.digest.replace(":", "-"))["manifests"]
    kinds = [each["artifactType"] for each in listed]
    assert kinds.count("application/vnd.edgepack.signature.v1") == 2


def test_publish_when_the_registry_names_no_place_for_a_file_sends_it_nowhere(
    bundle: Path, played: PlayedRegistry
):
    played.change = lambda method, _, reply: Reply(202) if method == "POST" else reply
    with pytest.raises(RegistryError, match="does not say where to"):
        publish(bundle, played.address("tiny"))
    assert not [path for method, path in played.asked if method == "PUT"]


@pytest.mark.parametrize("has_api", [True, False])
def test_publish_when_others_refer_by_another_digest_leaves_that_there(
    has_api: bool,  # noqa: FBT001
    whole: Path,
    tmp_path: Path,
):
    other = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": f"sha512:{'0' * 128}",
        "size": 7,
        "platform": {"os": "linux", "architecture": "any"},
    }
    signed = Path(shutil.copytree(whole, tmp_path / "signed"))
    sign(signed, make_key(tmp_path / "alice"))

    def change(_method: str, path: str, reply: Reply) -> Reply:
        if "/referrers/" not in path:
            reply.headers.pop("OCI-Subject", None)
            return reply
        if not has_api:
            return Reply(404)
        index = json.loads(reply.content)
        index["manifests"].insert(0, other)
        return Reply(200, json.dumps(index).encode(), reply.headers)

    with played_registry() as played:
        reference = api.Reference.parse(played.address("tiny:1"))
        [made] = api.publish([whole], reference)
        played.change = change
        tag = made.digest.replace(":", "-")
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [other],
        }
        played.put(json.dumps(index).encode(), tag)
        [again] = api.publish([signed], reference)
        assert again.digest == made.digest
        assert other in played.document(tag)["manifests"]
        [got] = api.fetch(reference, out=tmp_path / "out")
        assert got.signature is not None


def test_publish_when_the_registry_does_not_know_a_blob_yet_asks_again(
    bundle: Path, played: PlayedRegistry, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "FIRST_WAIT_S", 0.001)
    left = [400, 404]

    def forget(method: str, path: str, reply: Reply) -> Reply:
        return Reply(left.pop()) if method == "PUT" and "/manifests/" in path and left else reply

    played.change = forget
    assert publish(bundle, played.address("tiny")).digest == played.tags["1.0.0"]
    left.extend([400] * 99)
    with_file(bundle, b"another", name="files/run.sh")
    with pytest.raises(RegistryError, match="answers PUT with 400"):
        publish(bundle, played.address("tiny:2"))


def test_artifact_when_skopeo_copies_it_is_the_same_there(
    bundle: Path, registry: Registry, tmp_path: Path
):
    published = publish(bundle, registry.address("lab/tiny"))
    places = [f"docker://{registry.host}/{name}:1.0.0" for name in ("lab/tiny", "copies/tiny")]
    argv = [require_skopeo(), "copy", "--src-tls-verify=false", "--dest-tls-verify=false", *places]
    subprocess.run(argv, check=True, capture_output=True)
    address = registry.address(f"copies/tiny@{published.digest}")
    [got] = api.fetch(api.Reference.parse(address), out=tmp_path / "out")
    assert tree(got.path) == tree(bundle)


def test_publish_when_the_registry_wants_a_password_takes_podmans(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = tmp_path / "auth.json"
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(files))
    with running_registry(tmp_path / "registry", auth=make_htpasswd(tmp_path / "auth")) as running:
        address = running.address("lab/tiny")
        with pytest.raises(RegistryError, match="nothing is kept") as error:
            publish(bundle, address)
        assert f"podman login {running.host}" in error.value.hint
        write_auth(files, running.host, PASSWORD)
        assert publish(bundle, address).blobs_sent
        write_auth(files, running.host, "wr0ng-secret")
        with pytest.raises(RegistryError, match="does not take") as error:
            publish(bundle, address)
        assert "wr0ng-secret" not in str(error.value)


def write_auth(path: Path, host: str, password: str) -> None:
    import base64

    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def test_commands_when_they_are_typed_publish_verify_and_fetch(
    bundle: Path, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    address = registry.address("lab/tiny")
    assert run(["publish", str(bundle), address, "--json"]) == 0
    [published] = json.loads(capsys.readouterr().out)
    assert published["reference"].startswith(f"{address}:1.0.0@sha256:")
    assert run(["publish", str(bundle), address]) == 0
    assert "was there already" in capsys.readouterr().out
    assert run(["verify", f"{address}:1.0.0"]) == 0
    out = capsys.readouterr().out
    assert f"{address}:1.0.0@sha256:" in out
    assert "not signed" in out
    assert "golden samples" in out
    assert run(["fetch", f"{address}:1.0.0", "--out", str(tmp_path / "out")]) == 0
    assert verify(tmp_path / "out" / "tiny-1.0.0-linux-x86-64").digest == published["release"]
    assert run(["fetch", f"{address}:2", "--out", str(tmp_path / "out")]) == 2
    assert "there is no tag '2'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["oci://127.0.0.1:1/tiny"], "nothing is named"),
        (["b", "oci://127.0.0.1:1/tiny", "--after", "canary", "--channel", "x"], "two ways"),
        (["b", "oci://127.0.0.1:1/tiny", "--downgrade"], "is about a channel"),
        (["b", "registry/tiny"], "no address"),
        (["b", "oci://127.0.0.1:1/Tiny"], "no address"),
        (["b", f"oci://127.0.0.1:1/tiny@sha256:{'0' * 64}"], "publishing makes one"),
    ],
)
def test_publish_when_words_make_no_sense_says_so(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["publish", *words]) == 2
    assert said in capsys.readouterr().err
