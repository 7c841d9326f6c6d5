"""The options that several commands under ``triosim calibrate`` share."""

from triosim.config import Option
from triosim.config.option import GENERAL

# fmt: off
OPERATOR = Option("operator", metavar="NAME", panel=GENERAL, help=
    "softmax or layer_norm, where a table's columns and name do not say.")
CACHE = Option("cache", "choice", choices=("warm", "cold"), metavar="warm|cold", panel=GENERAL, help=
    "Which rows to take of operators that were measured both ways. By default warm forward, cold otherwise.")
COLLECTIVE = Option("collective", metavar="NAME", panel=GENERAL, help=
    "Which collective DATA are about, where they do not say.")
# fmt: on
