"""Backends: what each execution provider takes. One module each, in one dict.

A backend module has these names: ``NAME``, ``PROVIDERS`` (the execution providers it may list),
``RECIPES`` (what it can run) and ``check(model: Path) -> list[Finding]``, which loads heavy
libraries and therefore runs in a worker process.
"""

from types import ModuleType

from edgepack.backends import cpu

BACKENDS: dict[str, ModuleType] = {cpu.NAME: cpu}
