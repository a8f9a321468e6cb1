"""Kills, damages and starves the real stages, and counts what comes of it."""
