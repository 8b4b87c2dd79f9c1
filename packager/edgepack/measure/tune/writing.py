"""Writes the answer of tuning as a target's variants into the user's edgepack.yaml.

The user's text is never reformatted: lines are inserted, or a value is replaced. The result is
parsed again and must have the intended content; else nothing is written, and the user only gets the
lines to add.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml  # noqa: TID251  (where values stand, to change the text between)

from edgepack.backends.targets import load_target, read_project_targets
from edgepack.base.files import ELSEWHERE, SHARED, locked, write_atomically, writing
from edgepack.base.yaml_source import YamlSource, parse_yaml
from edgepack.bundle.manifest import Manifest, ManifestVariant
from edgepack.errors import EdgepackError, UsageError
from edgepack.measure.tune.space import find_tuned_options, set_options
from edgepack.project.loading import LoadedProject, read_project
from edgepack.project.profile import (
    Profile,
    Variant,
    VariantChange,
    change_profile,
    find_target_file,
)
from edgepack.project.project import Project
from edgepack.records.tuning import Settings

Values = dict[str, Any]
_ABOUT = re.compile(r"# (edgepack (?:tune|optimize) on [^\r\n]*)")
_Edit = tuple[int, int, str]
"""A replacement: start, end (exclusive) and the new text."""


class _UnsafeError(Exception):
    """Why a change cannot be made without formatting what the user wrote."""


@dataclass(frozen=True)
class Override:
    """The change to the project file that makes a build use the answer."""

    path: Path
    manifest: Manifest
    """Of the bundle that was tuned."""
    settings: Settings
    """The answer."""
    about: str
    """A line about where it comes from, for a comment."""
    lines: str
    """The target with its variants, as an item of ``targets``."""
    text: str
    """The whole changed file; unchanged if no change is needed or ``unsafe`` is set."""
    needed: bool
    """Whether the file has to change at all."""
    unsafe: str | None = None
    """Why the file is left to the user; None if it can be changed."""


def make_override(path: Path, manifest: Manifest, settings: Settings, about: str) -> Override:
    """Return how a project file has to change; nothing is written.

    Args:
        path: The project file.
        manifest: Of the bundle that was tuned.
        settings: The answer.
        about: A line about where it comes from, for a comment.

    Raises:
        UsageError: The file is of another project, or its target has no such variant.
        ProfileError: The file is wrong.
    """
    loaded = read_project(path)
    if loaded.project.name != manifest.name:
        raise UsageError(
            f"{path} belongs to the project {loaded.project.name!r},"
            f" the bundle to {manifest.name!r}",
            hint="name the bundle's project file: --project",
            where="--project",
        )
    with path.open(encoding="utf-8", newline="") as file:  # line ends stay as they are
        text = file.read()
    target = _Target(loaded, parse_yaml(text, name=str(path)), manifest, settings)
    variants = target.make_variants()
    lines = _format_item(target.name, variants, about, 2)
    if target.is_so(target.profile):
        return Override(path, manifest, settings, about, lines, text, needed=False)
    found = Override(path, manifest, settings, about, lines, text, needed=True)
    try:
        return replace(found, text=_change_text(text, target, variants, about))
    except (_UnsafeError, EdgepackError, yaml.YAMLError) as reason:
        return replace(found, unsafe=str(reason).partition("\n")[0])


def write_override(override: Override) -> None:
    """Write the project file anew, whole or not at all.

    The change is made again in the file as it is by then: another search may have written its own
    answer meanwhile.

    Raises:
        UsageError: It is left to the user.
        ProfileError: The file is wrong by now.
        ToolError: It cannot be written.
    """
    path = override.path
    with writing("the project file", path, ELSEWHERE), locked(path, mode=SHARED) as file:
        now = make_override(path, override.manifest, override.settings, override.about)
        if now.unsafe:
            raise UsageError(
                f"{path} is not changed: {now.unsafe}",
                hint=f"put this under 'targets' instead of what is there:\n{now.lines}",
                where=str(path),
            )
        if now.needed:
            write_atomically(file, now.text)


class _Target:
    """The target in the project file, as it is and as it has to be."""

    def __init__(
        self, loaded: LoadedProject, source: YamlSource, manifest: Manifest, settings: Settings
    ) -> None:
        self.loaded = loaded
        self.source = source
        self.manifest = manifest
        self.settings = settings
        self.shipped = load_target(manifest.target)
        self.index, self.name = self._find_entry()
        found = {profile.id: profile for profile in read_project_targets(loaded)}
        self.profile = found.get(manifest.target, self.shipped)

    def _find_entry(self) -> tuple[int | None, str]:
        """Return which item of ``targets`` it is, and by which name."""
        for index, entry in enumerate(self.loaded.project.targets):
            name = entry if isinstance(entry, str) else entry.id
            if name != "all" and find_target_file(name).stem == self.manifest.target:
                return index, name
        return None, self.manifest.target

    @property
    def listed(self) -> list[Values] | None:
        """The target's variants in the file, as they are written; None if it has none."""
        found: list[Values] | None = self.written.get("variants")
        return found

    @property
    def written(self) -> Values:
        """The target as it is written in the file; empty where it is only named."""
        entry = None if self.index is None else self.source.values["targets"][self.index]
        return entry if isinstance(entry, dict) else {}

    def make_variants(self) -> list[Values]:
        """Return the variants for the file, the answer's first."""
        found = {variant.id: self._make_values(variant) for variant in self.profile.variants}
        if self.listed is not None:
            ids = [variant.id for variant in self.profile.variants]
            found = dict(zip(ids, copy.deepcopy(self.listed), strict=True))
        ordered = self._order_ids(list(found))
        for name in ordered:
            if name not in found:
                found[name] = self._make_offered(self.manifest.find_variant(name))
        if self.settings.variant not in found:
            raise UsageError(
                f"the target {self.name!r} has no variant {self.settings.variant!r} any more",
                hint="build the bundle again, and tune that",
                where=self.source.name,
            )
        self._set_values(found[self.settings.variant])
        first = self.settings.variant
        return [found[first], *(found[name] for name in ordered if name != first)]

    def _order_ids(self, ids: list[str]) -> list[str]:
        """Return the project's variants, and before their successors those that a build added."""
        ordered = list(ids)
        if self.listed is not None:
            answer = self.settings.variant
            known = answer in ordered or answer not in {v.id for v in self.manifest.variants}
            return ordered if known else [answer, *ordered]
        entries = [entry.id for entry in self.manifest.variants]
        for place, name in reversed(list(enumerate(entries))):
            if name not in ordered:
                behind = [other for other in entries[place + 1 :] if other in ordered]
                ordered.insert(ordered.index(behind[0]) if behind else len(ordered), name)
        return ordered

    def _read_variant(self, values: Values) -> Variant:
        """Return the variant that values in the file stand for."""
        return change_profile(self.shipped, [VariantChange.model_validate(values)]).variants[0]

    def _make_values(self, variant: Variant) -> Values:
        """Return the shortest form of a variant of the profile."""
        brief = {"backend": variant.backend, "recipe": variant.recipe}
        if self._read_variant(brief) == variant:
            return brief
        whole = variant.model_dump(mode="json", exclude={"id", *brief})
        return {**brief, "id": variant.id, **{k: v for k, v in whole.items() if v is not None}}

    def _make_offered(self, entry: ManifestVariant) -> Values:
        """Return a variant that the build added to the profile's by itself."""
        brief: Values = {"backend": entry.backend, "recipe": entry.recipe}
        found = self._read_variant(brief)
        if found.dialect != entry.dialect and entry.dialect is not None:
            brief["dialect"] = entry.dialect.model_dump()
        if self._read_variant(brief).id != entry.id:
            brief["id"] = entry.id
        return brief

    def _set_values(self, values: Values) -> None:
        """Give a variant the answer's settings."""
        plain = {key: value for key, value in values.items() if key not in ("session", "providers")}
        bare = self._read_variant(plain)
        session = self.settings.session
        if "session" in values or bare.session != session:
            values["session"] = session.model_dump(exclude_defaults=True)
        entry = self.manifest.find_variant(self.settings.variant)
        now = self._read_variant(values)
        wanted = set_options(now.providers, find_tuned_options(entry, self.settings))
        if wanted != now.providers:
            values["providers"] = [each.model_dump(exclude_defaults=True) for each in wanted]

    def is_so(self, profile: Profile) -> bool:
        """Return whether a build with a profile tries the answer before all others."""
        first = profile.variants[0]
        entry = self.manifest.find_variant(self.settings.variant)
        return (
            first.id == self.settings.variant
            and first.session == self.settings.session
            and first.providers
            == set_options(first.providers, find_tuned_options(entry, self.settings))
        )


