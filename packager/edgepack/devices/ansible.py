"""Reads boards from an Ansible inventory, in INI or YAML: hosts, ranges, groups, their variables.

What only Ansible can work out (a vault, a template, a program that prints hosts) is named and never
guessed at. Source: docs.ansible.com, "How to build your inventory" and "Using variables".
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgepack.base.yaml_source import Tagged, read_yaml
from edgepack.devices.importing import ListedDevice, read_text
from edgepack.errors import ProfileError

_MOST = 10_000
"""Hosts of one range."""
_RANGE = re.compile(r"\[(\w*):(\w+)(?::(\d+))?\]")
_READ = {
    "host": ("ansible_host", "ansible_ssh_host"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "key": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
}
_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")
_PASSWORDS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
_OVER_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh")
_ABOUT_HOST_KEYS = re.compile(
    r"(\s*-o\s*(StrictHostKeyChecking|UserKnownHostsFile|ControlMaster|ControlPersist)=\S+)*\s*"
)
"""What changes neither the way to a board nor the login."""


@dataclass
class _Group:
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """With the variables that stand beside them."""
    variables: dict[str, Any] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)


_Groups = dict[str, _Group]


def read_ansible_devices(path: Path) -> list[ListedDevice]:
    """Read the hosts of an Ansible inventory; their groups are their tags.

    Variables come from the file, and from ``group_vars`` and ``host_vars`` beside it. A host that
    needs what edgepack cannot follow has a ``problem``.

    Raises:
        ProfileError: It cannot be read, or is a program, a plugin's configuration or a folder.
    """
    path = path.expanduser()
    if path.is_dir() or (path.suffix not in (".yml", ".yaml") and os.access(path, os.X_OK)):
        raise _make_unknown_error("a folder or a program, which only Ansible can run", path)
    groups = _read_yaml(path) if path.suffix in (".yml", ".yaml", ".json") else _read_ini(path)
    lines = _find_lines(groups, path)
    boards: dict[str, ListedDevice] = {}
    for group in groups.values():
        for name in group.hosts:
            if name not in boards:
                boards[name] = _make_board(name, groups, lines, path)
    return list(boards.values())


def expand_ranges(pattern: str) -> list[str]:
    """Return the names that ``board[01:30]`` or ``rack[a:c]`` stand for.

    Raises:
        ValueError: A range is none.
    """
    found = _RANGE.search(pattern)
    if found is None:
        return [pattern]
    first, last, step = found[1] or "0", found[2], int(found[3] or 1)
    if first.isdigit() and last.isdigit() and step:
        width = len(first) if first.startswith("0") else 0
        numbers = range(int(first), int(last) + 1, step)[: _MOST + 1]
        values = [str(number).zfill(width) for number in numbers]
    elif len(first) == len(last) == 1 and first.isalpha() and last.isalpha() and step:
        letters = string.ascii_letters
        values = list(letters[letters.index(first) : letters.index(last) + 1 : step])
    else:
        values = []
    if not 0 < len(values) <= _MOST:
        raise ValueError(f"{found[0]} is no range, or too long a one")
    rest = expand_ranges(pattern[found.end() :])
    return [f"{pattern[: found.start()]}{value}{end}" for value in values for end in rest]


def _make_unknown_error(what: str, path: Path) -> ProfileError:
    return ProfileError(
        f"{path} is {what}",
        hint=f"let Ansible resolve it: ansible-inventory -i {shlex.quote(str(path))} --list --yaml"
        " > boards.yml; then: edgepack device import --ansible boards.yml",
    )


def _read_ini(path: Path) -> _Groups:
    """Read an inventory in INI; its lines are no pairs, so each is a key without a value."""
    parser = configparser.ConfigParser(
        delimiters=("\0",),
        comment_prefixes=("#", ";"),
        allow_no_value=True,
        strict=False,
        empty_lines_in_values=False,
        default_section="\0",
        interpolation=None,
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    lines = [line.strip() for line in read_text(path).splitlines()]
    groups: _Groups = {"all": _Group()}
    try:
        parser.read_string("\n".join(["[ungrouped]", *lines]), source=str(path))
        for section in parser.sections():
            name, _, kind = section.partition(":")
            group = groups.setdefault(name, _Group())
            for line in parser.options(section):
                _add_ini_line(line, kind, group)
    except (configparser.Error, ValueError) as error:
        raise ProfileError(
            f"no Ansible inventory in INI: {str(error).partition(chr(10))[0]}",
            hint="a host, or NAME=VALUE under [GROUP:vars], stands in each line; an inventory in"
            " YAML is called *.yml",
            where=str(path),
        ) from error
    return groups


def _add_ini_line(line: str, kind: str, group: _Group) -> None:
    if kind == "children":
        group.children.append(line.partition("#")[0].strip())
    elif kind == "vars":
        name, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"{line!r} is no NAME=VALUE")
        group.variables[name.strip()] = value.strip().strip("\"'")
    elif kind:
        raise ValueError(f"nothing is known of a section [...:{kind}]")
    else:
        words = shlex.split(line, comments=True)
        if any("=" not in word for word in words[1:]):
            raise ValueError(f"{line!r} is no host with NAME=VALUE")
        variables = dict(word.split("=", 1) for word in words[1:])
        _add_host(words[0], variables, group)


def _read_yaml(path: Path) -> _Groups:
    values = read_yaml(path, tagged=True).values
    if not isinstance(values, dict) or "plugin" in values or "_meta" in values:
        raise _make_unknown_error("no inventory with groups and hosts", path)
    groups: _Groups = {"all": _Group()}
    try:
        for name, content in values.items():
            _add_yaml_group(str(name), content, groups)
    except (ValueError, AttributeError) as error:
        raise ProfileError(
            f"no Ansible inventory in YAML: {error}",
            hint="groups have 'hosts', 'vars' and 'children', which are mappings",
            where=str(path),
        ) from error
    return groups


def _add_yaml_group(name: str, content: Any, groups: _Groups) -> None:  # noqa: ANN401
    """Add a group and those below it; what is no mapping is an AttributeError."""
    group = groups.setdefault(name, _Group())
    for key, below in (content or {}).items():
        if key not in ("hosts", "vars", "children"):
            raise ValueError(f"group {name!r} has {key!r}")
        for each, value in (below or {}).items():
            if key == "vars":
                group.variables[each] = value
            elif key == "hosts":
                _add_host(str(each), dict((value or {}).items()), group)
            else:
                group.children.append(str(each))
                _add_yaml_group(str(each), value, groups)


def _add_host(pattern: str, variables: dict[str, Any], group: _Group) -> None:
    """Add a host, or all of a range; ``host:port`` is another way to write a port."""
    with_port = re.fullmatch(r"([^:]+|.*\])([^:\[\]]*):(\d+)", pattern)
    if with_port:
        pattern = with_port[1] + with_port[2]
        variables = {"ansible_port": with_port[3], **variables}
    for name in expand_ranges(pattern):
        group.hosts.setdefault(name, {}).update(variables)


def _find_lines(groups: _Groups, path: Path) -> dict[str, list[tuple[str, ...]]]:
    """Return for each group the ways from it to a group that has no parent but ``all``."""
    parents: dict[str, list[str]] = {name: [] for name in groups}
    for name, group in groups.items():
        for child in group.children:
            if child not in groups:
                raise ProfileError(
                    f"group {name!r} has the child {child!r}, which is no group",
                    hint="correct the name, or add that group",
                    where=str(path),
                )
            if name != "all":
                parents[child].append(name)

    def climb(name: str, below: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if name in below:
            raise ProfileError(
                f"the groups {', '.join(below)} are children of each other",
                hint="let one of them have no children",
                where=str(path),
            )
        yield (*below, name)
        for parent in parents[name]:
            yield from climb(parent, (*below, name))

    return {name: list(climb(name, ())) for name in groups}


def _make_board(
    name: str, groups: _Groups, lines: Mapping[str, list[tuple[str, ...]]], path: Path
) -> ListedDevice:
    """Return a host with its variables: a deeper group's go over others, its own over all."""
    own = [
        way for group, content in groups.items() if name in content.hosts for way in lines[group]
    ]
    members = {"all", *(group for way in own for group in way)}
    # Ansible orders groups by their depth below 'all', those of one depth by their names.
    depths = {
        each: max(len(way) for way in lines[each]) if each != "all" else 0 for each in members
    }
    order = sorted(members, key=lambda each: (depths[each], each))
    variables: dict[str, Any] = {}
    for group in order:
        variables |= groups[group].variables | _read_variables(path, "group_vars", group)
    for group in order:
        variables |= groups[group].hosts.get(name, {})
    variables |= _read_variables(path, "host_vars", name)
    said: dict[str, str] = {}
    for key, names in _READ.items():
        value = next((variables[one] for one in names if variables.get(one) is not None), "")
        said[key] = "" if isinstance(value, Tagged) else str(value)
    problem, hint = _find_problem(variables)
    return ListedDevice(
        name,
        said.pop("host") or name,
        **said,
        tags=tuple(sorted(members - {"all", "ungrouped"})),
        has_password=any(one in variables for one in _PASSWORDS),
        problem=problem,
        hint=hint,
    )


