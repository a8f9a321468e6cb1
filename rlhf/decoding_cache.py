"""A key-value cache with room for the tokens to come: a step writes, and copies nothing.

The cache of `transformers` makes a longer tensor at every step, in every layer: a fifth of the time
of decoding with a small model.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from rlhf.compute import plain_writes


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """The keys and values of one layer, views of tensors that are longer than they are."""

    def __init__(self, length: int):
        """Reserve so many positions."""
        super().__init__()
        self._length = length
        self._stores: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new positions; all keys and values so far.

        Raises:
            ValueError: there is no room for them.
        """
        del args, kwargs
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        if self._stores is None:
            self.lazy_initialization(key_states, value_states)
            self._stores = self._reserve(key_states), self._reserve(value_states)
        if after > self._length:
            raise ValueError(f"expected at most {self._length} tokens, found {after}")
        for store, new in zip(self._stores, (key_states, value_states), strict=True):
            store[:, :, before:after] = new
        self._show(self._first_seen(before), after)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows only, in this order; a CPU copies those alone that change their place."""
        if self._stores is not None:
            length = self.get_seq_length()
            first = length - self.keys.shape[2]
            keys, values = (_rows(store, indices, length) for store in self._stores)
            self._stores = keys, values
            self._show(first, length)

    def fixed(self, place: Tensor) -> "FixedLayer":
        """The layer as one that writes at a place of the device's; this one is not used again."""
        assert self._stores is not None
        for store in self._stores:
            # Nobody sees what lies there, but nothing times NaN is NaN.
            store[:, :, self.get_seq_length() :] = 0
        return FixedLayer(*self._stores, place)

    def _reserve(self, states: Tensor) -> Tensor:
        rows, heads, _, size = states.shape
        kind = states.device.type
        # Rotated keys are float32; attention would cast all of them again at every step.
        used = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
        return states.new_empty(rows, heads, self._length, size, dtype=used)

    def _first_seen(self, position: int) -> int:
        """The first position that a query at this one sees."""
        del position
        return 0

    def _show(self, first: int, length: int) -> None:
        assert self._stores is not None
        self.keys, self.values = (store[:, :, first:length] for store in self._stores)


class RoomyWindowLayer(RoomyLayer):
    """The same of a layer whose queries look back so far only; what is behind stays, unread.

    Windows of real models are about as long as a prompt with its response, or longer.
    """

    is_sliding = True

    def __init__(self, length: int, window: int):
        """Reserve so many positions; a query sees `window` of them, its own among these."""
        super().__init__(length)
        self.sliding_window = window
        self._written = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new positions; the keys and values that any of their queries sees.

        Raises:
            ValueError: there is no room for them.
        """
        found = super().update(key_states, value_states, *args, **kwargs)
        self._written += key_states.shape[-2]
        return found

    def get_seq_length(self) -> int:
        """Positions so far."""
        return self._written

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many positions so many new queries see, and the first of these."""
        first = self._first_seen(self._written)
        return self._written + query_length - first, first

    def _first_seen(self, position: int) -> int:
        return max(0, position - self.sliding_window + 1)


class FixedLayer(DynamicLayer):  # type: ignore[misc]
    """One layer whose tensors keep their place in memory, and where a step does the same as any.

    So it can be recorded (`rlhf.decoding_graph`): where to write is a number on the device.
    """

    def __init__(self, keys: Tensor, values: Tensor, place: Tensor):
        """Keys and values (rows, heads, positions, size), and the position of the next, (1,)."""
        super().__init__()
        self.lazy_initialization(keys, values)
        self._stores, self._place = (keys, values), place
        self.shown = keys.shape[2]
        """So many positions are read, from the first; what lies behind the place is for a mask."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one position; the keys and values that are shown."""
        del args, kwargs
        with plain_writes():
            for store, new in zip(self._stores, (key_states, value_states), strict=True):
                store.index_copy_(2, self._place, new.to(store.dtype))
        keys, values = (store[:, :, : self.shown] for store in self._stores)
        return keys, values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows only, in other memory."""
        keys, values = (store.index_select(0, indices) for store in self._stores)
        self._stores = keys, values


def decoding_cache(lm: PreTrainedModel, length: int) -> DynamicCache:
    """An empty cache for `length` tokens; layers of another kind stay the library's."""
    cache = DynamicCache(config=lm.config)
    cache.layers = [_roomy(layer, length) for layer in cache.layers]
    return cache


def _rows(store: Tensor, indices: Tensor, length: int) -> Tensor:
    """These rows of a layer's keys or values, of which so many positions are filled."""
    if store.device.type != "cpu":
        return store.index_select(0, indices)
    moved = torch.nonzero(indices != torch.arange(len(indices))).squeeze(1)
    filled = store[:, :, :length]
    filled.index_copy_(0, moved, filled.index_select(0, indices[moved]))
    return store[: len(indices)]


def _roomy(layer: Any, length: int) -> Any:
    if type(layer) is DynamicLayer:
        return RoomyLayer(length)
    if type(layer) is DynamicSlidingWindowLayer:
        return RoomyWindowLayer(length, layer.sliding_window)
    return layer
