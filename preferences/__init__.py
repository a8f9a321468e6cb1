"""The preference data set: strict reading, pairs from judgments, splits by prompt, validation.

The way of a row: `reader` and `formats` read it, `records` has its types, `judging` turns judgments
into preferences, `splitting` holds prompts out, `intake` and `measures` prepare the gate's table,
`rules` and `expectations` check it, `gate` decides, `report` writes the verdict.

A new rule of the gate is an entry of `RULES` in `rules`, a severity in `params`, and a column in
`measures` if it looks at something new. A new format: see `formats`.
"""
