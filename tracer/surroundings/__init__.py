"""What a script finds around it besides the device: the files that it writes, and what it saves and loads."""
