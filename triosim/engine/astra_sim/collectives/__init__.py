"""ASTRA-sim's collectives, as each rank runs them: how they are cut, in which dimensions, and by which algorithm."""