def _change_text(text: str, target: _Target, variants: list[Values], about: str) -> str:
    """Return the file's text with other variants, after checking its parsed content.

    Raises:
        _UnsafeError: It would have to be formatted anew.
        ProfileError: It would not be a project file.
    """
    edits = _make_edits(text, target, variants, about)
    if any("#" in text[start:end] for start, end, _ in edits):
        raise _UnsafeError("the lines that have to change have a comment")
    new, line_end = text, "\r\n" if "\r\n" in text else "\n"
    for start, end, replacement in sorted(edits, reverse=True):
        new = new[:start] + replacement.replace("\n", line_end) + new[end:]
    source = parse_yaml(new, name=target.source.name)
    wanted = copy.deepcopy(target.source.values)
    listed = wanted.setdefault("targets", []) or []
    wanted["targets"] = listed
    entry = {**target.written, "id": target.name, "variants": variants}
    if target.index is None:
        listed.append(entry)
    else:
        listed[target.index] = entry
    if source.values != wanted:
        raise _UnsafeError("'targets' is written in a way that takes no more lines")
    loaded = LoadedProject(source.parse(Project), target.loaded.folder, source)
    found = {profile.id: profile for profile in read_project_targets(loaded)}
    if not target.is_so(found[target.manifest.target]):
        raise _UnsafeError("its variants cannot be given these settings")
    return new


