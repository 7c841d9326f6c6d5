"""The program: one GPU's step as data, which parallelisms transform before it becomes any rank's tasks.

A program has stages (one, until a pipeline divides it), a stage has blocks of its forward pass, its backward pass and its
optimizer, and a block has items: operators, symbolic collectives on an axis of the mesh, and transfers between stages.
"Symbolic" because a block is written once for all ranks: which ranks an axis joins is known when it is lowered.
"""

from triosim.extrapolators.core.program.block import Block as Block
from triosim.extrapolators.core.program.block import BlockItem as BlockItem
from triosim.extrapolators.core.program.instructions import Await as Await
from triosim.extrapolators.core.program.instructions import Communicate as Communicate
from triosim.extrapolators.core.program.instructions import ExchangeWithRank as ExchangeWithRank
from triosim.extrapolators.core.program.instructions import Instruction as Instruction
from triosim.extrapolators.core.program.instructions import ReceiveFromStage as ReceiveFromStage
from triosim.extrapolators.core.program.instructions import SendToStage as SendToStage
from triosim.extrapolators.core.program.instructions import TransferKey as TransferKey
from triosim.extrapolators.core.program.program import HooksFactory as HooksFactory
from triosim.extrapolators.core.program.program import Program as Program
from triosim.extrapolators.core.program.program import RankHooksFactory as RankHooksFactory
from triosim.extrapolators.core.program.stage import Gradient as Gradient
from triosim.extrapolators.core.program.stage import Stage as Stage
