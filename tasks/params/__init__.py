"""`params.yaml`: loading it, checking it, documenting it."""
