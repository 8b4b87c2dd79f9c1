"""Write the README's table of targets from the profiles and their evidence.

Run it after changing a profile or adding evidence:
``.venv/bin/python -m tests.docs.write_targets``.
"""

from __future__ import annotations

from pathlib import Path

from edgepack.base.resources import find_targets_dir
from edgepack.project.grades import Evidence, find_variant_evidence, read_evidence
from edgepack.project.profile import Profile, read_profile

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN = "<!-- targets: written by tests/docs/write_targets.py -->\n"
END = "<!-- end of targets -->\n"


def table() -> str:
    """Return the table as it is committed."""
    evidence = read_evidence()
    lines = ["| target | what it is | variants, best first | proven |", "|---|---|---|---|"]
    for path in sorted(find_targets_dir().glob("*.yaml")):
        profile = read_profile(path)
        variants = ", ".join(f"`{variant.id}`" for variant in profile.variants)
        proven = proven_cell(profile, evidence)
        lines.append(f"| `{profile.id}` | {profile.title} | {variants} | {proven} |")
    return "\n".join(lines) + "\n"


def proven_cell(profile: Profile, evidence: list[Evidence]) -> str:
    """Return the grades, each with its variants and on what they were seen, best first."""
    groups: dict[str, list[str]] = {}
    for variant in profile.variants:
        seen = find_variant_evidence(profile, variant.id, evidence)
        about = format_seen(seen) if seen else "rendered"
        groups.setdefault(about, []).append(f"`{variant.id}`")
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{about}: {', '.join(ids)}" for about, ids in groups.items())


def format_seen(seen: Evidence) -> str:
    """Return a grade, and what it rests on."""
    words = [f"**{seen.grade}**", seen.device, str(seen.date)]
    if seen.how == "compiler" and "onnxruntime" in seen.runtime:
        words.insert(2, f"onnxruntime {seen.runtime['onnxruntime']}")
    return ", ".join(words)


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
