"""Write docs/api.md: the signature and docstring of each name of ``edgepack.api``.

Run it after changing one of them: ``.venv/bin/python -m tests.docs.write_api``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from edgepack import api

from tests.docs.write_commands import FUNCTIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
ENDING = """What goes wrong is an [`EdgepackError`](#edgepackerror) with a `problem`, a `hint` and
the `exit_code` that [the commands](commands.md#exit-codes) end with.
"""
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def page_text() -> str:
    """Return the page as it is committed."""
    written = "<!-- Written by tests/docs/write_api.py from the code. -->"
    return "\n".join(["# edgepack.api\n", f"{written}\n", _introduction(), ENDING, *_sections()])


def _introduction() -> str:
    """Return the module's docstring, its examples as Python."""
    blocks = re.split(
        r"(?<=:):\n\n((?:    .*\n|\n)+)", f"{inspect.cleandoc(api.__doc__ or '')}\n\n"
    )
    made = []
    for number, block in enumerate(blocks):
        text = inspect.cleandoc(block)
        made.append(f"```python\n{text}\n```" if number % 2 else text)
    return _without_roles("\n\n".join(filter(None, made))) + "\n"


def _sections() -> Iterator[str]:
    commands = {function: name for name, function in FUNCTIONS.items()}
    kinds = {name: type(definition(name)) for name in dir(api)}
    others = [name for name in dir(api) if name not in commands]
    yield "## Functions of the commands\n"
    for name, command in commands.items():
        anchor = re.sub(r"[^a-z -]", "", f"edgepack {command}").replace(" ", "-")
        yield f"### {name}\n\n[`edgepack {command}`](commands.md#{anchor})\n\n{_block(name)}"
    for title, kind in (
        ("Other functions", ast.FunctionDef),
        ("Types", ast.ClassDef),
        ("Other names", ast.Assign | ast.AnnAssign),
    ):
        yield f"## {title}\n"
        yield from (
            f"### {name}\n\n{_block(name)}" for name in others if issubclass(kinds[name], kind)
        )


def definition(name: str) -> Definition:
    """Return the statement that defines a name."""
    module = _module(name)
    return _definitions(module.__name__)[name]


def _module(name: str) -> ModuleType:
    return import_module(api._read_homes()[name])


@cache
def _definitions(module: str) -> dict[str, Definition]:
    found = {}
    for node in ast.parse(inspect.getsource(import_module(module))).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


def _block(name: str) -> str:
    lines = inspect.getsource(_module(name)).splitlines()
    node = definition(name)
    shown = _class_lines(node, lines) if isinstance(node, ast.ClassDef) else _own(node, lines)
    text = re.sub(r"  # (noqa|type):? .*", "", "\n".join(shown))
    return f"```python\n{_without_roles(text)}\n```\n"


def _own(node: ast.stmt, lines: list[str]) -> list[str]:
    """Return a definition without its body, but for the docstring."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return lines[node.lineno - 1 : node.end_lineno]
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    last = node.body[0].end_lineno if ast.get_docstring(node) else node.body[0].lineno - 1
    return lines[first - 1 : last]


def _class_lines(node: ast.ClassDef, lines: list[str]) -> list[str]:
    """Return a class with its public fields and methods, each with its docstring."""
    shown = _own(node, lines)
    for number, member in enumerate(node.body):
        if isinstance(member, ast.FunctionDef) and (
            not member.name.startswith("_") or member.name == "__init__"
        ):
            shown += ["", *_own(member, lines)]
        elif isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_"):
            begin = number == 1 or not isinstance(node.body[number - 1], ast.AnnAssign | ast.Expr)
            shown += [*([""] if begin else []), *_own(member, lines)]
            after = node.body[number + 1] if number + 1 < len(node.body) else None
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                shown += _own(after, lines)
    return shown


def _without_roles(text: str) -> str:
    """Return a text with names instead of Sphinx's references."""
    return re.sub(r"(?<!`)``(?!`)", "`", re.sub(r":\w+:`~?[\w.]*?(\w+)`", r"`\1`", text))


def main() -> None:
    """Write the page."""
    PAGE.write_text(page_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
