"""The commands that show what there is: traces, topologies, GPUs, plug-ins, and the doubt about a result."""
