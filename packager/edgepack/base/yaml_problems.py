"""Explains pydantic's findings about a document in the words of its own keys.

pydantic says how a value misses every member of a union; a reader needs to know what is wrong with
the member that was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from edgepack.errors import suggest_nearest

_Path = tuple[str | int, ...]
_MAX_SHOWN = 80
_KEY = "[key]"
"""pydantic's last part of a location when the key itself is wrong."""
_NO_MEMBER = "no_member"
"""Our own type of error: the value fits no member of a union."""
_HINTS = {
    "string_type": "give text; put it in quotes if it looks like something else",
    "int_type": "give a whole number",
    "float_type": "give a number",
    "bool_type": "give true or false",
    "list_type": "give a list: [a, b]",
    "dict_type": "give keys with values: {a: b}",
}
_WORDS: dict[object, str] = {float: "a number", int: "a whole number", str: "text"}


def explain(
    model: type[BaseModel], values: object, error: ValidationError
) -> Iterator[tuple[_Path, str, str]]:
    """Yield for each problem its path of keys and indices, its text, and a hint."""
    for detail in _keep_relevant(model, values, error.errors()):
        place = _find_place(model, detail["loc"])
        path = place.path
        if detail["type"] == "union_tag_invalid":
            path = (*path, _read_discriminator(detail))
        yield (path, *_explain(place, detail))


@dataclass(frozen=True)
class _Place:
    """The place of an error in the document and in the model, from pydantic's location."""

    path: _Path
    """Keys and indices, without the parts that name a member of a union."""
    kind: object
    """The annotation of that place."""
    owner: object
    """The model, list or dict that the last key belongs to."""
    others: tuple[object, ...]
    """All members of the union that the owner is one of."""
    unions: tuple[tuple[_Path, str], ...]
    """The location of each union on the way, and pydantic's name of the chosen member."""


def _find_place(model: type[BaseModel], loc: _Path) -> _Place:
    kind: object = model
    owner: object = None
    around: tuple[object, ...] = ()
    path: list[str | int] = []
    unions: list[tuple[_Path, str]] = []
    others: tuple[object, ...] = ()
    for index, part in enumerate(loc):
        members = _list_members(kind)
        if len(members) > 1:
            unions.append((loc[:index], str(part)))
            kind, around = _find_member(members, str(part)), members
        elif part != _KEY:
            owner, others, around = members[0], around or members, ()
            kind = _find_below(owner, part)
            path.append(part)
    return _Place(tuple(path), kind, owner, others, tuple(unions))


def _list_members(kind: object) -> tuple[object, ...]:
    """Return what a union is made of, without None; of another annotation, itself."""
    if get_origin(kind) is Annotated:
        return _list_members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not NoneType]
        return tuple(member for part in parts for member in _list_members(part))
    return (kind,)


def _find_member(members: tuple[object, ...], label: str) -> object:
    """Find a model by pydantic's name for it: ``X``, ``function-after[f(), X]``, or its tag."""
    words = re.findall(r"\w+", label)
    for model in filter(_is_model, members):
        tags = [
            value for f in model.model_fields.values() for value in _list_literals(f.annotation)
        ]
        if model.__name__ in words or label in tags:
            return model
    return None


def _find_below(owner: object, part: str | int) -> object:
    if _is_model(owner):
        fields = owner.model_fields.items()
        return next((f.annotation for name, f in fields if part in (name, f.alias)), None)
    return get_args(owner)[-1] if get_args(owner) else None


