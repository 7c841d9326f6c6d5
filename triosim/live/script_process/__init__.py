"""The process of a running rank: runs the script on a fake GPU, tells the simulation what it launches, and asks for times."""
