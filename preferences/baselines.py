"""What a reward model has to beat on a data set: "the longer answer wins", and a bag of words.

The bag of words is a Bradley-Terry model without a network: the difference of the answers' word
counts, weighed by logistic regression with an L2 penalty, fitted on the train side and measured on
held-out prompts.
"""

import re
from collections.abc import Sequence
from typing import cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array

from preferences.records import Preference
from preferences.statistics import Share, share

BUCKETS = 1 << 15
"""Words share weights by hash."""
PENALTY = 10.0
"""Half the squared weights times this is added to the sum of the losses."""
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
    values: list[float] = []
    columns: list[int] = []
    starts = [0]
    for row in rows:
        for answer, sign in ((row.chosen, 1.0), (row.rejected, -1.0)):
            words = [crc32(word.encode()) % BUCKETS for word in _WORD.findall(answer.lower())]
            buckets, counts = np.unique(np.array(words, dtype=np.int64), return_counts=True)
            columns.extend(buckets.tolist())
            values.extend((sign * np.log1p(counts)).tolist())
        starts.append(len(values))
    return csr_array((values, columns, starts), shape=(len(rows), BUCKETS))


def _fitted(differences: csr_array) -> NDArray[np.float64]:
    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        margins = differences @ weights
        wrong = 1 / (1 + np.exp(np.clip(margins, -500, 500)))
        total = np.logaddexp(0, -margins).sum() + PENALTY / 2 * weights @ weights
        return float(total), PENALTY * weights - differences.T @ wrong

    start = np.zeros(BUCKETS)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return cast(NDArray[np.float64], found.x)
