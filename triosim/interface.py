"""``triosim.simulate`` with every option of a run in its signature and its documentation.

To know the options of all parts takes importing them, for which the command line does not wait.
"""

from triosim import simulation
from triosim.config.signature import with_options

simulate = with_options(simulation.simulate)
