from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.devices.inventory import (
    Device,
    LocalEntry,
    SshEntry,
    add_device,
    describe_inventory,
    find_inventory,
    load_device,
    load_devices,
    load_inventory,
)
from edgepack.errors import ProfileError, ToolError, UsageError
from edgepack.project.profile import find_host_target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FULL = """\
# our boards
schema_version: 1
devices:
  pi5-a: {transport: ssh, host: 192.0.2.17, user: bench, target: raspberry-pi, tags: [pi5]}
  orin:                      # the fast one
    transport: ssh
    host: orin
    port: 2222
    host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    password_env: ORIN_PASSWORD
    target: linux-aarch64
    run_prefix: [taskset, -c, "2-3"]
  here: {transport: local, target: linux-x86-64, root: /data/edgepack}
"""
NEW = SshEntry(transport="ssh", host="192.0.2.9", user="pi", target="raspberry-pi")


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "devices.yaml").write_text(FULL)
    return tmp_path / "devices.yaml"


def test_entries_are_read_with_their_types(inventory: Path) -> None:
    devices = load_devices()
    assert list(devices) == ["here", "local", "orin", "pi5-a"]
    orin = devices["orin"].entry
    assert isinstance(orin, SshEntry)
    assert (orin.host, orin.port, orin.run_prefix) == ("orin", 2222, ["taskset", "-c", "2-3"])
    assert devices["here"].entry == LocalEntry(
        transport="local", target="linux-x86-64", root="/data/edgepack"
    )


def test_local_is_this_machine_unless_the_inventory_has_one(inventory: Path) -> None:
    assert load_device("local").target == find_host_target()
    inventory.write_text(FULL + "  local: {transport: local, target: raspberry-pi}\n")
    assert load_device("local").target == "raspberry-pi"


def test_unknown_device_offers_the_nearest(inventory: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_device("pi5-b")
    assert "did you mean 'pi5-a'?" in caught.value.hint


def test_inventory_is_found_here_then_in_the_users_folder(
    inventory: Path, tmp_path: Path, own_home: Path
) -> None:
    assert find_inventory(Path("other.yaml")) == Path("other.yaml")
    assert find_inventory() == Path("devices.yaml")
    inventory.unlink()
    assert own_home in find_inventory().parents
    assert describe_inventory() == f"{find_inventory()}, which is not there yet"
    assert list(load_devices()) == ["local"]


def test_named_inventory_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="there is no file"):
        load_devices(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ("  a: {transport: ssh, hots: b, host: c, target: d}", "unknown key 'hots'", "'host'"),
        ("  a: {transport: local, host: c, target: d}", "does not go with the others", ""),
        ("  a: {transport: usb, target: d}", "usb", ""),
        ("  a: {transport: adb, target: d}", "the key 'serial' is missing", ""),
        ("  a: {transport: adb, serial: '-x', target: d}", "'serial' cannot be", ""),
        ("  a: {transport: adb, serial: A, target: d, python: p}", "the key 'python' does not", ""),
        (
            "  a: {transport: adb, serial: A, target: d, inside: app, run_prefix: [taskset, f0]}",
            "'run_prefix' goes before a program",
            "leave 'inside: app' or",
        ),
        ("  a: {transport: ssh, host: '-oProxyCommand=x', target: d}", "'host' cannot be", ""),
        ("  a: {transport: ssh, host: b, port: 0, target: d}", "'port' cannot be 0", ""),
        ("  a: {transport: ssh, host: b, host_key: 'MD5:1', target: d}", "'host_key' cannot", ""),
        ("  a: {transport: ssh, host: b, password: x, target: d}", "unknown key 'password'", ""),
        ("  a: {transport: local, target: d, root: relative}", "'root' cannot be", ""),
    ],
)
def test_wrong_entry_is_named_with_its_place(
    inventory: Path, line: str, problem: str, hint: str
) -> None:
    inventory.write_text(f"schema_version: 1\ndevices:\n{line}\n")
    with pytest.raises(ProfileError) as caught:
        load_devices()
    assert problem in str(caught.value)
    assert hint in str(caught.value)
    assert "devices.yaml:3" in str(caught.value)


def test_added_device_leaves_the_rest_of_the_file_as_it_was(inventory: Path) -> None:
    add_device(inventory, "pi4", NEW)
    text = inventory.read_text()
    assert text.startswith(FULL)
    assert text.removeprefix(FULL) == (
        '  pi4: {transport: "ssh", target: "raspberry-pi", host: "192.0.2.9", user: "pi"}\n'
    )
    assert load_device("pi4") == Device("pi4", NEW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n# none yet\n",
        "---\n",
        "schema_version: 1\n",
        "schema_version: 1\ndevices:\n",
        "schema_version: 1\ndevices: # none yet\n  # add some\n",
        "devices:\n    a: {transport: local, target: t}\n\n# end\nschema_version: 1\n",
        "devices:\n    a:\n      transport: local\n      target: t\n    # next\nschema_version: 1",
        "schema_version: 1\ndevices:\n  a: {transport: local,\n      target: t}",
    ],
)
def test_device_is_added_to_files_written_differently(tmp_path: Path, text: str) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text(text)
    add_device(path, "pi4", NEW)
    assert load_inventory(path).devices["pi4"] == NEW
    assert [line for line in text.splitlines() if line not in path.read_text()] == []


def test_device_is_added_where_empty_braces_stand(tmp_path: Path) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text("# mine\ndevices: {}  # none yet\nschema_version: 1\n")
    add_device(path, "pi4", NEW)
    assert load_inventory(path).devices == {"pi4": NEW}
    assert path.read_text().startswith("# mine\ndevices:  # none yet\n  pi4: ")


def test_first_device_makes_the_file(tmp_path: Path) -> None:
    add_device(tmp_path / "config" / "devices.yaml", "pi4", NEW)
    assert load_inventory(tmp_path / "config" / "devices.yaml").devices == {"pi4": NEW}


@pytest.mark.parametrize(
    "text",
    [
        "{schema_version: 1, devices: {}}\n",
        "{schema_version: 1, devices: {a: {transport: local, target: t}}}\n",
    ],
)
def test_file_in_flow_style_is_left_alone_and_the_line_is_given(tmp_path: Path, text: str) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        add_device(path, "pi4", NEW)
    assert 'pi4: {transport: "ssh"' in caught.value.hint
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("name", "problem"), [("orin", "already has"), ("a b", "cannot be called")]
)
def test_name_must_be_free_and_plain(inventory: Path, name: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        add_device(inventory, name, NEW)
    assert inventory.read_text() == FULL


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tags=st.lists(TEXTS), user=TEXTS, key=TEXTS)
def test_any_values_survive_being_written(
    tmp_path: Path, tags: list[str], user: str, key: str
) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text(FULL)
    entry = NEW.model_copy(update={"tags": tags, "user": user, "key": key})
    add_device(path, "new", entry)
    assert load_inventory(path).devices["new"] == entry


def test_inventory_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "devices.yaml"
    entry = LocalEntry(transport="local", target="linux-x86-64")
    with pytest.raises(ToolError, match="cannot write the inventory") as caught:
        add_device(path, "board", entry)
    assert caught.value.where == str(path)
