"""Third-party formats of preference data.

Formats of rows are in `pairs`, `votes` and `unpaired`, kinds of files in `files`, `tables` and
`cells`. A new format is a schema and a parser of its rows, which `reading` lists with the columns
that it is recognised by; `writing` and `omissions` if data can be converted to it.
"""
