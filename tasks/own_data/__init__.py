"""Your own files, rows and models: following them, reading them, checking them early."""