def _is_model(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _list_literals(kind: object) -> list[object]:
    literals = [member for member in _list_members(kind) if get_origin(member) is Literal]
    return [value for literal in literals for value in get_args(literal)]


def _list_keys(kind: object, *, required: bool = False) -> list[str]:
    """Return the keys that a model knows, or only those that it must have."""
    fields = kind.model_fields.items() if _is_model(kind) else ()
    return [f.alias or name for name, f in fields if f.is_required() or not required]


def _keep_relevant(
    model: type[BaseModel], values: object, details: list[ErrorDetails]
) -> list[ErrorDetails]:
    """Keep only the errors of the member that was meant in each union, or one error if none was.

    pydantic reports how the value misses every member; most of that is noise to the reader.
    """
    places = [_find_place(model, detail["loc"]) for detail in details]
    wrong: dict[_Path, dict[str, set[str]]] = {}
    for place, detail in zip(places, details, strict=True):
        for union, label in place.unions:
            at_member = len(detail["loc"]) == len(union) + 1
            kinds = wrong.setdefault(union, {}).setdefault(label, set())
            kinds |= {detail["type"]} if at_member else set()
    meant = {
        union: _guess_meant_member(model, values, union, kinds) for union, kinds in wrong.items()
    }
    kept = []
    for place, detail in zip(places, details, strict=True):
        missed = [union for union, label in place.unions if meant[union] != label]
        if not missed:
            kept.append(detail)
        elif meant[missed[0]] is None:
            value = _find_value(values, _find_place(model, missed[0]).path)
            kept.append(ErrorDetails(type=_NO_MEMBER, loc=missed[0], msg="", input=value))
    return kept


def _guess_meant_member(
    model: type[BaseModel], values: object, union: _Path, wrong: dict[str, set[str]]
) -> str | None:
    """Return the member whose keys are most like the given ones; None if there is no such."""
    if len(wrong) == 1:
        return next(iter(wrong))  # its tag names it
    place = _find_place(model, union)
    value = _find_value(values, place.path)
    scores = {}
    for label, kinds in wrong.items():
        if not any(kind.endswith("_type") or kind == "literal_error" for kind in kinds):
            scores[label] = _compute_likeness(value, _find_member(_list_members(place.kind), label))
    best = max(scores, key=scores.__getitem__, default=None)
    return None if best is None or (isinstance(value, dict) and not scores[best][0]) else best


def _compute_likeness(value: object, member: object) -> tuple[int, int, int]:
    """Count the given keys that nearly match the member's, those that match, and -(missing)."""
    given = [str(key) for key in value] if isinstance(value, dict) else []
    known = _list_keys(member)
    near = sum(bool(get_close_matches(key, known, n=1)) for key in given)
    missing = set(_list_keys(member, required=True)) - set(given)
    return near, len(set(given) & set(known)), -len(missing)


def _find_value(values: Any, path: _Path) -> object:  # noqa: ANN401  (whatever a document holds)
    for part in path:
        if isinstance(values, dict) and part not in values:
            return None  # a key that is not text: pydantic's location has it as text
        values = values[part]
    return values


def _explain(place: _Place, detail: ErrorDetails) -> tuple[str, str]:
    """Return the problem and the hint, in the words of the file and not of pydantic."""
    key = place.path[-1] if place.path else ""
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _explain_extra(place, str(key))
    if kind == "missing":
        example = ": schema_version: 1" if key == "schema_version" else ""
        return f"the key {key!r} is missing", f"add it{example}"
    if kind == "invalid_key" or (kind == "string_type" and detail["loc"][-1] == _KEY):
        return f"the key {key!r} is not text", "put it in quotes"
    if kind.startswith("union_tag_"):
        return _explain_tag(place, detail)
    if kind == "value_error":
        problem, _, hint = detail["msg"].removeprefix("Value error, ").partition(" | ")
        return problem, hint or "check the values there"
    what = "a key here" if detail["loc"][-1:] == (_KEY,) else _format_value(detail["input"])
    return f"{_format_name(place.path)} cannot be {what}", _make_hint(place, detail)


def _explain_extra(place: _Place, key: str) -> tuple[str, str]:
    if any(key in _list_keys(other) for other in place.others):
        return f"the key {key!r} does not go with the others here", "remove it"
    return f"unknown key {key!r}", suggest_nearest(key, _list_keys(place.owner))


def _explain_tag(place: _Place, detail: ErrorDetails) -> tuple[str, str]:
    key = _read_discriminator(detail)
    tags = [str(v) for m in _list_members(place.kind) for v in _list_literals(_find_below(m, key))]
    if detail["type"] == "union_tag_not_found":
        return f"the key {key!r} is missing", f"add it, with one of: {', '.join(tags)}"
    tag = detail["ctx"]["tag"]
    return f"{key!r} cannot be {tag!r}", suggest_nearest(tag, tags)


def _read_discriminator(detail: ErrorDetails) -> str:
    return str(detail["ctx"]["discriminator"]).strip("'")


def _format_name(path: _Path) -> str:
    if not path:
        return "the document"
    if isinstance(path[-1], int) and len(path) > 1:
        return f"item {path[-1] + 1} of {path[-2]!r}"
    return repr(path[-1])


def _format_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _make_hint(place: _Place, detail: ErrorDetails) -> str:
    kind, received = detail["type"], detail["input"]
    if kind in (_NO_MEMBER, "literal_error"):
        if place.path[-1:] == ("schema_version",):
            versions = ", ".join(map(str, _list_literals(place.kind)))
            return f"this edgepack reads {versions}; a newer file needs a newer edgepack"
        expected = [word for member in _list_members(place.kind) for word in _list_expected(member)]
        return suggest_nearest(received if isinstance(received, str) else "", expected)
    if kind in ("model_type", "model_attributes_type"):
        keys = {key: None for member in _list_members(place.kind) for key in _list_keys(member)}
        return f"give keys with values: {', '.join(keys)}"
    message = re.sub(r"^\w+ should ", "it must ", detail["msg"])
    return _HINTS.get(kind, message.partition(" after validation")[0])


def _list_expected(member: object) -> list[str]:
    if _is_model(member):
        return [f"{{{', '.join(_list_keys(member, required=True))}}}"]
    return [str(value) for value in _list_literals(member)] or [_WORDS.get(member, "another value")]
