"""Parameters laid over other parameters: a variant over params.yaml, params.yaml over defaults."""

from collections.abc import Mapping


def lay_over(base: Mapping[str, object], overlay: Mapping[str, object]) -> dict[str, object]:
    """`base` with the values of `overlay`; mappings are merged key by key, all else replaced."""
    merged = dict(base)
    for key, value in overlay.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = lay_over(below, value)
        else:
            merged[key] = value
    return merged
