"""The options that several commands under ``triosim calibrate`` share."""

from triosim.config import Option
from triosim.config.option import GENERAL

# fmt: off
OPERATOR = Option("operator", metavar="NAME", panel=GENERAL, help=
    "The operator of a table, if its columns and name do not say: softmax or layer_norm.")
CACHE = Option("cache", "choice", choices=("warm", "cold"), metavar="warm|cold", panel=GENERAL, help=
    "The rows to use of operators measured with warm and cold caches. By default warm forward, cold otherwise.")
COLLECTIVE = Option("collective", metavar="NAME", panel=GENERAL, help=
    "The collective that was measured, if DATA do not say.")
# fmt: on
