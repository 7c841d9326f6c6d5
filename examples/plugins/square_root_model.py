"""A compute model that knows one thing: twice the bytes take the square root of two as long.

    triosim simulate TRACE --parallel dp --gpus 4 --batch-size 64 \\
        --compute-model examples/plugins/square_root_model.py:SquareRoot

An operator in the shapes that were traced keeps its measured time; for others it is scaled by the ratio of two estimates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triosim import Operator
from triosim.compute import ComputeModel, Estimates


class SquareRoot(ComputeModel):
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        nbytes = [sum(tensor.nbytes for tensor in (*op.inputs, *op.outputs)) for op in operators]
        seconds = 1e-9 * np.sqrt(np.array(nbytes, dtype=np.float64))
        return Estimates(seconds, np.full(len(operators), np.nan), ["square"] * len(operators))
