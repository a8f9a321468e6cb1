"""Judgments in other tools' formats: TRL, CSV, Label Studio."""
