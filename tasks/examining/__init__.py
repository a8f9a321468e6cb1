"""What `make doctor` looks at in a workspace."""
