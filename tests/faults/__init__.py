"""What a user's machine and files may do to a run: full disks, killed processes, inputs that want to run code."""
