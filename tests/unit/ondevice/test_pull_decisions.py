"""What the agent that pulls decides, without a registry."""

from __future__ import annotations

import email.message
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from edgepack.ondevice.agent import edgepack_channel as channel
from edgepack.ondevice.agent import edgepack_enroll as enrolling
from edgepack.ondevice.agent import edgepack_registry as registry
from edgepack.ondevice.agent.edgepack_pull import Piece, find_runs
from edgepack.ondevice.agent.edgepack_state import RESULTS, State, format_metrics
from edgepack.registry.channels import ChannelEntry

FOLLOWER = channel.Follower("stable", "tiny", "jetson", "signers")
ENTRY = {
    "schema_version": 1,
    "channel": "stable",
    "project": "tiny",
    "target": "jetson",
    "release": "a" * 64,
    "sequence": 7,
    "downgrade": False,
}

VERSIONS = ["0.9", "1.0.0-rc2", "1.0.0-rc10", "1.0.0", "1.0.1", "1.9", "1.10", "2.0-a", "2.0-b"]


@pytest.mark.parametrize("older", range(len(VERSIONS)))
def test_versions_are_in_their_order(older: int) -> None:
    for newer in range(len(VERSIONS)):
        assert channel.is_older(VERSIONS[older], VERSIONS[newer]) == (older < newer)


def test_versions_are_equal_when_only_zeros_differ() -> None:
    assert not channel.is_older("1.0", "1.0.0")
    assert not channel.is_older("1.0.0", "1.0")


def test_an_entry_that_publish_writes_is_one() -> None:
    text = ChannelEntry.model_validate(ENTRY).model_dump_json().encode()
    assert channel.parse_entry(text, FOLLOWER) == channel.Entry(7, "a" * 64, downgrade=False)


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"channel": "canary"},
        {"project": "other"},
        {"target": "other"},
        {"release": "A" * 64},
        {"release": ["a" * 64]},
        {"release": "a" * 64 + "\n"},
        {"sequence": True},
        {"sequence": 2**53},
        {"sequence": 10**30},
        {"sequence": 0},
        {"sequence": "7"},
        {"sequence": 7.0},
        {"downgrade": 1},
        {"downgrade": None},
    ],
)
def test_an_entry_is_none_when_something_in_it_is_wrong(change: dict[str, Any]) -> None:
    assert channel.parse_entry(json.dumps({**ENTRY, **change}).encode(), FOLLOWER) is None


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000, b"7"])
def test_an_entry_is_none_when_it_is_something_else(text: bytes) -> None:
    assert channel.parse_entry(text, FOLLOWER) is None


def test_chunks_are_read_in_one_go_over_small_gaps_only() -> None:
    gap = registry.GAP_BYTES
    pieces = [
        Piece("a", 0, 10, ""),
        Piece("a", 10, 10, ""),
        Piece("a", 20 + gap, 10, ""),
        Piece("a", 31 + 2 * gap, 10, ""),
        Piece("b", 50 + 2 * gap, 10, ""),
    ]
    ends = [until for _, until in find_runs(pieces)]
    assert ends == [30 + gap, 30 + gap, 30 + gap, 41 + 2 * gap, 60 + 2 * gap]


@pytest.mark.parametrize(
    ("said", "date", "seconds"),
    [
        ("7", None, 7.0),
        ("Sun, 06 Nov 1994 08:49:47 GMT", "Sun, 06 Nov 1994 08:49:37 GMT", 10.0),
        ("Sun, 06 Nov 1994 08:49:17 GMT", "Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Sun, 06 Nov 1994 08:49:47 GMT", None, 0.0),
        ("soon", None, 0.0),
        ("-5", None, 0.0),
        (None, None, 0.0),
    ],
)
def test_the_delay_counts_from_the_registrys_own_clock(
    said: str | None, date: str | None, seconds: float
) -> None:
    headers = email.message.Message()
    for name, value in (("Retry-After", said), ("Date", date)):
        if value is not None:
            headers[name] = value
    assert registry.find_delay(headers) == seconds


def test_logins_in_addresses_are_not_shown() -> None:
    text = "Tunnel to http://bob:canary@proxy:3128 failed, and //al:canary@x too"
    assert "canary" not in registry.hide_logins(text)


