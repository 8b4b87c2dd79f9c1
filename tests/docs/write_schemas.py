"""Write the JSON Schemas of the files that edgepack reads and writes into docs/schemas.

Run it after changing one of the models: ``.venv/bin/python -m tests.docs.write_schemas``.
"""

from __future__ import annotations

import json
from pathlib import Path

from edgepack.backends.registry import BACKENDS
from edgepack.bundle.manifest import Manifest
from edgepack.devices.inventory import Inventory
from edgepack.project.pipeline import PipelineProject
from edgepack.project.profile import Profile
from edgepack.project.project import Project
from edgepack.records.optimizing import OptimizeReport
from edgepack.records.run import RunReport
from edgepack.records.tuning import TuneReport
from pydantic import BaseModel

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "schemas"
MODELS: dict[str, type[BaseModel]] = {
    "project": Project,
    "pipeline": PipelineProject,
    "profile": Profile,
    "inventory": Inventory,
    "manifest": Manifest,
    "report": RunReport,
    "tuning": TuneReport,
    "optimizing": OptimizeReport,
}


def schema_text(name: str) -> str:
    """Return one schema as it is committed."""
    schema = MODELS[name].model_json_schema()
    # Which backends there are is checked where targets are resolved, not by the model.
    for kind in ("Variant", "VariantChange"):
        if kind in schema["$defs"]:
            schema["$defs"][kind]["properties"]["backend"]["enum"] = sorted(BACKENDS)
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def main() -> None:
    """Write all schemas."""
    for name in MODELS:
        (FOLDER / f"{name}.schema.json").write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
