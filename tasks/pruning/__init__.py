"""What takes disk space and no kept run needs."""