@pytest.mark.parametrize("proxy", ["http:/bob:canary@proxy", "bob:canary@proxy:1", "http://a/b"])
def test_a_proxy_that_is_no_address_is_not_shown(proxy: str) -> None:
    with pytest.raises(registry.Problem) as caught:
        registry.use_proxy(proxy, None)
    assert proxy not in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "proxy",
    [
        "http://proxy.example.com:3128",
        "http://bob:c%40nary@[2001:db8::1]:3128/",
        "https://al@10.0.0.1",
    ],
)
def test_a_proxy_that_is_an_address_is_used(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "")
    monkeypatch.setenv("https_proxy", "")
    registry.use_proxy(proxy, None)
    assert (os.environ["http_proxy"], os.environ["https_proxy"]) == (proxy, proxy)


def test_docker_io_is_asked_where_it_answers() -> None:
    assert registry.Registry("docker.io", "team/tiny").base.startswith("https://registry-1.docker")
    assert registry.Registry("ghcr.io", "team/tiny").base == "https://ghcr.io/v2/team/tiny/"


@pytest.mark.parametrize(
    ("signers", "sequence"),
    [(["old"], 7), (["old", "new"], 7), (["new"], 0), ([], 0)],
)
def test_a_sequence_is_forgotten_when_a_signer_is_pinned_no_more(
    signers: list[str], sequence: int, tmp_path: Path
) -> None:
    path = str(tmp_path / "state.json")
    State(path, "stable", ["old"]).write(sequence=7, settled="x", trial={"release": "r"})
    state = State(path, "stable", signers)
    assert state.channel["sequence"] == sequence
    assert state.channel["settled"] == ("x" if sequence else "")
    assert state.trial == {"release": "r"}
    state.write()
    assert State(path, "stable", signers).channel["sequence"] == sequence


@pytest.mark.parametrize(
    ("hook", "hardened"),
    [
        (["sudo", "systemctl", "restart", "x"], False),
        (["sh", "-c", "sudo systemctl restart x"], False),
        (["sh", "-c", "true&&/usr/bin/sudo -n x"], False),
        (["env", "A=1", "doas", "x"], False),
        (["systemctl", "--user", "restart", "pseudo.service"], True),
        ([], True),
    ],
)
def test_a_unit_has_no_new_privileges_unless_a_hook_asks_for_some(
    hook: list[str], *, hardened: bool
) -> None:
    settings = {"project": "tiny", "every_s": 900, "health": hook}
    units = enrolling.make_units(["python3"], settings, "/data", is_system=True)
    assert ("NoNewPrivileges=yes" in units["edgepack-pull@tiny.service"]) == hardened


def test_a_unit_starts_without_the_folder_of_the_textfile() -> None:
    settings = {"project": "tiny", "every_s": 900, "textfile": "/run/node exporter"}
    units = enrolling.make_units(["python3"], settings, "/data", is_system=True)
    line = 'ReadWritePaths="/data" "-/run/node exporter"\n'
    assert line in units["edgepack-pull@tiny.service"]


def test_metrics_escape_what_they_are_told() -> None:
    facts = {
        **dict.fromkeys(("registry", "repository", "channel", "release", "version"), 'a"\\\nb'),
        "project": "tiny",
        "result": "installed",
        "runs": {},
    }
    lines = format_metrics(facts).splitlines()
    assert 'version="a\\"\\\\\\nb"} 1' in lines[2]
    assert len(lines) == 3 + 2 * (2 + len(RESULTS))


@pytest.mark.parametrize(
    ("every_s", "when"),
    [(60, "*/1 * * * *"), (900, "*/15 * * * *"), (7200, "0 */2 * * *"), (86400, "0 */23 * * *")],
)
def test_a_crontab_runs_the_agent_about_as_often(every_s: int, when: str) -> None:
    line = enrolling.make_cron_line(["python3", "/it's 100%/x"], every_s)
    assert line.startswith(f"{when} ")
    words = shlex.split(line.removeprefix(f"{when} ").replace("\\%", "%"))
    assert words[:4] == ["python3", "/it's 100%/x", "--jitter", str(every_s // 3)]
