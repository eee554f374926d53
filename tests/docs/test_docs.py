"""The documentation is complete and true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hybrid.docs.generate import commands, pages

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted(pages()))
def test_the_generated_pages_are_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text() == pages()[path], "run: python -m hybrid.docs"


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_has_help_an_example_and_explained_options(
    name: str, command: object
) -> None:
    text = command.help or ""  # type: ignore[attr-defined]
    example = re.search(r"Example: (.+)", text)
    assert example, f"{name} has no example"
    assert name in example.group(1)
    for parameter in command.params:  # type: ignore[attr-defined]
        if parameter.name not in ("help", "install_completion", "show_completion"):
            assert getattr(parameter, "help", None), f"{name} {parameter.name} is not explained"


def test_every_command_of_the_readme_exists() -> None:
    known = {name for name, _ in commands()}
    shown = re.findall(r"^\$ (hybrid [a-z ]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert shown
    for line in shown:
        words = line.split()
        assert any(" ".join(words[:n]) in known for n in (2, 3)), line


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "hybrid" / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
