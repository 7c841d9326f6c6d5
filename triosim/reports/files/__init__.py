"""Results as files and pages: CSV, timeline, HTML, JSON."""
