"""Formats and parses sets of ranks: ``0-3,8`` for 0, 1, 2, 3 and 8."""

from __future__ import annotations

from collections.abc import Iterable


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ``0-3,8`` for ranks in any order."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def parse_ranks(text: str) -> list[int]:
    """Return the ranks of ``0-3,8``. Raises ``ValueError`` for anything else."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranks.extend(range(int(first), int(last or first) + 1))
    return ranks
