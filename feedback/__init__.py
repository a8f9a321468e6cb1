"""Judgments of pairs of responses: annotators, the labelling page, its store and its quality."""
