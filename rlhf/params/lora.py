"""Low-rank adapters."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MinLen

from rlhf.params.ranges import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraParams:
    """Low-rank adapters (Hu et al. 2021); they have no dropout, as nothing here has."""

    rank: Count = 8
    """Inner width of an adapter: it adds a matrix of at most this rank to each weight matrix."""
    alpha: Count = 16
    """The added matrix is scaled by alpha / rank."""
    targets: Annotated[list[str], MinLen(1)] | None = None
    """Names of the layers that get one, such as [q_proj, v_proj]; null means every linear layer
    but the head and the routers of experts. A head that shares its weight with the embedding
    cannot have one."""
