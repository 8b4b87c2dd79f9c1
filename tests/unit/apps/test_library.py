"""The runtime library's package for npm."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from edgepack.apps.library import make_library
from edgepack.apps.render import render_library
from edgepack.project.profile import load_profile


@pytest.mark.parametrize(
    ("version", "npm"),
    [
        ("0.1.0", "0.1.0"),
        ("0.2.0rc1", "0.2.0+rc1"),
        ("1.2", "1.2.0"),
        ("0.2.0.dev3+g1a.dirty", "0.2.0+dev3.g1a.dirty"),
        ("0.2.0.post1", "0.2.0+post1"),
    ],
)
def test_package_json_when_the_version_is_pythons_has_one_that_npm_takes(version, npm):
    library = replace(make_library(load_profile("web")), version=version)
    files = {file.path: file.data.decode() for file in render_library("web", library)}
    assert json.loads(files["package.json"])["version"] == npm
    assert f"const VERSION = {json.dumps(version)};" in files["generated.js"]
