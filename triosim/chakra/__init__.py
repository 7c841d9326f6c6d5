"""Chakra execution traces, the graphs that simulators exchange, and the files of ASTRA-sim beside them: read, and written.

``read_workload`` reads the graphs of all ranks. ``read_network``, ``read_system``, ``read_remote_memory`` and ``read_groups``
read ASTRA-sim's other inputs.
"""
