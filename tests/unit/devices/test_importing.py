"""Lists of boards: CSV files, SSH configurations, and Ansible inventories in INI and YAML."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from edgepack.devices.ansible import expand_ranges, read_ansible_devices
from edgepack.devices.importing import (
    ListedDevice,
    choose_listed,
    read_csv_devices,
    read_ssh_config_devices,
)
from edgepack.errors import ProfileError, UsageError

INI = """
gate ansible_host=192.0.2.1

[pis]
; the first shelf
pi-[01:03].lab ansible_port=2222
pi-02.lab ansible_user="bench two"  # another user
[orins]
orin-[a:b]:2200
[lab:children]
pis
orins
[lab:vars]
ansible_user = bench
ansible_ssh_private_key_file=~/.ssh/lab
ansible_ssh_common_args='-o StrictHostKeyChecking=no'
[pis:vars]
ansible_user=pi
"""
# By their names, 'top' comes after 'low', and 'a' before both: their depth below 'all' decides.
DEEP = """
[low]
b
[low:vars]
ansible_user=deep
[top:children]
low
[top:vars]
ansible_user=high
ansible_port=24
[z]
b
[z:vars]
ansible_port=25
ansible_user=flat
[all:vars]
ansible_user=all
ansible_ssh_private_key_file=/key
"""
YAML = """
all:
  hosts:
    gate: {ansible_host: 192.0.2.1}
  children:
    lab:
      vars:
        ansible_user: bench
        ansible_ssh_private_key_file: ~/.ssh/lab
        ansible_become_password: !vault |
          $ANSIBLE_VAULT;1.1;AES256
      children:
        pis:
          vars: {ansible_user: pi}
          hosts:
            pi-[01:03].lab: {ansible_port: 2222}
            pi-02.lab: {ansible_user: bench two}
        orins:
          hosts:
            orin-[a:b]: {ansible_port: 2200}
