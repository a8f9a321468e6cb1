"""The ranges that parameters may take, as annotations: read by people, checked by the loader."""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Count = Annotated[int, Ge(1)]
"""A whole number, at least 1."""
CountOrZero = Annotated[int, Ge(0)]
"""A whole number, at least 0."""
Positive = Annotated[float, Gt(0)]
"""A number above 0."""
NonNegative = Annotated[float, Ge(0)]
"""A number, at least 0."""
Fraction = Annotated[float, Ge(0), Le(1)]
"""A number from 0 to 1."""
OpenFraction = Annotated[float, Ge(0), Lt(1)]
"""A number from 0 up to, but not including, 1."""
BelowHalf = Annotated[float, Ge(0), Lt(0.5)]
"""A number from 0 up to, but not including, a half."""
