"""Addresses of bundles in registries."""

from __future__ import annotations

import pytest
from edgepack.errors import UsageError
from edgepack.registry.reference import Reference, require_tag

DIGEST = f"sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("text", "host", "repository", "name"),
    [
        ("oci://localhost:5000/tiny:1", "localhost:5000", "tiny", "1"),
        ("oci://ghcr.io/acme/models/tiny:v1.0_x", "ghcr.io", "acme/models/tiny", "v1.0_x"),
        (f"oci://[::1]:5000/a--b/c__d@{DIGEST}", "[::1]:5000", "a--b/c__d", DIGEST),
        (f"oci://h/tiny:1@{DIGEST}", "h", "tiny", DIGEST),
        ("s3://team/Models/tiny_2:1.0", "team", "Models/tiny_2", "1.0"),
        (f"s3://team/tiny:1@{DIGEST}", "team", "tiny", DIGEST),
    ],
)
def test_address_when_it_is_read_says_host_repository_and_name(
    text: str, host: str, repository: str, name: str
):
    found = Reference.parse(text)
    assert (found.host, found.repository, found.name) == (host, repository, name)
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "oci://host",
        "oci://host/",
        "oci:///tiny",
        "docker://host/tiny",
        "oci://host/Tiny",
        "oci://host/a/../b",
        "oci://host/a//b",
        "oci://host/tiny:",
        "oci://host/tiny:-x",
        f"oci://host/tiny:{'x' * 129}",
        "oci://host/tiny@sha256:00",
        "oci://user:secret@host/tiny",
        "oci://host/tiny?x=1",
        "oci://host/tiny\n",
        f"oci://host/{'a/' * 200}b",
        "s3://team",
        "s3://team/",
        "s3://Team/tiny:1",
        "s3://te/tiny:1",
        "s3://key:secret@team/tiny:1",
        "s3://team/a/../b:1",
        "s3://team/tiny?x=1",
    ],
)
def test_address_when_it_is_none_is_refused(text: str):
    with pytest.raises(UsageError, match="no address"):
        Reference.parse(text)


def test_address_when_it_names_nothing_says_how_to_find_tags():
    reference = Reference.parse("oci://host/tiny")
    with pytest.raises(UsageError, match="does not say which bundle") as error:
        _ = reference.name
    assert "edgepack channel show oci://host/tiny" in error.value.hint


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("127.8.8.8", True),
        ("[::1]:5000", True),
        ("[::2]", False),
        ("10.0.0.1:5000", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
    ],
)
def test_host_when_it_is_this_machine_is_loopback(host: str, *, is_loopback: bool):
    assert Reference(host, "tiny").is_loopback is is_loopback


def test_tag_when_it_has_a_slash_is_refused():
    with pytest.raises(UsageError, match="can be no tag"):
        require_tag("a/b", "--channel")
