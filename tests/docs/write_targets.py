"""Write the README's table of targets from the profiles and their evidence.

Run it after changing a profile or adding evidence:
``.venv/bin/python -m tests.docs.write_targets``.
"""

from __future__ import annotations

from pathlib import Path

from edgepack.base.resources import find_targets_dir
from edgepack.project.grades import Evidence, find_best_evidence, read_evidence
from edgepack.project.profile import Profile, read_profile

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN = "<!-- targets: written by tests/docs/write_targets.py -->\n"
END = "<!-- end of targets -->\n"


def table() -> str:
    """Return the table as it is committed."""
    evidence = read_evidence()
    lines = ["| target | what it is | variants, best first | grade |", "|---|---|---|---|"]
    for path in sorted(find_targets_dir().glob("*.yaml")):
        profile = read_profile(path)
        variants = ", ".join(f"`{variant.id}`" for variant in profile.variants)
        grade = grade_cell(profile, find_best_evidence(profile, evidence))
        lines.append(f"| `{profile.id}` | {profile.title} | {variants} | {grade} |")
    return "\n".join(lines) + "\n"


def grade_cell(profile: Profile, seen: Evidence | None) -> str:
    """Return a grade, and for which variants on what."""
    if seen is None:
        return "rendered"
    ran = [variant.id for variant in seen.variants]
    which = "all variants" if ran == [v.id for v in profile.variants] else ", ".join(ran)
    said = ", ".join(filter(None, (which, seen.device, str(seen.date))))
    return f"**{seen.grade}**: {said}"


def with_table(text: str) -> str:
    """Return the README with a fresh table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main() -> None:
    """Write the table."""
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