def _read_variables(path: Path, folder: str, name: str) -> dict[str, Any]:
    """Return the variables that a file beside the inventory has for a group or a host."""
    found: dict[str, Any] = {}
    for file in (path.parent / folder / f"{name}{suffix}" for suffix in ("", ".yml", ".yaml")):
        for each in sorted(file.iterdir()) if file.is_dir() else [file] * file.is_file():
            if read_text(each).startswith("$ANSIBLE_VAULT"):
                found["a whole file"] = Tagged("!vault")
                continue
            values = read_yaml(each, tagged=True).values
            found |= values if isinstance(values, dict) else {}
    return found


def _find_problem(variables: Mapping[str, Any]) -> tuple[str, str]:
    """Return why a host cannot be reached as its variables say, and what to do; empty if it can."""
    for name in ("a whole file", *(one for names in _READ.values() for one in names)):
        value = variables.get(name, "")
        if isinstance(value, Tagged) or "{{" in str(value) or "{%" in str(value):
            what = f"has the tag {value.tag}" if isinstance(value, Tagged) else f"is {value!r}"
            return f"{name} {what}, which only Ansible can resolve", "write its value"
    connection = str(variables.get("ansible_connection", "ssh"))
    if connection not in _OVER_SSH:
        return f"ansible_connection is {connection!r}, not ssh", "leave it out with a pattern"
    for name in _ARGUMENTS:
        if not _ABOUT_HOST_KEYS.fullmatch(str(variables.get(name, ""))):
            return f"{name} has options for ssh", "put them into ~/.ssh/config instead"
    return "", ""
