"""``devices.yaml``: the user's devices, how to reach them, and the target of each.

A team's devices lie in its database. The user's own file goes before: an entry there stands for the
whole of the team's with the same name.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from edgepack.base.files import locked, write_atomically, writing
from edgepack.base.schema import Id, StrictModel
from edgepack.base.team import VARIABLE, is_in_team
from edgepack.base.yaml_source import YamlSource, parse_yaml, read_yaml
from edgepack.errors import ProfileError, ToolError, UsageError, suggest_nearest
from edgepack.project.profile import find_host_target

INVENTORY_FILE = "devices.yaml"
LOCAL = "local"
"""The device that is always there: this machine."""

_NAME = r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*"
DeviceName = Annotated[str, Field(pattern=f"^{_NAME}$")]
_LINE = r"[^\x00-\x1f\x7f]*"
Line = Annotated[str, Field(pattern=f"^{_LINE}$")]
"""No line breaks, and no NUL, which no argument can have: ``ssh -G`` prints a user's name in a
line, and another line would be another setting."""
NO_PYTHON = "none"
Root = Annotated[str, Field(pattern=f"^(/|~/){_LINE}$")]
Program = Annotated[str, Field(pattern=r"^[^-=\x00-\x1f\x7f][^=\x00-\x1f\x7f]*$")]
"""Neither an option of ``env`` nor an assignment."""


class _Entry(StrictModel):
    target: Id
    root: Root = "~/.local/share/edgepack"
    """Everything that edgepack puts on the device lies under it."""
    python: Program | None = None
    """The Python with onnxruntime; default: the provisioned one, else ``python3``. ``none``: do
    without Python, although the device may have one."""
    run_prefix: list[Line] = []
    """Put before the harness's command: ``[taskset, -c, "2-3"]``."""
    tags: list[Line] = []
    after_switch: list[Line] = []
    """Run after ``current`` was switched: ``[systemctl, --user, restart, detector]``."""
    health: list[Line] = []
    """Run after that; unless it ends with 0, the release before becomes current again."""
    hook_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """How long each of the two may take."""
    keep_releases: Annotated[int, Field(ge=1)] = 2
    """How many releases of a project stay on the device, the current one among them."""

    @property
    def kept_releases(self) -> int:
        """How many stay: at least two where a hook may fail, for then the one before comes back."""
        return max(self.keep_releases, 2 if self.after_switch or self.health else 1)


class LocalEntry(_Entry):
    """This machine."""

    transport: Literal["local"]


