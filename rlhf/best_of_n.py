"""Best-of-n: of n responses of one policy, the one that a reward model scores highest.

The baseline that needs no training beyond the reward model. With N >= n responses to a prompt, the
mean over all their subsets of size n is an unbiased estimate for n (Nakano et al. 2021, appendix
I), and one draw of N responses serves every n up to N.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter


def best_of_n(scores: Sequence[float], values: Sequence[float], *, n: int) -> float:
    """Mean value of the best-scored response of n, over all subsets of size n of the N given.

        E = Σ_k (C(N_k, n) - C(N_{k-1}, n)) / C(N, n) · v_k

    k runs over the different scores from the lowest on, N_k counts the responses with the k-th
    score or a lower one, v_k is the mean value of those with the k-th: of responses with equal
    scores, each is as likely to be taken.
    """
    total = len(scores)
    if len(values) != total:
        raise ValueError(f"expected a value for each of {total} scores, found {len(values)}")
    if not 1 <= n <= total:
        raise ValueError(f"n: expected a number from 1 to {total} responses, found {n}")
    parts: list[float] = []
    below = 0
    ranked = sorted(zip(scores, values, strict=True))
    for _, tied in groupby(ranked, key=itemgetter(0)):
        group = [value for _, value in tied]
        upto = below + len(group)
        share = (math.comb(upto, n) - math.comb(below, n)) / math.comb(total, n)
        parts.append(share * math.fsum(group) / len(group))
        below = upto
    return math.fsum(parts)


def kl_bound(n: int) -> float:
    """Most that best-of-n can differ from its policy: log n - (n - 1) / n, a KL in nats.

    Exact where no two responses have equal scores and none is likely; an upper bound everywhere
    (Beirami et al. 2024, theorem 1).
    """
    if n < 1:
        raise ValueError(f"n: expected 1 or more, found {n}")
    return math.log(n) - (n - 1) / n
