"""Files that users give: read whole or in part, compressed or not, from a disk or a pipe, and within limits."""
