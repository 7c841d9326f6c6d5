"""Programs that a script starts: they write where the script writes, into its overlay."""
