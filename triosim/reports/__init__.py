"""How a result is shown and written: terminal tables, CSV, timeline, pictures, HTML."""