class SshHost(StrictModel):
    """How to reach a machine over SSH. Missing settings come from ``~/.ssh/config``."""

    host: Annotated[str, Field(pattern=r"^[^-\s\x00-\x1f\x7f][^\s\x00-\x1f\x7f]*$")]
    user: Line | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key: Line | None = None
    """Path of the private key to use, and the only one."""
    password_env: Annotated[str, Field(pattern=r"^[^=\x00-\x1f\x7f]+$")] | None = None
    """Name of the environment variable that holds the password."""
    host_key: Annotated[str, Field(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")] | None = None
    """Fingerprint of the host's key. When set, it alone decides."""
    ssh_config: Line | None = None
    """A file to read instead of ``~/.ssh/config``, as ``ssh -F`` does."""


class Power(StrictModel):
    """Command lines that switch a device's power. They run on this machine; no shell reads them."""

    on: Annotated[list[Line], Field(min_length=1)]
    off: Annotated[list[Line], Field(min_length=1)]
    cycle: list[Line] = []
    """Default: off, two seconds later on."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """How long each may take."""


class SshEntry(SshHost, _Entry):
    """A machine reached over SSH."""

    transport: Literal["ssh"]
    relay: Literal["bastion"] | None = None
    """Where a push's chunks go: once to the last host of ProxyJump, from which the devices behind
    it fetch them. It needs Python 3.8, and a port that these devices can reach. Default: each
    device is sent all that it lacks."""
    power: Power | None = None
    """How ``edgepack device power`` switches it: ``{on: [plug, "7", "on"], off: [plug, "7",
    "off"]}``."""


_TagKey = Annotated[str, Field(pattern="^[a-z][a-z0-9_]+$")]
_TagValue = Annotated[str, Field(pattern="^[A-Za-z0-9_.:/+-]+$")]
"""What labgrid 26 takes (``TAG_KEY`` in ``labgrid/remote/common.py``), and splits at ``=``."""


class LabgridEntry(_Entry):
    """A board of a labgrid, reached over SSH at the address of its place's NetworkService."""

    transport: Literal["labgrid"]
    place: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] | None = None
    """It is acquired while a command is connected to the board."""
    filters: Annotated[dict[_TagKey, _TagValue], Field(min_length=1)] | None = None
    """In its stead, tags of places: any free one that has all of them is reserved, until the
    command ends."""
    waiting_s: Annotated[float, Field(gt=0)] = 600.0
    """How long to wait until such a place is free."""
    coordinator: (
        Annotated[str, Field(pattern=r"^[^-\s\x00-\x1f\x7f][^\s\x00-\x1f\x7f]*$")] | None
    ) = None
    """``HOST:PORT``; default: ``LG_COORDINATOR`` of the environment."""
    client: Program = "labgrid-client"
    """The program that is asked."""
    user: Line | None = None
    """Default: the NetworkService's; what follows is as for SSH."""
    key: Line | None = None
    password_env: Annotated[str, Field(pattern=r"^[^=\x00-\x1f\x7f]+$")] | None = None
    host_key: Annotated[str, Field(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")] | None = None
    ssh_config: Line | None = None

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if (self.place is None) == (self.filters is None):
            raise ValueError(
                "either 'place' or 'filters' says which board it is | place: kiosk, or filters:"
                " {board: kiosk}"
            )
        return self

    @property
    def wanted(self) -> str:
        """The place, or the filters as ``labgrid-client`` takes them."""
        return self.place or " ".join(
            f"{key}={value}" for key, value in sorted((self.filters or {}).items())
        )


class PhoneEntry(StrictModel):
    """A phone, which is measured through the machine that it is attached to."""

    target: Id
    via: SshHost | None = None
    """That machine; default: this one."""
    tags: list[Line] = []

    # Keys that only machines have, for code that works with any device.
    python: ClassVar[None] = None
    after_switch: ClassVar[list[str]] = []
    health: ClassVar[list[str]] = []
    hook_timeout_s: ClassVar[float] = 60.0
    keep_releases: ClassVar[int] = 1
    kept_releases: ClassVar[int] = 1


class AdbEntry(PhoneEntry):
    """An Android phone, through adb."""

    transport: Literal["adb"]
    serial: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")]
    """As ``adb devices`` prints it."""
    adb: Program = "adb"
    """On the machine that has the phone."""
    root: Annotated[str, Field(pattern=f"^/{_LINE}$")] = "/data/local/tmp/edgepack"
    """On the phone: where the shell may write and run programs."""
    inside: Literal["shell", "app"] = "shell"
    """How the measuring program runs: in the phone's shell, or within an app."""
    run_prefix: list[Line] = []
    """Put before the measuring program: ``[taskset, f0]``."""
    package: Line | None = None
    """The ``onnxruntime-android`` package to measure with, an .aar file on this machine; default:
    the target's version in the local Maven repository or Gradle's cache."""

    @model_validator(mode="after")
    def _check_run_prefix(self) -> Self:
        if self.inside == "app" and self.run_prefix:
            raise ValueError(
                "'run_prefix' goes before a program, and an app is not one | leave 'inside: app' or"
                " 'run_prefix' out"
            )
        return self


class AppleEntry(PhoneEntry):
    """An iPhone or iPad, through Xcode on a Mac."""

    transport: Literal["apple"]
    udid: Annotated[str, Field(pattern=r"^[0-9A-Fa-f-]{25,40}$")]
    """As ``xcrun devicectl list devices`` prints it."""
    team: Annotated[str, Field(pattern=r"^[A-Z0-9]{10}$")]
    """The development team that signs the measuring app."""
    keychain_password_env: Annotated[str, Field(pattern=r"^[^=\x00-\x1f\x7f]+$")] | None = None
    """Name of the environment variable, here, with the password of the Mac's login keychain."""
    root: ClassVar[str] = ""
    run_prefix: ClassVar[list[str]] = []


class BrowserEntry(StrictModel):
    """A browser: it opens a page that this machine serves, and runs bundles in it."""

    transport: Literal["browser"]
    target: Id
    open: Literal["headless", "by hand"] = "headless"
    """Who opens the page: a headless Chromium that edgepack starts for each process run; or you, in
    any browser, at the address that edgepack prints."""
    browser: Program | None = None
    """The Chromium to start, or Chrome; default: the first that is found."""
    options: list[Line] = []
    """More of its options: ``[--enable-unsafe-webgpu]``."""
    runtime: Line = "node_modules/onnxruntime-web"
    """The folder of the npm package, on this machine, in the version that the target pins."""
    listen: Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}$")] = (
        "127.0.0.1:0"
    )
    """Address and port at which the page is served; port 0 is any that is free."""
    opening_s: Annotated[float, Field(gt=0)] = 300.0
    """How long to wait for the page to be opened."""
    tags: list[Line] = []

    # Keys that only machines have, for code that works with any device.
    root: ClassVar[str] = ""
    python: ClassVar[None] = None
    run_prefix: ClassVar[list[str]] = []
    after_switch: ClassVar[list[str]] = []
    health: ClassVar[list[str]] = []
    hook_timeout_s: ClassVar[float] = 60.0
    keep_releases: ClassVar[int] = 1
    kept_releases: ClassVar[int] = 1

    @model_validator(mode="after")
    def _check_opening(self) -> Self:
        if self.open == "by hand" and (self.browser or self.options):
            raise ValueError(
                "'browser' and 'options' are of a browser that edgepack starts | leave them or"
                " 'open: by hand' out"
            )
        if self.open == "headless" and self.listen != "127.0.0.1:0":
            raise ValueError(
                "'listen' is for a page that is opened by hand | leave it out, or add 'open: by"
                " hand'"
            )
        return self


AnyEntry = LocalEntry | SshEntry | LabgridEntry | AdbEntry | AppleEntry | BrowserEntry
Entry = Annotated[AnyEntry, Field(discriminator="transport")]


class Inventory(StrictModel):
    """The content of ``devices.yaml``."""

    schema_version: Literal[1]
    devices: dict[DeviceName, Entry] = {}


@dataclass(frozen=True)
class Device:
    """A device by its name."""

    name: str
    entry: AnyEntry

    @property
    def target(self) -> str:
        """The id of the target that this device is."""
        return self.entry.target

    @property
    def may_lack_python(self) -> bool:
        """Whether work without Python is right there: the inventory names none, or says so."""
        return self.entry.python in (None, NO_PYTHON)

    @property
    def plain_python(self) -> str:
        """A Python 3.8 or newer on the device, for edgepack's own programs: no packages needed."""
        return self.entry.python or (sys.executable if self.entry.transport == LOCAL else "python3")

    @property
    def host(self) -> Device:
        """The machine that a phone is attached to, with a root of the phone's own; else itself.

        For a browser it is this machine, with its own root where edgepack starts the browser: it
        runs on the same processor as the device ``local``, whose root is the default one there.
        """
        if isinstance(self.entry, LocalEntry | SshEntry | LabgridEntry):
            return self
        if isinstance(self.entry, BrowserEntry):
            found = LocalEntry(transport="local", target=self.target)
            if self.entry.open == "by hand":
                found = found.model_copy(update={"root": f"{found.root}/browsers/{self.name}"})
            return Device(self.name, found)
        key = self.entry.serial if isinstance(self.entry, AdbEntry) else self.entry.udid
        root = f"~/.local/share/edgepack/phones/{key}"
        values = {"target": self.target, "root": root}
        if self.entry.via is None:
            found = LocalEntry.model_validate({"transport": "local", **values})
            return Device(self.name, found)
        reached = {"transport": "ssh", **values, **self.entry.via.model_dump()}
        return Device(self.name, SshEntry.model_validate(reached))


def find_inventory(path: Path | None = None) -> Path:
    """Return the inventory's path: the given one, this folder's, or the user's config folder's."""
    import platformdirs

    if path is not None:
        return path
    here = Path(INVENTORY_FILE)
    return here if here.is_file() else platformdirs.user_config_path("edgepack") / INVENTORY_FILE


def describe_inventory(path: Path | None = None) -> str:
    """Return where the inventory is, in words, or that there is none yet."""
    found = find_inventory(path)
    said = str(found) if found.exists() else f"{found}, which is not there yet"
    return f"{said}; and the team's database" if path is None and is_in_team() else said


def load_inventory(path: Path | None = None) -> Inventory:
    """Read the inventory; a missing file at a default place is an empty one.

    Unless a file is named, the team's devices are in it too, where the environment names a team's
    database; the file's own entries replace those of the same names.

    Raises:
        ProfileError: The file is wrong, or was named and is missing; or a team's entry is wrong.
        ToolError: The team's database cannot be reached.
    """
    found = find_inventory(path)
    if path is not None:
        return _parse(read_yaml(found))
    own = _parse(read_yaml(found)) if found.exists() else Inventory(schema_version=1)
    return own.model_copy(update={"devices": _load_team_devices() | own.devices})


def _load_team_devices() -> dict[str, AnyEntry]:
    if not is_in_team():
        return {}
    from edgepack.devices import team_entries

    return {name: _parse_entry(name, raw) for name, raw in team_entries.read_entries().items()}


def _parse_entry(name: str, raw: str) -> AnyEntry:
    kind: TypeAdapter[AnyEntry] = TypeAdapter(Entry)
    try:
        return kind.validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise ProfileError(
            f"the team's entry of the device cannot be read: {first['msg']}",
            hint="use the edgepack that wrote it (pip install --upgrade edgepack), or take it away:"
            f" edgepack device remove {name}",
            where=name,
        ) from error


def load_devices(path: Path | None = None) -> dict[str, Device]:
    """Return all devices by name, this machine among them as ``local``."""
    entries: dict[str, AnyEntry] = dict(load_inventory(path).devices)
    if LOCAL not in entries:
        with contextlib.suppress(ToolError):  # this machine fits no target: it is not offered
            entries[LOCAL] = LocalEntry(transport="local", target=find_host_target())
    return {name: Device(name, entry) for name, entry in sorted(entries.items())}


def load_device(name: str, path: Path | None = None) -> Device:
    """Return one device.

    Raises:
        UsageError: The inventory has no such device.
        ProfileError: The inventory is wrong.
    """
    devices = load_devices(path)
    if name not in devices:
        raise UsageError(
            f"there is no device {name!r} in {describe_inventory(path)}",
            hint=f"{suggest_nearest(name, devices)} (edgepack device list), or add it:"
            f" edgepack device add {name} USER@HOST",
            where="--device",
        )
    return devices[name]


def write_team_device(name: str, entry: AnyEntry) -> None:
    """Write a device into the team's inventory.

    Raises:
        UsageError: There is no team's database, or the name is taken there or cannot be one.
        ToolError: The database cannot be written.
    """
    _require_name(name)
    require_unshared(name)
    from edgepack.devices import team_entries

    team_entries.write_entry(name, json.dumps(_list_values(entry)))


def remove_team_device(name: str) -> None:
    """Take a device out of the team's inventory; nothing changes on the device itself.

    Raises:
        UsageError: There is no team's database, or no such device in it.
        ToolError: The database cannot be written.
    """
    _require_team()
    from edgepack.devices import team_entries

    if not team_entries.remove_entry(name):
        raise UsageError(
            f"the team has no device {name!r}",
            hint=f"{suggest_nearest(name, team_entries.read_entries())}; what only {INVENTORY_FILE}"
            " has is taken away there",
        )


def require_unshared(name: str) -> None:
    """Check that the team has no device of this name.

    Raises:
        UsageError: It has, or there is no team's database.
        ToolError: The database cannot be reached.
    """
    _require_team()
    from edgepack.devices import team_entries

    if name in team_entries.read_entries():
        raise team_entries.make_taken_error(name)


def _require_team() -> None:
    if not is_in_team():
        raise UsageError(
            f"{VARIABLE} names no database of a team",
            hint=f"{VARIABLE}=postgresql://me@host/results; {INVENTORY_FILE} is edited by hand",
        )


def add_device(path: Path, name: str, entry: LocalEntry | SshEntry) -> None:
    """Write one more device into an inventory, keeping the file's comments and order.

    Raises:
        UsageError: The name is taken.
        ProfileError: The file is wrong, or written so that it has to be extended by hand.
        ToolError: It cannot be written.
    """
    line = f"{name}: {_format_entry(entry)}"
    with (
        writing("the inventory", path, "make the file and its folder writable for your user"),
        locked(path) as file,
    ):
        require_free_name(name, path)
        source = read_yaml(path)
        if not source.values:
            source = parse_yaml(f"{source.text}schema_version: 1\ndevices:\n", name=str(path))
        before = _parse(source).devices
        if not before:  # `devices: {}`, as an empty one is written too
            text = re.sub(r"^devices: *\{ *\}", "devices:", source.text, flags=re.MULTILINE)
            source = parse_yaml(text, name=str(path))
        text = _insert_line(source, line)
        after: Inventory | None = None
        with contextlib.suppress(ProfileError):
            after = _parse(parse_yaml(text, name=str(path)))
        if after is None or after.devices != {**before, name: entry}:
            raise ProfileError(
                f"cannot extend {path} without changing how it is written",
                hint=f"add this line under 'devices:' yourself:\n    {line}",
                where=str(path),
            )
        write_atomically(file, text)


def require_free_name(name: str, path: Path) -> None:
    """Check that a device can be added to a file under this name.

    Raises:
        UsageError: It is taken, or cannot be a name.
    """
    _require_name(name)
    if path.exists() and name in load_inventory(path).devices:
        raise UsageError(
            f"the inventory {path} already has a device {name!r}",
            hint="choose another name, or edit the file",
        )


def _require_name(name: str) -> None:
    if not re.fullmatch(_NAME, name):
        raise UsageError(
            f"a device cannot be called {name!r}",
            hint="use letters and digits, and . _ - between them",
        )
    if name == LOCAL:
        raise UsageError(
            f"{LOCAL!r} is this machine and needs no entry", hint="choose another name"
        )


def _parse(source: YamlSource) -> Inventory:
    if source.values in ({}, None):  # an empty file, comments alone, or "---"
        return Inventory(schema_version=1)
    if isinstance(source.values, dict) and source.values.get("devices", {}) is None:
        source.values["devices"] = {}  # `devices:` with nothing below it
    return source.parse(Inventory)


def _insert_line(source: YamlSource, line: str) -> str:
    """Put a line after the last one of the block under ``devices:``."""
    lines = source.text.splitlines()
    if ("devices",) not in source.marks:
        return "\n".join([*lines, "devices:", f"  {line}", ""])
    columns = [
        column
        for path, (_, column) in source.marks.items()
        if len(path) == 2 and path[0] == "devices"
    ]
    indent = " " * (columns[0] - 1 if columns else 2)
    last = source.marks["devices",][0]
    for number, text in enumerate(lines[last:], start=last + 1):
        if text.strip() and not text.startswith((" ", "#")):
            break
        if text.startswith(" ") and not text.lstrip().startswith("#"):
            last = number
    return "\n".join([*lines[:last], f"{indent}{line}", *lines[last:], ""])


def _list_values(entry: AnyEntry) -> dict[str, object]:
    return {"transport": entry.transport, **entry.model_dump(exclude_defaults=True)}


def _format_entry(entry: LocalEntry | SshEntry) -> str:
    ordered = _list_values(entry)
    items = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in ordered.items()]
    return f"{{{', '.join(items)}}}"
