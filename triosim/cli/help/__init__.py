"""How the help of commands is shown where typer's is not readable."""
