"""Preference data as others write them: one module per format, and one for kinds of files."""
