"""``edgepack device import``, over real SSH: a list of boards, one question, one table."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import typer
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.audit import find_audit_log
from edgepack.devices.inventory import SshEntry, load_inventory
from edgepack.devices.ssh.host_keys import find_own_known_hosts
from edgepack.project.profile import find_host_target

from tests.support.servers.loopback import require_openssh

PASSWORD = "canary-r4T-9p"


class Question:
    """Answers the one question about host keys, and keeps it."""

    def __init__(self, *, answer: bool) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, text: str, **_options: object) -> bool:
        self.asked.append(text)
        return self.answer


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[LoopbackServer]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(LoopbackServer(tmp_path / f"server-{n}", password=PASSWORD))
            for n in range(3)
        ]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "devices.yaml").touch()
    return tmp_path


def ask(monkeypatch: pytest.MonkeyPatch, *, answer: bool = True) -> Question:
    question = Question(answer=answer)
    monkeypatch.setattr(typer, "confirm", question)
    return question


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def write_ansible(here: Path, servers: list[LoopbackServer], per_server: int = 1) -> Path:
    path = here / "hosts.ini"
    groups = [
        f"[shelf{n}]\nboard-{n}[01:{per_server:02}] ansible_port={server.port}"
        f" ansible_ssh_private_key_file={server.client_key_path}\n"
        for n, server in enumerate(servers)
    ]
    text = "".join(groups) + f"[dead]\ndead ansible_port={closed_port()}\n"
    path.write_text(f"{text}[all:vars]\nansible_host=127.0.0.1\nansible_user={servers[0].user}\n")
    return path


def test_thirty_boards_are_added_after_one_question_and_the_dead_one_is_told(
    here: Path,
    servers: list[LoopbackServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    question = ask(monkeypatch)
    path = write_ansible(here, servers, per_server=10)
    assert run(["device", "import", "--ansible", str(path), "--tag", "lab"]) == 8
    said = capsys.readouterr().out
    [asked] = question.asked
    for server in servers:
        assert asked.count(server.host_key_fingerprint) == 1
    devices = load_inventory().devices
    assert len(devices) == 30
    assert "dead" not in devices
    entry = devices["board-107"]
    assert isinstance(entry, SshEntry)
    assert (entry.port, entry.user, entry.tags) == (
        *(servers[1].port, servers[1].user),
        ["shelf1", "lab"],
    )
    assert entry.target == find_host_target()
    assert said.count("done") == 30
    assert [line for line in said.splitlines() if "dead" in line and "failed" in line]
    actions = [json.loads(line)["action"] for line in find_audit_log().read_text().splitlines()]
    assert (actions.count("trust"), actions.count("add")) == (3, 30)
    # Once more: nobody is asked, nothing is changed, and the dead one is still the one to be told.
    text = (here / "devices.yaml").read_text()
    assert run(["device", "import", "--ansible", str(path), "--tag", "lab", "--json"]) == 8
    found = json.loads(capsys.readouterr().out)["devices"]
    assert [name for name, one in found.items() if one["state"] != "done"] == ["dead"]
    assert all(one["result"]["was_there"] for name, one in found.items() if name != "dead")
    assert len(question.asked) == 1
    assert (here / "devices.yaml").read_text() == text


def test_no_key_is_trusted_unasked(
    here: Path,
    servers: list[LoopbackServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_ansible(here, servers)
    question = ask(monkeypatch, answer=False)
    assert run(["device", "import", "board-*", "--ansible", str(path)]) == 8
    assert len(question.asked) == 1
    assert capsys.readouterr().out.count("was not accepted") == 3
    assert load_inventory().devices == {}
    assert not find_own_known_hosts().exists()


def test_changed_key_is_never_among_those_to_accept(
    here: Path,
    servers: list[LoopbackServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = find_own_known_hosts()
    own.parent.mkdir(parents=True)
    other = servers[1].known_hosts_line.split()[1:]
    own.write_text(f"[127.0.0.1]:{servers[0].port} {' '.join(other)}\n")
    question = ask(monkeypatch)
    assert run(["device", "import", "board-*", "--ansible", str(write_ansible(here, servers))]) == 8
    assert servers[0].host_key_fingerprint not in question.asked[0]
    assert "has changed" in capsys.readouterr().out
    assert sorted(load_inventory().devices) == ["board-101", "board-201"]


def test_csv_has_fingerprints_and_variables_of_passwords(
    here: Path,
    servers: list[LoopbackServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With every key's fingerprint nobody is asked; a wrong one is told and not written."""
    prints = [server.host_key_fingerprint for server in servers]
    rows = [
        f"b{n},127.0.0.1,{server.port},{server.user},FARM_PASSWORD,{prints[max(n - 1, 0)]}"
        for n, server in enumerate(servers[:2])
    ]
    rows.append(f"b9,127.0.0.1,{servers[2].port},{servers[2].user},UNSET_PASSWORD,{prints[2]}")
    path = here / "boards.csv"
    path.write_text("name,host,port,user,password_env,fingerprint\n" + "\n".join(rows) + "\n")
    monkeypatch.setenv("FARM_PASSWORD", PASSWORD)
    question = ask(monkeypatch)
    assert run(["device", "import", "--csv", str(path), "--target", "host"]) == 8
    said = capsys.readouterr().out
    assert question.asked == []
    assert f"not {prints[0]}" in " ".join(said.split())
    assert "'UNSET_PASSWORD' (password_env) is not set" in " ".join(said.split())
    entry = load_inventory().devices["b0"]
    assert isinstance(entry, SshEntry)
    assert entry.password_env == "FARM_PASSWORD"
    assert list(load_inventory().devices) == ["b0"]
    assert PASSWORD not in said + (here / "devices.yaml").read_text()


