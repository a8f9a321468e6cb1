"""Third-party formats of preference data: formats of rows, and kinds of files."""
