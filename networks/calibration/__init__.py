"""Calibration of collectives: times fitted to measurements on real machines, kept with a topology, and judged on other rows."""
