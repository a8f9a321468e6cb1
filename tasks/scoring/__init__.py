"""How stages score responses and reward models."""
