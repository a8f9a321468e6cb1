"""What goes to MLflow: written locally first, sent beside the work."""
