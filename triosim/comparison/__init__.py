"""Comparisons of several runs: strategies, faster parts (what-if), and pipeline schedules without communication."""
