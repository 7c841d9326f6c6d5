"""Spaces of configurations: how they are declared, their points, and the rules that valid points keep."""
