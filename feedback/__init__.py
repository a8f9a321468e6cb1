"""Judgments of pairs of answers: their form, who gives them, the labelling page and its quality."""
