"""Names that a project gives: its own, its version's, and those of the code in its apps."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from edgepack.base.schema import StrictModel
from edgepack.project.identifiers import find_taken_types, is_reserved_in_packages


def is_taken(name: str) -> bool:
    """Say whether a folder of edgepack's own on devices may have a name."""
    return re.fullmatch(r"lease|serve|stats|venv(-.*)?", name, re.IGNORECASE) is not None


def _check_folder(name: str) -> str:
    if is_taken(name):
        raise ValueError(f"{name!r} is a folder of edgepack's own on devices: choose another name")
    return name


def _check_package(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", name):
        raise ValueError(
            f"{name!r} is no package | lower-case words joined by dots, such as com.acme.detector"
        )
    if reserved := [word for word in name.split(".") if is_reserved_in_packages(word)]:
        raise ValueError(
            f"{name!r} holds {reserved[0]!r}, a word of Kotlin's or Java's | choose another word"
        )
    if (first := name.split(".", maxsplit=1)[0]) in ("java", "kotlin"):
        # The JVM's class loaders refuse the one, the Kotlin compiler the other.
        raise ValueError(
            f"{name!r} is a package of {first.capitalize()}'s own | begin with a name of yours"
        )
    if f"{name}.".startswith("ai.onnxruntime."):
        # One app has both; classes of one name would shadow each other, and shrinking keeps them.
        raise ValueError(f"{name!r} is a package of onnxruntime's own | begin with a name of yours")
    return name


def _check_type(name: str) -> str:
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise ValueError(f"{name!r} is no type's name | letters and digits, such as Detector")
    if name in find_taken_types():
        raise ValueError(f"{name!r} is a type that the code uses | call it {name}Model")
    return name


_NODE_MODULES = re.compile(
    "assert|async_hooks|buffer|child_process|cluster|console|constants|crypto|dgram"
    "|diagnostics_channel|dns|domain|events|fs|http|http2|https|inspector|module|net|os|path"
    "|perf_hooks|process|punycode|querystring|readline|repl|stream|string_decoder|sys|timers|tls"
    "|trace_events|tty|url|util|v8|vm|wasi|worker_threads|zlib"
)
"""What Node takes for a module of its own (``module.builtinModules`` of Node 20 without paths)."""
_NPM_NAME = re.compile(r"(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*")


def _find_npm_problem(name: str) -> str:
    """Return why npm has no package of a name; empty if it can have one.

    Source: npm's documentation of package.json, "name" (docs.npmjs.com, npm 11).
    """
    if len(name) > 214:
        return f"it has {len(name)} characters, and 214 are the most"
    if not _NPM_NAME.fullmatch(name):
        return "lower-case letters, digits, '-', '.' and '_', first a letter or digit"
    if _NODE_MODULES.fullmatch(name) or name in ("node_modules", "favicon.ico"):
        return "Node or npm has something of that name"
    return ""


def _check_npm(name: str) -> str:
    if problem := _find_npm_problem(name):
        raise ValueError(f"{name!r} is no npm package's name: {problem} | such as @acme/detector")
    return name


ProjectName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]+([._-][A-Za-z0-9]+)*$"), AfterValidator(_check_folder)
]
"""The name of the project's folder on devices."""
ProjectVersion = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+([._+-][A-Za-z0-9]+)*$")]


class AppNames(StrictModel):
    """What the code of bundles for phones and browsers is called."""

    package: Annotated[str, AfterValidator(_check_package)] | None = None
    """The Kotlin package, such as ``com.acme.detector``. Default: ``edgepack.`` and the name."""
    type: Annotated[str, AfterValidator(_check_type)] | None = None
    """The class that stands for the model, such as ``Detector``. Default: the project's name."""
    npm: Annotated[str, AfterValidator(_check_npm)] | None = None
    """The npm package, such as ``@acme/detector``. Default: ``edgepack-`` and the name."""
    runtime: Literal["vendored", "shared"] = "vendored"
    """Where the code is that all models have in common: in each bundle, or once for all bundles of
    an app, in a library beside them, so that several models share its types."""
