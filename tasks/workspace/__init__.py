"""The repository as DVC and git have it, and who works in it."""
