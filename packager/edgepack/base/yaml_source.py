"""Reads strict YAML with positions: the only way edgepack reads a YAML file.

YAML 1.2 core scalars (``no`` is a string, ``1e-3`` a number, ``017`` a string), no duplicate
keys, and every problem of a file reported at once with file, line and column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from edgepack.base.yaml_problems import explain
from edgepack.errors import EdgepackError, ProfileError

Model = TypeVar("Model", bound=BaseModel)
_Path = tuple[str | int, ...]
_KEEP_ONE = "keep one of the two"
_MAX_VALUES = 100_000
"""Far more values than any edgepack file has; with aliases a few lines can stand for billions."""
_MOST_FAST_DEPTH = 100
"""libyaml's loader calls itself at each level, and would run out of stack without an error."""
_READ_OTHERWISE = re.compile(r"[\t?!\ufeff]|[|>][-+0-9]*#")
"""Where libyaml and PyYAML were seen to differ: tabs, byte order marks, keys after ``?``, tags, and
comments right after the sign of a block. One machine may have no libyaml, and a file means the same
on all."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalar rules of YAML 1.2's core schema instead of YAML 1.1's."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same by libyaml, where PyYAML has it: five times as fast, with poorer messages."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


# Source: YAML 1.2.2, section 10.3.2 (core schema). A leading zero stays a string: PyYAML's
# integer constructor would read it as octal.
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        (
            r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
            r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
        list("-+0123456789."),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first
    )


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).lower()
    special = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
    return float(special.get(text, text))


for _each in (_Loader, _FastLoader):
    _each.add_constructor("tag:yaml.org,2002:float", _construct_float)


@dataclass(frozen=True)
class Tagged:
    """A value with a tag of its own, such as ``!vault``: what it means is not known here."""

    tag: str


class _TaggedLoader(_Loader):
    """Takes values with tags of their own as :class:`Tagged`."""


_TaggedLoader.add_multi_constructor("!", lambda _loader, tag, _node: Tagged(f"!{tag}"))


@dataclass(frozen=True)
class YamlSource:
    """A YAML document: its values and their positions."""

    name: str
    """The file's name in messages."""
    text: str
    values: Any
    """Plain Python values: dict, list, str, int, float, bool, None."""
    marks: Mapping[_Path, tuple[int, int]]
    """Line and column, both from 1, of each key or list item by its path."""

    def locate(self, path: _Path) -> str:
        """Return ``file:line:column`` of the nearest known place on the way to ``path``."""
        mark = self._find_mark(path)
        return f"{self.name}:{mark[0]}:{mark[1]}" if mark else self.name

    def _find_mark(self, path: _Path) -> tuple[int, int] | None:
        parents = (path[:length] for length in range(len(path), -1, -1))
        return next((self.marks[parent] for parent in parents if parent in self.marks), None)

    def parse(self, model: type[Model]) -> Model:
        """Return the document as ``model``, or all its problems in one error.

        Raises:
            ProfileError: Some key is unknown or missing, or a value does not fit.
        """
        try:
            return model.model_validate(self.values)
        except ValidationError as error:
            raise self.refuse(list(explain(model, self.values, error))) from error

    def refuse(self, problems: Sequence[tuple[_Path, str, str]]) -> EdgepackError:
        """Return one error for all problems: each key's path, what is wrong, and what to do."""
        placed = [
            (*(self._find_mark(path) or (1, 1)), self.locate(path), problem, hint)
            for path, problem, hint in problems
        ]
        return _join_problems(placed)


