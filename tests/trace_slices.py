"""Slices of a Chrome trace as speedscope takes them, and whether they nest."""

from __future__ import annotations

from typing import Any


def assert_nested(events: list[dict[str, Any]]) -> None:
    """Assert that no slice of a track outlasts the one around it, in floats, counted from the track's first slice."""
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    assert tracks
    for slices in tracks.values():
        first = min(one["ts"] for one in slices)
        around: list[float] = []
        for one in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
            assert one["dur"] > 0
            begin = one["ts"] - first
            while around and around[-1] <= begin:
                around.pop()
            assert not around or begin + one["dur"] <= around[-1], one
            around.append(begin + one["dur"])
