"""Steps: proven file-to-file transforms, each a frozen dataclass that holds its settings."""

from edgepack.steps.base import Notes, Step, run_step, settings_of

__all__ = ["Notes", "Step", "run_step", "settings_of"]
