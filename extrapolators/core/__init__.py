"""The foundations of all parallelisms: program, mesh, plan, training loop and hooks."""
