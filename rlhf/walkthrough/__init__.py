"""One real PPO step, explained in seven numbered steps with shapes, values and equations.

`models` says what it runs on, `step` makes the step, `lines` puts it into words.
"""
