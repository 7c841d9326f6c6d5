"""The documentation: links lead to headings that there are, and every option of a command is written down."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest
import typer
from option_tables import PAGE, with_tables

from triosim.cli.main import Commands, app

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The headings of a page as mkdocs names them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_to_headings_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([\w.-]*\.md)?#([\w-]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)] == []


def test_the_tables_of_options_are_what_is_declared() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_tables(text) == text, "write them again: python -m tests.option_tables"


@pytest.mark.parametrize("command", ["simulate", "describe", "schedule"])
def test_every_option_is_in_the_page_of_its_command(command: str) -> None:
    page = (PAGES[0].parent / ("describe.md" if command == "describe" else "command-line.md")).read_text(
        encoding="utf-8"
    )
    found = cast(Commands, typer.main.get_command(app)).loaded(command)
    names = {option for parameter in found.params for option in parameter.opts if option.startswith("--")}
    assert [
        name for name in sorted(names - {"--help", "--quiet"}) if f"{name}`" not in page and f"{name} " not in page
    ] == []


def test_the_architecture_names_files_and_what_is_in_them() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_/]+(?:\.py)?/?)(?::([A-Za-z_]+))?`", text)
    places = [(path, name) for path, name in named if "/" in path]
    assert len(places) > 30
    for path, name in places:
        assert (ROOT / path).exists(), path
        if name:
            assert re.search(rf"^(?:def|class) {name}\b|import .*\b{name}\b", (ROOT / path).read_text(), re.M), path
