"""The flow-level network ``packet``: max-min fair rates of flows that share links."""
