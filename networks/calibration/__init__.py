"""Calibration of collectives: times fitted to measurements on real machines, kept with a topology, evaluated on other rows."""
