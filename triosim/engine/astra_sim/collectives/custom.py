"""A collective that is a graph of its own: sends, receives and computations, issued as soon as they can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triosim.chakra.graph import RankGraph
from triosim.chakra.nodes import Node, NodeType
from triosim.engine.astra_sim.clock import Timers
from triosim.engine.astra_sim.collectives.algorithm import AlgorithmRun
from triosim.engine.astra_sim.durations import replayed
from triosim.engine.astra_sim.messages import Messages, Tags
from triosim.engine.astra_sim.readiness import Readiness


class CustomRun(AlgorithmRun):
    """One rank's graph; ranks in it are positions in the group. Its own sizes count, and nothing moves over the bus."""

    def __init__(self, graph: RankGraph, members: Sequence[int], rank: int, timers: Timers, messages: Messages) -> None:
        self._graph, self._members, self._rank = graph, members, rank
        self._timers, self._messages = timers, messages
        self._ready = Readiness(graph)
        self.final_size = 0

    def start(self) -> None:
        """Issue all nodes that wait for nothing."""
        for node in self._ready.freed():
            self._issue(node)

    def moved(self) -> None:
        """Do nothing: nothing moves over the bus."""

    def received(self) -> None:
        """Do nothing: the nodes of the graph await messages themselves."""

    def _issue(self, node: Node) -> None:
        graph, done = self._graph, (self._done, node)
        if node.type == NodeType.COMP:
            self._timers.after(replayed(node), *done)
        elif node.type == NodeType.COMM_SEND:
            to = self._members[graph.whole(node, "comm_dst")]
            self._messages.send(self._rank, to, graph.whole(node, "comm_size"), self._tag(node), done)
        elif node.type == NodeType.COMM_RECV:
            source = self._members[graph.whole(node, "comm_src")]
            self._messages.receive(source, self._rank, graph.whole(node, "comm_size"), self._tag(node), done)

    def _tag(self, node: Node) -> tuple[Tags, int]:
        return Tags.NODE, self._graph.whole(node, "comm_tag")

    def _done(self, node: Any) -> None:
        self._ready.finish(node)
        self.start()
        if self._ready.is_over:
            self.stage.finish()
