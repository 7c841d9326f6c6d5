"""ASTRA-sim's rules, to the nanosecond, so that its studies can be repeated: an engine of its own, chosen by name.

Everything else of triosim runs on ``triosim.engine``; nothing there depends on this room. The rules are those of ASTRA-sim at
518bd51 with its analytical networks (599a047) and its remote memory (641cce8). Times are whole nanoseconds, which it calls
cycles; events of one tick happen in the order in which they were put in.
"""
