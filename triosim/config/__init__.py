"""The options of a run: declared once, and one frozen object that holds what a user chose.

Options that belong to no part are the fields of ``RunConfig``; a parallelism, a network or any other part declares those that
it reads in its class attribute ``options``. The signature of ``triosim.simulate``, the command line, refusals, notes and the
tables of docs/command-line.md are made from these declarations.
"""

from triosim.config.option import Kind, Option
from triosim.config.parts import flags, parsed, readers, takes_text
from triosim.config.run_config import COMMON, CONDITIONS, DESCRIBED, RunConfig, refuse_without_effect, unread

__all__ = [
    "COMMON",
    "CONDITIONS",
    "DESCRIBED",
    "Kind",
    "Option",
    "RunConfig",
    "flags",
    "parsed",
    "readers",
    "refuse_without_effect",
    "takes_text",
    "unread",
]
