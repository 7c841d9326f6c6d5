"""What all parallelisms are made with: program, mesh, plan, training loop and hooks."""
