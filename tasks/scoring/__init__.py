"""What stages measure responses and reward models by."""