def read_yaml(path: Path, *, tagged: bool = False) -> YamlSource:
    """Read one YAML file; with ``tagged``, values with unknown tags are :class:`Tagged`.

    Raises:
        ProfileError: The file is missing, cannot be read, is no text or no YAML, or has a duplicate
            key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ProfileError(f"there is no file {str(path)!r}", hint="check the path") from error
    except UnicodeDecodeError as error:
        raise ProfileError(
            f"cannot read {str(path)!r} as text: {error}", hint="it must be a UTF-8 YAML file"
        ) from error
    except OSError as error:
        hint = (
            "name the YAML file in it"
            if isinstance(error, IsADirectoryError)
            else "check the permissions of the file and of the folders above it"
        )
        raise ProfileError(f"cannot read {str(path)!r}: {error.strerror}", hint=hint) from error
    return parse_yaml(text, name=str(path), tagged=tagged)


def parse_yaml(text: str, *, name: str, tagged: bool = False) -> YamlSource:
    """Parse YAML text as :func:`read_yaml` does; ``name`` stands for it in messages.

    Raises:
        ProfileError: The text is not YAML or has a duplicate key.
    """
    marks: dict[_Path, tuple[int, int]] = {}
    try:
        values = _load_fast(text, name, marks)
        if values is None:
            values = _load((_TaggedLoader if tagged else _Loader)(text), name, marks)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ProfileError(
            f"not valid YAML: {error.problem or error.context}",
            hint="check indentation, colons and quotes there",
            where=f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name,
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ProfileError(
            f"not valid YAML: {error}", hint="it must be a plain UTF-8 YAML document", where=name
        ) from error
    return YamlSource(name=name, text=text, values=values, marks=marks)


def _load_fast(text: str, name: str, marks: dict[_Path, tuple[int, int]]) -> object | None:
    """Return the same as :func:`_load`, or None where that has to read it, or say what is wrong."""
    if not yaml.__with_libyaml__ or _READ_OTHERWISE.search(text):
        return None
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_FastLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MOST_FAST_DEPTH:
                return None
        values = _load(_FastLoader(text), name, marks)
    except (yaml.YAMLError, ValueError):
        values = None
    if values is None:  # of an empty document, too: libyaml has its end a line further down
        marks.clear()
    return values


def _load(loader: _Loader | _FastLoader, name: str, marks: dict[_Path, tuple[int, int]]) -> object:
    """Return the document's values and fill in their positions; an empty one is an empty dict."""
    loader.name = name
    try:
        node = loader.get_single_node()
        if node is None:
            return {}
        _require_few(node, name, {})
        duplicates: list[tuple[int, int, str]] = []
        _walk(node, (), marks, duplicates)
        if duplicates:
            raise _join_problems(
                [
                    (line, column, f"{name}:{line}:{column}", f"duplicate key {key!r}", _KEEP_ONE)
                    for line, column, key in duplicates
                ]
            )
        values: object = loader.construct_document(node)
        return values
    finally:
        loader.dispose()


def _require_few(node: yaml.Node, name: str, counts: dict[int, int | None]) -> int:
    """Return how many values a node stands for, aliases expanded but each looked at once.

    Raises:
        ProfileError: There are too many, or the node contains itself.
    """
    if id(node) not in counts:
        counts[id(node)] = None  # not known until all that it holds is
        items: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            items = [item for pair in node.value for item in pair]
        elif isinstance(node, yaml.SequenceNode):
            items = node.value
        counts[id(node)] = 1 + sum(_require_few(item, name, counts) for item in items)
    count = counts[id(node)]
    if count is None or count > _MAX_VALUES:
        what = "holds itself" if count is None else f"stands for more than {_MAX_VALUES} values"
        raise ProfileError(
            f"what begins here {what}",
            hint="write out what is meant instead of using aliases (&name, *name)",
            where=f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}",
        )
    return count


def _walk(
    node: yaml.Node,
    path: _Path,
    marks: dict[_Path, tuple[int, int]],
    duplicates: list[tuple[int, int, str]],
) -> None:
    marks.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key = str(key_node.value)
            place = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if (*path, key) in marks:
                duplicates.append((*place, key))
            marks[*path, key] = place
            _walk(value_node, (*path, key), marks, duplicates)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*path, index), marks, duplicates)


_Problem = tuple[int, int, str, str, str]  # line, column, where, problem, hint


def _join_problems(problems: list[_Problem]) -> EdgepackError:
    problems = sorted(set(problems))
    _, _, where, problem, hint = problems[0]
    rest = "".join(
        f"\nerror: {other_where}: {other}\n  hint: {other_hint}"
        for _, _, other_where, other, other_hint in problems[1:]
    )
    return ProfileError(problem, hint=hint + rest, where=where)
