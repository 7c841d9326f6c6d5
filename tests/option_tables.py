"""The tables of options in docs/command-line.md: ``python -m tests.option_tables`` writes them again."""

from __future__ import annotations

from pathlib import Path

from triosim.cli.simulate import OPTIONS
from triosim.config.tables import option_tables

PAGE = Path(__file__).parents[1] / "docs" / "command-line.md"
BEGIN, END = "<!-- options: begin (python -m tests.option_tables) -->\n\n", "\n<!-- options: end -->"


def with_tables(text: str) -> str:
    """The page with the tables as the declarations have them."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{option_tables(OPTIONS)}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
