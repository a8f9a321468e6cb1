"""What a reward model has to beat on a data set: "the longer answer wins", and a bag of words.

The bag of words is a Bradley-Terry model without a network: the difference of the answers' word
counts, weighed by logistic regression with an L2 penalty, fitted on the train side and measured on
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

from preferences.records import Preference
from preferences.statistics import Share, share

BUCKETS = 1 << 15
"""Words share weights by hash."""
PENALTY = 10.0
"""Half the squared weights times this is added to the sum of the losses."""
_ROWS_AT_ONCE = 5000
_WORD = re.compile(r"\w+|[^\w\s]")


def bag_of_words(train: Sequence[Preference], heldout: Sequence[Preference]) -> Share | None:
    """How often the bag of words prefers the chosen answer of a held-out row; None without rows."""
    if not train or not heldout:
        return None
    weights = _fitted(_differences(train))
    scores = _differences(heldout) @ weights
    return share(int((scores > 0).sum()), len(heldout))


def _differences(rows: Sequence[Preference]) -> csr_array:
    """Counts of the chosen answer's words less those of the rejected one; log keeps length tame."""
    starts = range(0, len(rows), _ROWS_AT_ONCE)
    return vstack([_piece(rows[start : start + _ROWS_AT_ONCE]) for start in starts], format="csr")


def _piece(rows: Sequence[Preference]) -> csr_array:
    hashes, lengths = array("L"), array("L")
    for row in rows:
        for answer in (row.chosen, row.rejected):
            before = len(hashes)
            hashes.extend(map(crc32, map(str.encode, _WORD.findall(answer.lower()))))
            lengths.append(len(hashes) - before)
    answers = np.repeat(np.arange(2 * len(rows)), np.array(lengths, dtype=np.int64))
    words = answers * BUCKETS + np.array(hashes, dtype=np.int64) % BUCKETS
    places, counts = np.unique(words, return_counts=True)
    answers, columns = np.divmod(places, BUCKETS)
    values = np.where(answers % 2, -1.0, 1.0) * np.log1p(counts)
    return csr_array((values, (answers // 2, columns)), shape=(len(rows), BUCKETS))


def _fitted(differences: csr_array) -> NDArray[np.float64]:
    # Words that are not there keep a weight of 0, so only the others are fitted.
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
