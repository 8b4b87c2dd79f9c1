"""The results of trying a bundle, as one HTML page that needs no network, or as PNG files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.files import ELSEWHERE, SHARED, write_atomically, writing
from edgepack.base.resources import find_templates_dir
from edgepack.base.terminal import make_printable
from edgepack.trying.drawing import encode_data_url, encode_png
from edgepack.trying.trial import Drawn, InputTrial, Trial

if TYPE_CHECKING:
    import jinja2


def write_page(trial: Trial, path: Path) -> None:
    """Write the page; an existing one is replaced whole or not at all.

    Raises:
        ToolError: The file cannot be written.
    """
    text = render_page(trial)
    with writing("the page", path, ELSEWHERE):
        write_atomically(path, text, mode=SHARED)


def render_page(trial: Trial) -> str:
    """Return the page. Texts of users and models are escaped, and no script is in it."""
    return _make_environment().get_template("page.html.j2").render(trial=trial)


def write_pictures(trial: Trial, folder: Path) -> list[Path]:
    """Write each picture as ``INPUT[.OUTPUT].VARIANT.png``, and return the paths.

    Raises:
        ToolError: A file cannot be written.
    """
    written = []
    for name, drawn in _name_pictures(trial):
        path = folder / name
        with writing("the picture", path, ELSEWHERE):
            write_atomically(path, encode_png(drawn.draw()), mode=SHARED)
        written.append(path)
    return written


def _name_pictures(trial: Trial) -> Iterator[tuple[str, Drawn]]:
    stems = [_make_file_name(Path(tried.name).stem) for tried in trial.inputs]
    for number, tried in enumerate(trial.inputs):
        stem = stems[number]
        if stems.count(stem) > 1:
            stem = f"{stem}-{number + 1}"
        several = len({drawn.output for drawn in tried.drawn}) > 1
        for drawn in tried.drawn:
            output = f".{_make_file_name(drawn.output)}" if several else ""
            yield f"{stem}{output}.{drawn.variant}.png", drawn


def _make_file_name(text: str) -> str:
    return re.sub(r"[^\w-]+", "-", text)[:80] or "input"


def _make_environment() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        # The report's style is the page's, too.
        loader=jinja2.FileSystemLoader(
            [find_templates_dir() / "trial", find_templates_dir() / "report"]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            make_printable(value)
            if isinstance(value, str) and not isinstance(value, Markup)
            else value
        ),
    )
    environment.filters["data"] = encode_data_url
    environment.filters["of_variant"] = _filter_by_variant
    return environment


def _filter_by_variant(tried: InputTrial, variant: str) -> list[Drawn]:
    return [drawn for drawn in tried.drawn if drawn.variant == variant]
