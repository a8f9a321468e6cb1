"""Whom `make chat` lets respond."""
