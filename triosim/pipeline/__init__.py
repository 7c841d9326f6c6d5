"""The steps of a simulation: read, price, plan, run, collect."""
