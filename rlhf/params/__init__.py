"""What steers each algorithm: frozen dataclasses of the standard library, cheap to import."""
