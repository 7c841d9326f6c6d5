"""The double binary tree: chunks go up and down two trees in turn, whole."""

from __future__ import annotations

from triosim.engine.astra_sim.bus import Way
from triosim.engine.astra_sim.collectives.algorithm import AlgorithmRun
from triosim.engine.astra_sim.collectives.lines import TreePlace


class TreeRun(AlgorithmRun):
    """One rank's part: up with the sum of its children's data and its own, then down with the result.

    A leaf moves its data over the bus, sends it up and awaits the result. The others await their children, reduce, send up,
    await the result, move it, send it down and are done at once.
    """

    def __init__(self, place: TreePlace, size: int) -> None:
        self._place = place
        self.final_size = self._size = size
        self._to_reduce = len(place.children)
        self._came = 0
        self._goes_up = True

    def start(self) -> None:
        """Await the children's data; a leaf moves its own."""
        for child in self._place.children:
            self.stage.receive(child, self._size)
        if not self._place.children:
            self.stage.move(self._size, Way.OUT, reduced=False, fast=False)

    def received(self) -> None:
        """Move what has come in, and reduce it; a leaf only moves it."""
        self._came += 1
        more_children = self._came < len(self._place.children)
        way = Way.IN if more_children or not self._place.children else Way.RETURNED
        self.stage.move(self._size, way, reduced=bool(self._place.children), fast=False)

    def moved(self) -> None:
        """Send up once all children's data are reduced; send down, or end, once the result is moved."""
        if self._to_reduce:
            self._to_reduce -= 1
        if self._to_reduce:
            return
        if self._goes_up and self._place.parent is not None:
            self._goes_up = False
            self.stage.send(self._place.parent, self._size)
            self.stage.receive(self._place.parent, self._size)
            return
        for child in self._place.children:
            self.stage.send(child, self._size)
        self.stage.finish()