def test_ssh_config_is_read_at_each_connection(
    here: Path,
    servers: list[LoopbackServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Boards behind a jump host: its key is asked about first, then all of theirs."""
    require_openssh()
    gate, *boards = servers
    hosts = [
        ("gate", gate, ""),
        *((f"pi-{n}", b, " ProxyJump gate\n") for n, b in enumerate(boards)),
    ]
    path = here / "config"
    path.write_text(
        "".join(
            f"Host {name}\n HostName 127.0.0.1\n Port {server.port}\n User {server.user}\n"
            f" IdentityFile {server.client_key_path}\n{more}"
            for name, server, more in hosts
        )
        + "Host *\n IdentitiesOnly yes\n"
    )
    assert run(["device", "import", "--ssh-config", str(path)]) == 2
    question = ask(monkeypatch)
    assert run(["device", "import", "pi-*", "--ssh-config", str(path)]) == 0
    prints = [server.host_key_fingerprint for server in servers]
    assert [[one in text for one in prints] for text in question.asked] == [
        [True, False, False],
        [False, True, True],
    ]
    assert sorted(load_inventory().devices) == ["pi-0", "pi-1"]
    capsys.readouterr()
    assert run(["device", "check", "pi-0", "--json"]) in (0, 8)
    assert json.loads(capsys.readouterr().out)["facts"]["os"] in ("linux", "macos")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a ansible_password=x", "the list has its password, and edgepack keeps none"),
        ('a ansible_host="{{ b }}"', "which only Ansible can resolve"),
        ("a ansible_port=x", "port cannot be 'x'"),
        ("a_ ansible_host=127.0.0.1", "a device cannot be called 'a_'"),
        ("taken ansible_host=192.0.2.9", "has another device 'taken'"),
    ],
)
def test_board_that_cannot_be_taken_is_told_and_nothing_is_asked(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    problem: str,
) -> None:
    inventory = (
        "schema_version: 1\ndevices:\n  taken: {transport: ssh, host: 192.0.2.1, target: host}\n"
    )
    (here / "devices.yaml").write_text(inventory)
    (here / "hosts").write_text(text + "\n")
    question = ask(monkeypatch)
    assert run(["device", "import", "--ansible", "hosts"]) == 2
    assert problem in " ".join(capsys.readouterr().out.split())
    assert question.asked == []
    assert (here / "devices.yaml").read_text() == inventory
