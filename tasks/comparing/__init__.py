"""Two runs side by side, whether commits, variants or runs in MLflow."""
