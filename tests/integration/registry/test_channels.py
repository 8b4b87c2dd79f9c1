"""Channels: tags that move, and entries that say in which order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edgepack import api
from edgepack.bundle.signing import sign
from edgepack.cli.main import run
from edgepack.errors import BundleError, UsageError

from tests.support.reports.tiny_bundle import change_manifest
from tests.support.servers.played_registry import PlayedRegistry, played_registry
from tests.support.servers.registry import running_registry
from tests.support.servers.signers import make_key, write_allowed


@pytest.fixture
def played() -> Iterator[PlayedRegistry]:
    with played_registry() as playing:
        yield playing


@pytest.fixture
def alice(tmp_path: Path) -> Path:
    return make_key(tmp_path / "alice")


def make_version(whole: Path, folder: Path, version: str, target: str = "linux-x86-64") -> Path:
    bundle = Path(shutil.copytree(whole, folder / f"{version}-{target}"))
    change_manifest(bundle, lambda manifest: manifest.update(version=version, target=target))
    return bundle


def publish(bundle: Path, address: str, **options: Any) -> api.Published:
    given = api.PublishOptions(**options)
    [published] = api.publish([bundle], api.Reference.parse(address), options=given)
    return published


def show(address: str, allowed: Path | None = None) -> dict[str, api.ListedTag]:
    listed = api.list_tags(api.Reference.parse(address), allowed_signers=allowed)
    return {each.tag: each for each in listed}


def test_channel_when_it_is_moved_has_an_entry_that_counts_up(
    whole: Path, played: PlayedRegistry, tmp_path: Path, alice: Path
):
    allowed = write_allowed(tmp_path / "signers", alice=alice)
    address = played.address("tiny")
    for version, sequence in (("1.0.0", 1), ("1.1.0", 2), ("1.1.1", 3)):
        bundle = make_version(whole, tmp_path, version)
        published = publish(bundle, address, channel="stable", key=alice)
        assert published.tags == (version, "stable")
        found = show(address, allowed)["stable"]
        assert (found.version, found.sequence) == (version, sequence)
        assert found.entry_signature.startswith("signed by alice with")
        assert found.digest == published.digest == show(address)[version].digest


def test_channel_when_nothing_changes_is_not_moved_again(
    whole: Path, played: PlayedRegistry, tmp_path: Path, alice: Path
):
    bundle, address = make_version(whole, tmp_path, "1.0.0"), played.address("tiny")
    publish(bundle, address, channel="stable", key=alice)
    before = len(played.asked)
    publish(bundle, address, channel="stable", key=alice)
    assert {method for method, _ in played.asked[before:]} <= {"GET", "HEAD"}
    assert show(address)["stable"].sequence == 1


def test_channel_when_the_version_is_older_is_moved_only_by_downgrade(
    whole: Path, played: PlayedRegistry, tmp_path: Path, alice: Path
):
    address = played.address("tiny")
    old, new = (make_version(whole, tmp_path, version) for version in ("1.9.0", "1.10.0"))
    publish(old, address, channel="stable", key=alice)
    publish(new, address, channel="stable", key=alice)
    before = dict(played.tags)
    with pytest.raises(UsageError, match=r"has 1\.10\.0, and this bundle is 1\.9\.0"):
        publish(old, address, channel="stable", key=alice)
    assert played.tags == before
    publish(old, address, channel="stable", key=alice, downgrade=True)
    found = show(address)["stable"]
    assert (found.version, found.sequence, found.downgrade) == ("1.9.0", 3, True)


def test_channel_when_the_target_is_another_is_refused(
    whole: Path, played: PlayedRegistry, tmp_path: Path
):
    address = played.address("tiny")
    publish(make_version(whole, tmp_path, "1.0.0"), address, channel="stable")
    other = make_version(whole, tmp_path, "1.0.0", "raspberry-pi")
    with pytest.raises(UsageError, match="raspberry-pi"):
        publish(other, f"{address}:pi", channel="stable")
    assert "pi" not in played.tags


def test_promotion_when_a_channel_went_before_takes_exactly_its_bundle(
    whole: Path, tmp_path: Path, alice: Path
):
    with running_registry(tmp_path / "registry") as registry:
        address = registry.address("tiny")
        bundle = make_version(whole, tmp_path, "2.0.0")
        sign(bundle, alice)
        canary = publish(bundle, address, channel="canary", key=alice)
        reference = api.Reference.parse(address)
        options = api.PublishOptions(channel="stable", key=alice)
        [stable] = api.promote(reference, "canary", options=options)
        assert (stable.digest, stable.release) == (canary.digest, canary.release)
        assert stable.bytes_sent < 2000
        found = show(address)
        assert found["stable"].digest == found["canary"].digest == canary.digest
        assert (found["stable"].sequence, found["canary"].sequence) == (1, 1)


def test_promotion_when_targets_are_several_moves_each(
    whole: Path, played: PlayedRegistry, tmp_path: Path
):
    folder = tmp_path / "dist"
    for target in ("linux-x86-64", "raspberry-pi"):
        make_version(whole, folder, "1.0.0", target)
    reference = api.Reference.parse(played.address("tiny"))
    api.publish([folder], reference, options=api.PublishOptions(channel="canary"))
    api.promote(reference, "canary", options=api.PublishOptions(channel="stable"))
    found = show(played.address("tiny"))
    for target in ("linux-x86-64", "raspberry-pi"):
        assert found[f"stable-{target}"].digest == found[f"canary-{target}"].digest
        assert found[f"stable-{target}"].target == target
    with pytest.raises(UsageError, match="no tag 'nightly'"):
        api.promote(reference, "nightly", options=api.PublishOptions(channel="stable"))


def test_entry_when_somebody_else_wrote_one_the_signed_one_counts(
    whole: Path, played: PlayedRegistry, tmp_path: Path, alice: Path
):
    allowed = write_allowed(tmp_path / "signers", alice=alice)
    bundle, address = make_version(whole, tmp_path, "1.0.0"), played.address("tiny")
    publish(bundle, address, channel="stable", key=alice)
    publish(bundle, address, channel="stable", key=make_key(tmp_path / "mallory"), sequence=900)
    found = show(address, allowed)["stable"]
    assert (found.sequence, found.entry_signature[:15]) == (1, "signed by alice")
    new = make_version(whole, tmp_path, "1.0.1")
    publish(new, address, channel="stable", key=alice, allowed_signers=allowed)
    assert show(address, allowed)["stable"].sequence == 2


LARGEST = 2**53 - 1


def test_entry_when_it_is_not_signed_decides_no_number_that_is_signed(
    whole: Path, played: PlayedRegistry, tmp_path: Path, alice: Path
):
    allowed = write_allowed(tmp_path / "signers", alice=alice)
    address = played.address("tiny")
    old, new = (make_version(whole, tmp_path, version) for version in ("1.0.0", "1.0.1"))
    publish(old, address, channel="stable", key=alice)
    publish(old, address, channel="stable", sequence=LARGEST - 1)
    publish(new, address, channel="stable", key=alice)  # the own key is known without a file
    assert show(address, allowed)["stable"].sequence == 2
    with pytest.raises(UsageError, match="is above the largest number"):
        publish(old, address, channel="lab", key=alice, sequence=LARGEST + 1)
    assert "lab" not in played.tags


def test_channel_when_nobody_known_has_signed_where_it_leads_needs_a_number(
    whole: Path, played: PlayedRegistry, tmp_path: Path, alice: Path
):
    allowed = write_allowed(tmp_path / "signers", alice=alice)
    address = played.address("tiny")
    old, new, newest = (make_version(whole, tmp_path, each) for each in ("1.0", "1.1", "1.2"))
    publish(old, address, channel="stable", key=alice)
    publish(newest, address)
    played.tags["stable"] = played.tags["1.2"]
    publish(newest, address, channel="stable", sequence=LARGEST - 1)
    signed: dict[str, Any] = {"channel": "stable", "key": alice, "allowed_signers": allowed}
    with pytest.raises(UsageError, match="neither your key nor a signer whom you know"):
        publish(new, address, **signed)
    publish(new, address, **signed, sequence=5)
    assert show(address, allowed)["stable"].sequence == 5
    played.put(b'{"schemaVersion": 2, "mediaType": "x"}', "stable")
    publish(new, address, **signed, sequence=6)
    assert show(address, allowed)["stable"].sequence == 6


def test_channel_when_the_last_number_is_taken_is_one_error(
    whole: Path, played: PlayedRegistry, tmp_path: Path, alice: Path
):
    address = played.address("tiny")
    old, new = (make_version(whole, tmp_path, version) for version in ("1.0.0", "1.0.1"))
    publish(old, address, channel="stable", key=alice, sequence=LARGEST)
    with pytest.raises(UsageError, match="above the largest number"):
        publish(new, address, channel="stable", key=alice)


def test_channel_when_it_is_signed_again_gets_a_new_entry_for_a_new_key_or_number(
    whole: Path, played: PlayedRegistry, tmp_path: Path, alice: Path
):
    bob = make_key(tmp_path / "bob")
    allowed = write_allowed(tmp_path / "signers", alice=alice, bob=bob)
    bundle, address = make_version(whole, tmp_path, "1.0.0"), played.address("tiny")
    found = []
    for options in ({"key": alice}, {"key": bob}, {"key": bob}, {"key": bob, "sequence": 3}):
        publish(bundle, address, channel="stable", allowed_signers=allowed, **options)
        each = show(address, allowed)["stable"]
        found.append((each.sequence, each.entry_signature.split()[2]))
    assert found == [(1, "alice"), (2, "bob"), (2, "bob"), (3, "bob")]


def test_channel_when_it_went_back_says_so_until_the_version_is_passed(
    whole: Path, played: PlayedRegistry, tmp_path: Path
):
    address = played.address("tiny")
    found = []
    for version, downgrade in (
        ("1.2.0", False),
        ("1.0.0", True),
        ("1.0.0", False),
        ("1.1.0", False),
        ("1.0.5", True),
        ("1.1.5", False),
        ("1.2.0", False),
        ("1.2.1", False),
    ):
        bundle = tmp_path / f"{version}-linux-x86-64"
        if not bundle.exists():
            make_version(whole, tmp_path, version)
        publish(bundle, address, channel="stable", downgrade=downgrade)
        each = show(address)["stable"]
        found.append((each.sequence, each.downgrade))
    assert found == [
        (1, False),
        (2, True),
        (2, True),
        (3, True),
        (4, True),
        (5, True),
        (6, False),
        (7, False),
    ]


def test_promotion_when_nobody_known_has_moved_the_channel_before_signs_nothing(
    whole: Path, played: PlayedRegistry, tmp_path: Path, alice: Path
):
    address, reference = played.address("tiny"), api.Reference.parse(played.address("tiny"))
    old, new = (make_version(whole, tmp_path, version) for version in ("1.0.0", "1.0.1"))
    publish(old, address, channel="canary", key=alice)
    made = publish(new, address)
    played.tags["canary"] = played.tags["1.0.1"]
    options = api.PublishOptions(channel="stable", key=alice)
    with pytest.raises(UsageError, match=r"has signed that 'canary' leads to tiny-1\.0\.1"):
        api.promote(reference, "canary", options=options)
    assert "stable" not in played.tags
    for named in ("1.0.1", made.digest):
        [moved] = api.promote(reference, named, options=options)
        assert moved.digest == made.digest


@pytest.mark.parametrize("name", ["org.opencontainers.image.version", "dev.edgepack.target"])
def test_promotion_when_the_registry_calls_the_bundle_something_else_is_refused(
    name: str, whole: Path, played: PlayedRegistry, tmp_path: Path
):
    address, reference = played.address("tiny"), api.Reference.parse(played.address("tiny"))
    publish(make_version(whole, tmp_path, "1.0.0"), address)
    document = played.document("1.0.0")
    document["annotations"][name] = "9.9.9"
    played.put(json.dumps(document).encode(), "canary")
    with pytest.raises(BundleError, match=r"says '9\.9\.9' of the bundle's"):
        api.promote(reference, "canary", options=api.PublishOptions(channel="stable"))
    assert "stable" not in played.tags


def test_channel_when_a_target_comes_later_leaves_nobody_behind(
    whole: Path, played: PlayedRegistry, tmp_path: Path, alice: Path
):
    address, reference = played.address("tiny"), api.Reference.parse(played.address("tiny"))
    old = make_version(whole, tmp_path, "1.0.0")
    both = [make_version(whole, tmp_path, "1.1.0", each) for each in ("linux-x86-64", "jetson")]
    publish(old, address, channel="canary", key=alice)
    before = dict(played.tags)
    options = api.PublishOptions(channel="canary", key=alice)
    with pytest.raises(UsageError, match="may follow the channel 'canary'"):
        api.publish(both, reference, options=options)
    assert played.tags == before
    for bundle in both:
        tag = f"{address}:{bundle.name}"
        publish(bundle, tag, channel=f"canary-{bundle.name.partition('-')[2]}", key=alice)
    with pytest.raises(UsageError, match="may follow the channel 'canary-linux-x86-64'"):
        publish(both[0], f"{address}:x", channel="canary", key=alice)
    with pytest.raises(UsageError, match="one may be left behind"):
        api.promote(reference, "canary", options=api.PublishOptions(channel="stable", key=alice))
    assert "stable" not in played.tags


@pytest.mark.parametrize(
    "change",
    [
        {"channel": "lab"},
        {"release": "0" * 64},
        {"target": "jetson"},
        {"project": "other"},
        {"sequence": 2**60},
        {"more": 1},
    ],
)
def test_entry_when_it_is_of_something_else_does_not_count(
    change: dict[str, Any], whole: Path, played: PlayedRegistry, tmp_path: Path
):
    bundle, address = make_version(whole, tmp_path, "1.0.0"), played.address("tiny")
    publish(bundle, address, channel="stable")
    assert show(address)["stable"].sequence == 1
    _change_entry(played, change)
    assert show(address)["stable"].sequence is None


def _change_entry(played: PlayedRegistry, change: dict[str, Any]) -> None:
    """Replace the only entry by another one."""
    import hashlib

    [own] = [
        digest
        for digest, (_, content) in played.manifests.items()
        if b"edgepack.channel.v1" in content
    ]
    document = json.loads(played.manifests.pop(own)[1])
    entry = json.loads(played.blobs[document["layers"][0]["digest"]])
    content = json.dumps({**entry, **change}).encode()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    played.blobs[digest] = content
    document["layers"][0].update(digest=digest, size=len(content))
    played.put(json.dumps(document).encode())


def test_command_when_a_release_was_not_measured_publishes_nothing(
    whole: Path, played: PlayedRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    bundle, address = make_version(whole, tmp_path, "1.0.0"), played.address("tiny")
    assert run(["publish", str(bundle), address, "--channel", "stable", "--measured"]) == 11
    assert "no VALID benchmark" in capsys.readouterr().err
    assert not played.manifests


def test_command_when_a_channel_is_shown_says_where_it_leads_and_who_signed(
    whole: Path,
    played: PlayedRegistry,
    tmp_path: Path,
    alice: Path,
    capsys: pytest.CaptureFixture[str],
):
    bundle, address = make_version(whole, tmp_path, "1.0.0"), played.address("tiny")
    sign(bundle, alice)
    words = ["publish", str(bundle), address, "--channel", "stable", "--key", str(alice)]
    assert run(words) == 0
    played.put(b'{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json"}', "x")
    capsys.readouterr()
    allowed = write_allowed(tmp_path / "signers", alice=alice)
    assert run(["channel", "show", address, "--allowed-signers", str(allowed)]) == 0
    out = capsys.readouterr().out
    assert "signed by alice" in out
    assert "tiny-1.0.0-linux-x86-64" in out
    assert run(["channel", "show", address, "--json"]) == 0
    found = {each["tag"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["stable"]["sequence"] == 1
    assert "none that is known" in found["x"]["problem"]
    assert run(["channel", "show", f"{address}:y"]) == 2
