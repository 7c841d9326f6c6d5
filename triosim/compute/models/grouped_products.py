"""How much longer products of groups of rows take than one product of all rows, of which the measured tables tell.

Libraries multiply group by group: Transformer Engine by cuBLAS on four streams, PyTorch by one CUTLASS kernel whose tiles each
load the weights of their own group. Published times of such kernels in half precision are 1.2 to 1.9 times those of one
product of all rows: 8 groups of 4,096 rows by 2,048 x 768 on an H100 run at 628 TFLOP/s and 16 of 2,048 at 554
(TransformerEngine, pull request 2045; 509 and 399 in release 2.2), 8 of 16,000 by 7,168 x 2,048 on a B200 at 753 (torchao,
prototype/moe_training), where the tables' products reach 776 and 1,378.

Where experts run in ``fused`` kernels (Transformer Engine's op fuser), which were written for them, they take what one product
takes.
"""

from __future__ import annotations

from triosim.operators.features import base_name
from triosim.operators.products import form_of
from triosim.trace import Operator

#: The factor, fitted to steps of mixtures of experts: ``python -m validation.steps.constant_fit experts grouped``.
SLOWDOWN = 1.5
#: ``attributes["kernel"]`` of products in kernels that were written for experts.
FUSED = "fused"


def is_grouped(operator: Operator) -> bool:
    """Whether an operator multiplies groups of rows, each by a matrix of its own, or is the gradient of one that does."""
    return form_of(base_name(operator.name)) == "grouped"


def slowdown(operator: Operator) -> float:
    """Return the factor of the time of a product of all rows; 1 for other operators."""
    return SLOWDOWN if is_grouped(operator) and operator.attributes.get("kernel") != FUSED else 1.0
