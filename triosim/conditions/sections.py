"""The conditions that a topology's file states."""

from __future__ import annotations

from triosim.conditions.conditions import Conditions
from triosim.conditions.parsing import KEYS, parse_conditions
from triosim.errors import TopologyError
from triosim.networks.topology import Section, Topology
from triosim.networks.topology.description import Location

#: The section of conditions that were not read from a file: it replaces those of all keys.
_REPLACED = "conditions"


def conditions_of(topology: Topology) -> Conditions:
    """Return the conditions that the file of a topology states. Raises ``TopologyError`` for a wrong section."""
    replaced = topology.sections.get(_REPLACED)
    if replaced is not None:
        found: Conditions = replaced.said
        return found
    sections = {key: section for key, section in topology.sections.items() if key in KEYS}

    def wrong(path: tuple[str | int, ...], what: str, fix: str | None) -> TopologyError:
        return TopologyError(what, where=sections[str(path[0])].where(path[1:]), fix=fix)

    return parse_conditions({key: section.said for key, section in sections.items()}, wrong, Conditions())


def with_conditions(topology: Topology, conditions: Conditions) -> Topology:
    """Return the same topology under other conditions."""
    return topology.with_sections({_REPLACED: Section(_REPLACED, conditions, Location(topology.name))})
