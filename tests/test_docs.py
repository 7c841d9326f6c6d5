"""The documentation: links lead to headings that there are, and every option of a command is written down."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from triosim.cli import app

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
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


@pytest.mark.parametrize("command", ["simulate", "describe", "schedule"])
def test_every_option_is_in_the_page_of_its_command(command: str) -> None:
    page = (PAGES[0].parent / ("describe.md" if command == "describe" else "command-line.md")).read_text(
        encoding="utf-8"
    )
    found = cast(Any, typer.main.get_command(app)).commands[command]
    names = {option for parameter in found.params for option in parameter.opts if option.startswith("--")}
    assert [
        name for name in sorted(names - {"--help", "--quiet"}) if f"{name}`" not in page and f"{name} " not in page
    ] == []
