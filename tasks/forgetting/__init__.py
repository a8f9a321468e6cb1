"""Withdrawing an annotator, a source, a prompt or a person's data: what holds it, and what goes."""
