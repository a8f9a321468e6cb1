"""Judgments of pairs of responses: who gives them, the labelling page, its store, their quality.

Annotators are in `annotators` (rubric, files), `judges` (models) and `people` (the page). What
people see is in `page` (its HTML in `page/templates`), what they said in `store`, how well they
judge in `quality`, and other tools' formats of judgments in `formats`.
"""
