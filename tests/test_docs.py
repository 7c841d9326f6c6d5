"""The documentation: a link to a heading of another page leads to one that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
