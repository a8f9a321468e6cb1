"""Names for the tensor shapes of this package.

The aliases are ordinary annotations. Under pytest each call of a module that imports them is
checked against them (`tests/shape_checks.py`); in production they cost nothing. Every mask is bool,
and True means a real token.
"""

from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

PromptIds = Int[Tensor, "batch prompt"]
"""Token ids of prompts, padded on the left."""
PromptMask = Bool[Tensor, "batch prompt"]
"""True at the real tokens of a prompt."""
ResponseIds = Int[Tensor, "batch response"]
"""Token ids of responses, padded on the right."""
ResponseMask = Bool[Tensor, "batch response"]
"""True at the real tokens of a response, its end token included."""
Draws = Float64[Tensor, "batch steps"]
"""Uniform numbers in [0, 1): the one that draws each token of each response."""
TokenIds = Int[Tensor, "batch sequence"]
"""Token ids of whole sequences (prompt and response)."""
AttentionMask = Bool[Tensor, "batch sequence"]
"""True at the real tokens of a whole sequence."""
PerToken = Float[Tensor, "batch response"]
"""One number for each response token; what stands behind the mask has no meaning."""
PerSequence = Float[Tensor, "batch"]
"""One number for each sequence."""
PerPrompt = Float[Tensor, "prompts samples"]
"""One number for each of the responses to each prompt."""
PerSequenceFlag = Bool[Tensor, "batch"]
"""One yes or no for each sequence."""
HiddenStates = Float[Tensor, "batch response hidden"]
"""What a head reads: position t predicts response token t."""
Logits = Float[Tensor, "batch response vocab"]
"""Unnormalised log-probabilities: position t predicts response token t."""
Scalar = Float[Tensor, ""]
"""A single number."""
Values = Float[Tensor, "*shape"]
"""Numbers of any shape, to go with a `Mask` of the same one."""
Mask = Bool[Tensor, "*shape"]
"""True at the numbers that count."""
RowIndex = Int[Tensor, "batch"]
"""One position for each sequence, from 0."""
SequenceVisible = Bool[Tensor, "batch 1 sequence sequence"]
"""For each token of a sequence, which tokens (last axis) it sees, whatever the head."""
PairVisible = Bool[Tensor, "rows sequence sequence"]
"""For each token of a row that holds a pair or several, which tokens (last axis) it sees."""
PairEnds = Int[Tensor, "pairs 2"]
"""Where the chosen and the rejected side of each pair end, from 0 at the start of the first row."""
PairScores = Float[Tensor, "pairs 2"]
"""A score for the chosen and one for the rejected side of each pair."""
Rows = Int[Tensor, "rows"] | Bool[Tensor, "rows"]
"""A choice of rows: their indices, or True at each chosen one."""
SequenceLogits = Float[Tensor, "batch sequence vocab"]
"""Unnormalised log-probabilities: position t predicts label t of a whole sequence."""
