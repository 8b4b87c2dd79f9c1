from __future__ import annotations

import base64
from pathlib import Path

import pytest
from edgepack.devices.ssh.host_keys import (
    HostKey,
    KnownHost,
    find_own_known_hosts,
    read_known_hosts,
    write_trusted,
)
from edgepack.errors import DeviceError

KEY = HostKey("ssh-ed25519", b"a key")
BASE64 = base64.b64encode(KEY.blob).decode()


def known(names: str) -> KnownHost:
    return KnownHost("", names, KEY, Path("known_hosts"), 1)


def test_fingerprint_is_as_openssh_prints_it() -> None:
    # GitHub's ed25519 key and its fingerprint, from https://docs.github.com (checked 2026-11-21)
    blob = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    key = HostKey("ssh-ed25519", base64.b64decode(blob))
    assert key.fingerprint == "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"


@pytest.mark.parametrize(
    ("names", "host", "expected"),
    [
        ("board", "board", True),
        ("Board", "bOARD", True),
        ("board", "boards", False),
        ("a,board,b", "board", True),
        ("*.lab", "pi.lab", True),
        ("*.lab,!pi.lab", "pi.lab", False),
        ("pi?", "pi5", True),
        ("pi?", "pi55", False),
        ("[board]:2222", "[board]:2222", True),
        ("board", "[board]:2222", False),
        ("[board]:2222", "board", False),
        ("b.ard", "board", False),
        ("|1|not|base64", "board", False),
        ("|1|", "board", False),
    ],
)
def test_names_match_as_in_openssh(names: str, host: str, expected: bool) -> None:  # noqa: FBT001
    assert known(names).is_for(host) is expected


def test_lines_that_are_no_entries_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(
        f"# comment\n\nboard\nboard ssh-ed25519 !!!\n@revoked * ssh-ed25519 {BASE64}\n"
        f"board ssh-ed25519 {BASE64} a comment\n"
    )
    entries = list(read_known_hosts(path))
    assert [(e.marker, e.names, e.line) for e in entries] == [
        ("@revoked", "*", 5),
        ("", "board", 6),
    ]
    assert all(entry.key == KEY for entry in entries)


def test_missing_file_has_no_entries(tmp_path: Path) -> None:
    assert list(read_known_hosts(tmp_path / "none")) == []


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot read the host keys"):
        list(read_known_hosts(tmp_path))


def test_written_key_is_read_back_and_replaces_only_its_host() -> None:
    write_trusted("a", KEY)
    write_trusted("b", KEY)
    other = HostKey("ssh-ed25519", b"another")
    write_trusted("a", other)
    assert [(e.names, e.key) for e in read_known_hosts(find_own_known_hosts())] == [
        ("b", KEY),
        ("a", other),
    ]