def _make_edits(text: str, target: _Target, variants: list[Values], about: str) -> list[_Edit]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        raise _UnsafeError("its keys are not on lines of their own")
    listed = _find_value(root, "targets")
    if listed is None:
        lines = f"targets:\n{_format_item(target.name, variants, about, 2)}"
        return [_insert_lines(text, len(text), lines)]
    if not isinstance(listed, yaml.SequenceNode):
        raise _UnsafeError("'targets' is no list")
    if target.index is None:
        return [_add_variant(text, listed, target.name, variants, about)]
    node = listed.value[target.index]
    if isinstance(node, yaml.MappingNode) and target.listed is None:
        return [_add_key(text, node, "variants", variants)]
    if target.listed is None:
        return _replace_values(text, listed, node, target.name, variants, about)
    return [
        *_retune_variant(text, target, node, target.listed[0], variants[0]),
        *_change_comment(text, node, about),
    ]


def _add_variant(
    text: str, listed: yaml.SequenceNode, name: str, variants: list[Values], about: str
) -> _Edit:
    if listed.flow_style:
        end = listed.end_mark.index - 1
        comma = ", " if listed.value else ""
        return end, end, comma + _format_flow({"id": name, "variants": variants})
    lines = _format_item(name, variants, about, listed.start_mark.column)
    return _insert_lines(text, _find_end(listed), lines)


def _replace_values(
    text: str,
    listed: yaml.SequenceNode,
    node: yaml.Node,
    name: str,
    variants: list[Values],
    about: str,
) -> list[_Edit]:
    start, end = node.start_mark.index, node.end_mark.index
    if listed.flow_style:
        return [(start, end, _format_flow({"id": name, "variants": variants}))]
    lines = _format_variants(variants, about, node.start_mark.column)
    return [(start, start, "id: "), _insert_lines(text, end, lines)]


def _retune_variant(
    text: str, target: _Target, node: yaml.Node, before: Values, after: Values
) -> list[_Edit]:
    """Change the settings of the first variant, which the file has already."""
    if target.profile.variants[0].id != target.settings.variant:
        raise _UnsafeError(f"{target.settings.variant} has to come before the other variants")
    listed = _find_value(node, "variants")
    item = listed.value[0] if isinstance(listed, yaml.SequenceNode) else None
    if not isinstance(item, yaml.MappingNode):
        raise _UnsafeError("the variants are written elsewhere")
    edits = []
    for key in ("session", "providers"):
        new, old = after.get(key), before.get(key)
        if new == old or new is None:
            continue
        value = _find_value(item, key)
        if value is None:
            edits.append(_add_key(text, item, key, new))
        elif value.end_mark.line == value.start_mark.line:
            edits.append((value.start_mark.index, value.end_mark.index, _format_flow(new)))
        else:
            raise _UnsafeError(f"{key!r} is written over several lines")
    return edits


def _change_comment(text: str, node: yaml.Node, about: str) -> list[_Edit]:
    """Update the comment that an earlier tuning wrote into a target."""
    found = _ABOUT.search(text, node.start_mark.index, node.end_mark.index)
    return [(*found.span(1), about)] if found else []


def _add_key(text: str, item: yaml.MappingNode, key: str, value: object) -> _Edit:
    if item.flow_style:
        end = item.end_mark.index - 1
        return end, end, f", {key}: {_format_flow(value)}"
    line = f"{' ' * item.start_mark.column}{key}: {_format_flow(value)}\n"
    return _insert_lines(text, _find_end(item), line)


def _find_value(node: yaml.Node, key: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == key:
                found: yaml.Node = value
                return found
    return None


def _find_end(node: yaml.Node) -> int:
    """Return where the last scalar in a node ends; a block itself ends behind comments."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        return _find_end(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return _find_end(node.value[-1])
    return int(node.end_mark.index)


def _insert_lines(text: str, index: int, lines: str) -> _Edit:
    """Return the edit that puts lines after the line of a position."""
    found = text.find("\n", index)
    end = len(text) if found < 0 else found + 1
    begin = "" if text[:end].endswith("\n") else "\n"
    return end, end, begin + lines


def _format_item(name: str, variants: Sequence[Values], about: str, column: int) -> str:
    """Return a target as an item of a block sequence."""
    return f"{' ' * column}- id: {name}\n{_format_variants(variants, about, column + 2)}"


def _format_variants(variants: Sequence[Values], about: str, column: int) -> str:
    indent = " " * column
    lines = [f"{indent}variants:", f"{indent}  # {about}"]
    lines += [f"{indent}  - {_format_flow(values)}" for values in variants]
    return "\n".join(lines) + "\n"


def _format_flow(value: object) -> str:
    """Return a value in YAML's flow style, on one line."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{_format_flow(k)}: {_format_flow(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_flow, value)) + "]"
    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z_][\w./-]*", value)
        as_is = plain and parse_yaml(f"- {value}", name="value").values == [value]
        return value if as_is else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)
