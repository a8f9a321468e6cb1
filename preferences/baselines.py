"""The baselines that a reward model has to beat: "the longer response wins", and a bag of words.

The bag of words is a Bradley-Terry model without a network: logistic regression with an L2 penalty
on the difference of the two responses' word counts, fitted on the training side and measured on
held-out prompts.
"""

import re
from array import array
from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array, vstack

from preferences.grouped_shares import grouped_share
from preferences.records import Preference
from preferences.statistics import Share

BUCKETS = 1 << 15
"""Words are hashed into this many weights."""
PENALTY = 10.0
"""Factor of half the squared norm of the weights, added to the sum of the losses."""
_ROWS_AT_ONCE = 5000
_WORD = re.compile(r"\w+|[^\w\s]")


def bag_of_words(train: Sequence[Preference], heldout: Sequence[Preference]) -> Share | None:
    """Accuracy of the bag of words on the held-out rows, equal scores half; None without rows."""
    if not train or not heldout:
        return None
    weights = _fitted(_differences(train))
    scores = _differences(heldout) @ weights
    hits = (scores > 0) + (scores == 0) / 2
    return grouped_share(hits, [row.prompt_id for row in heldout])


def _differences(rows: Sequence[Preference]) -> csr_array:
    """Log word counts of the chosen responses minus those of the rejected; logs damp length."""
    starts = range(0, len(rows), _ROWS_AT_ONCE)
    return vstack([_piece(rows[start : start + _ROWS_AT_ONCE]) for start in starts], format="csr")


def _piece(rows: Sequence[Preference]) -> csr_array:
    hashes, lengths = array("L"), array("L")
    for row in rows:
        for response in (row.chosen, row.rejected):
            before = len(hashes)
            hashes.extend(map(crc32, map(str.encode, _WORD.findall(response.lower()))))
            lengths.append(len(hashes) - before)
    responses = np.repeat(np.arange(2 * len(rows)), np.array(lengths, dtype=np.int64))
    words = responses * BUCKETS + np.array(hashes, dtype=np.int64) % BUCKETS
    places, counts = np.unique(words, return_counts=True)
    responses, columns = np.divmod(places, BUCKETS)
    values = np.where(responses % 2, -1.0, 1.0) * np.log1p(counts)
    return csr_array((values, (responses // 2, columns)), shape=(len(rows), BUCKETS))


def _fitted(differences: csr_array) -> NDArray[np.float64]:
    # Absent words keep a weight of 0, so only the others are fitted.
    used = np.unique(differences.indices)
    differences = differences[:, used]

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        margins = differences @ weights
        wrong = 1 / (1 + np.exp(np.clip(margins, -500, 500)))
        total = np.logaddexp(0, -margins).sum() + PENALTY / 2 * weights @ weights
        return float(total), PENALTY * weights - differences.T @ wrong

    start = np.zeros(len(used))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    weights = np.zeros(BUCKETS)
    weights[used] = found.x
    return weights
