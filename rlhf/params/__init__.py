"""The settings of each algorithm: frozen dataclasses of the standard library, cheap to import."""
