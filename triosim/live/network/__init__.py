"""The networks of a live run: folded ones, what scripts send that was not known, and the network as one step used it."""