"""


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def read_one(tmp_path: Path, text: str, name: str = "hosts") -> ListedDevice:
    [board] = read_ansible_devices(write(tmp_path, name, text))
    return board


@pytest.mark.parametrize(("name", "text"), [("hosts.ini", INI), ("hosts.yml", YAML)])
def test_ansible_inventory_gives_hosts_variables_and_groups(
    tmp_path: Path, name: str, text: str
) -> None:
    boards = {board.name: board for board in read_ansible_devices(write(tmp_path, name, text))}
    pis, orins = ("lab", "pis"), ("lab", "orins")
    key = "~/.ssh/lab"
    assert boards == {
        "gate": ListedDevice("gate", "192.0.2.1"),
        "pi-01.lab": ListedDevice("pi-01.lab", "pi-01.lab", "pi", "2222", key, tags=pis),
        "pi-02.lab": ListedDevice("pi-02.lab", "pi-02.lab", "bench two", "2222", key, tags=pis),
        "pi-03.lab": ListedDevice("pi-03.lab", "pi-03.lab", "pi", "2222", key, tags=pis),
        "orin-a": ListedDevice("orin-a", "orin-a", "bench", "2200", key, tags=orins),
        "orin-b": ListedDevice("orin-b", "orin-b", "bench", "2200", key, tags=orins),
    }


@pytest.mark.skipif(shutil.which("ansible-inventory") is None, reason="there is no Ansible")
@pytest.mark.parametrize(
    ("name", "text"), [("hosts.ini", INI), ("hosts.yml", YAML), ("deep.ini", DEEP)]
)
def test_ansible_itself_reads_the_same(tmp_path: Path, name: str, text: str) -> None:
    path = write(tmp_path, name, text)
    argv = ["ansible-inventory", "-i", str(path), "--list", "--yaml"]
    resolved = subprocess.run(argv, capture_output=True, check=True, text=True, timeout=60).stdout
    again = read_ansible_devices(write(tmp_path, "resolved.yml", resolved))
    assert {board.name: board for board in again} == {
        board.name: board for board in read_ansible_devices(path)
    }


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("board", ["board"]),
        ("b[01:03]", ["b01", "b02", "b03"]),
        ("b[8:11]", ["b8", "b9", "b10", "b11"]),
        ("b[:2]x", ["b0x", "b1x", "b2x"]),
        ("b[1:9:4]", ["b1", "b5", "b9"]),
        ("r[a:b]-[1:2]", ["ra-1", "ra-2", "rb-1", "rb-2"]),
    ],
)
def test_range_stands_for_its_names(pattern: str, names: list[str]) -> None:
    assert expand_ranges(pattern) == names


@pytest.mark.parametrize("pattern", ["b[3:1]", "b[a:3]", "b[1:99999999]", "b[1:3:0]"])
def test_range_that_is_none_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ProfileError, match="is no range"):
        read_ansible_devices(write(tmp_path, "hosts", pattern))


def test_deeper_group_wins_as_for_ansible(tmp_path: Path) -> None:
    board = read_one(tmp_path, DEEP)
    assert (board.user, board.port, board.key) == ("deep", "25", "/key")


def test_variables_beside_the_inventory_are_read(tmp_path: Path) -> None:
    write(tmp_path, "group_vars/pis.yml", "ansible_user: fromgroup\nansible_port: 24\n")
    write(tmp_path, "group_vars/all/main.yml", "ansible_port: 23\n")
    write(tmp_path, "host_vars/a.yml", "ansible_host: 192.0.2.9\n")
    assert read_one(tmp_path, "[pis]\na\n") == ListedDevice(
        "a", "192.0.2.9", "fromgroup", "24", tags=("pis",)
    )
    write(tmp_path, "group_vars/pis.yml", "$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    assert "has the tag !vault" in read_one(tmp_path, "[pis]\na\n").problem


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ('ansible_host="{{ shelf }}.1"', "ansible_host is '{{ shelf }}.1', which only Ansible"),
        (
            "ansible_host=\"{{ shelf | default('a') }}\"",
            "| default('a') }}\", which only",
        ),
        ("ansible_connection=local", "ansible_connection is 'local', not ssh"),
        ("ansible_ssh_common_args='-J gate'", "ansible_ssh_common_args has options for ssh"),
        ("ansible_ssh_common_args='-o StrictHostKeyChecking=no -J gate'", "has options for ssh"),
        ("ansible_ssh_common_args='-o StrictHostKeyChecking=no'", ""),
        ("ansible_become=true anything=1", ""),
    ],
)
def test_what_only_ansible_resolves_is_named(tmp_path: Path, variables: str, problem: str) -> None:
    found = read_one(tmp_path, f"a {variables}")
    assert problem in found.problem
    assert bool(problem) == bool(found.problem) == bool(found.hint)


def test_vault_is_named_where_it_hides_how_a_board_is_reached(tmp_path: Path) -> None:
    text = "all: {hosts: {a: {ansible_user: !vault x, ansible_password: !vault y}}}"
    board = read_one(tmp_path, text, "hosts.yml")
    assert "ansible_user has the tag !vault" in board.problem
    assert board.has_password
    assert "y" not in (board.user, board.key)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yml", "plugin: aws_ec2\n", "no inventory with groups"),
        ("a.json", '{"_meta": {"hostvars": {}}}', "no inventory with groups"),
        ("a.yml", "all: {hosts: {a: {}}, host: {}}\n", "group 'all' has 'host'"),
        ("a.yml", "all: {hosts: [a]}\n", "in YAML"),
        ("a.ini", "[a:vars]\nx\n", "'x' is no NAME=VALUE"),
        ("a.ini", "[a:kids]\nx\n", r"\[...:kids\]"),
        ("a.ini", "a b=1 c\n", "is no host with NAME=VALUE"),
        ("a.ini", "[a:children]\nb\n", "child 'b', which is no group"),
        ("a.ini", "[a:children]\nb\n[b:children]\na\n", "children of each other"),
    ],
)
def test_inventory_that_cannot_be_read_is_one_error(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    with pytest.raises(ProfileError, match=problem):
        read_ansible_devices(write(tmp_path, name, text))


def test_program_that_prints_hosts_is_left_to_ansible(tmp_path: Path) -> None:
    path = write(tmp_path, "hosts", "#!/bin/sh\n")
    path.chmod(0o755)
    with pytest.raises(ProfileError, match="which only Ansible can run") as caught:
        read_ansible_devices(path)
    assert "ansible-inventory -i" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "name,host,tags,port\npi,192.0.2.1,lab shelf,22\n",
        '\ufeffhost;name;port;tags\n192.0.2.1;pi;22;"lab shelf"\n',
    ],
)
def test_csv_columns_come_in_any_order(tmp_path: Path, text: str) -> None:
    [board] = read_csv_devices(write(tmp_path, "boards.csv", text))
    assert board == ListedDevice("pi", "192.0.2.1", port="22", tags=("lab", "shelf"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names the columns none"),
        ("name,host,passwort\n", "names the columns name, host, passwort"),
        ("name,user\n", "names the columns"),
        ("name,host\npi\n", "boards.csv:2: .*no name or host"),
        ("name,host\npi,b\nx,y,z\n", "boards.csv:3: .*more cells"),
    ],
)
def test_csv_that_is_not_what_it_announces_is_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(ProfileError, match=problem):
        read_csv_devices(write(tmp_path, "boards.csv", text))


def test_ssh_config_hosts_are_those_that_are_no_patterns(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(own_home))
    write(own_home, ".ssh/lab.d/one", "Host pi-03\n  Port 22\n")
    text = "Include lab.d/*\nHost pi-01 pi-02 !x *.lab  # shelf\n  User pi\nHost=gate\nMatch all\n"
    path = write(tmp_path, "config", text)
    boards = read_ssh_config_devices(path)
    assert [board.name for board in boards] == ["pi-03", "pi-01", "pi-02", "gate"]
    assert {board.ssh_config for board in boards} == {str(path)}
    assert [b.name for b in choose_listed(boards, ["pi-0[12]", "g*"], path)] == [
        *("pi-01", "pi-02", "gate")
    ]
    with pytest.raises(UsageError, match=r"matches 'orin-\*'"):
        choose_listed(boards, ["pi-*", "orin-*"], path)
    path.write_text(f"Include {path}\n")
    with pytest.raises(ProfileError, match="look for a loop"):
        read_ssh_config_devices(path)
