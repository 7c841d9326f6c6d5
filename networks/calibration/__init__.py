"""What collectives take on real machines: fitted to measured times, kept with a topology, judged on other rows."""
