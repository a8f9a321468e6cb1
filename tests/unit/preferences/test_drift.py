import numpy as np
import pytest

from preferences.drift import ks_distance, share_distance
from preferences.measures import PromptWords


def test_the_distance_of_two_samples_by_hand():
    # At 2 the distribution functions are 2/4 and 0: one half is the largest difference.
    found = ks_distance(np.array([1.0, 2, 3, 4]), np.array([3.0, 4, 3, 4]))
    assert found is not None
    assert found.value == 0.5
    # Kolmogorov's 95 % point for 4 and 4 is 1.358 * sqrt(1/2) = 0.96.
    assert found.low == 0.0


def test_samples_alike_have_no_distance_beyond_chance_and_others_do():
    generator = np.random.default_rng(3)
    low = []
    for _ in range(200):
        found = ks_distance(generator.normal(size=300), generator.normal(size=500))
        assert found is not None
        low.append(found.low > 0)
    # 5 % by construction; three standard deviations of 200 draws are 4.6 %.
    assert np.mean(low) < 0.1
    moved = ks_distance(generator.normal(1, size=300), generator.normal(size=500))
    assert moved is not None
    # Two normals one deviation apart are 2 Phi(1/2) - 1 = 0.383 apart.
    assert moved.value == pytest.approx(0.383, abs=0.1)
    assert moved.low > 0.2


def test_a_share_that_changed_is_distinguished_from_chance():
    same = share_distance(np.array([50, 30]), 100, np.array([500, 320]), 1000)
    other = share_distance(np.array([50, 90]), 100, np.array([500, 320]), 1000)
    assert same is not None
    assert other is not None
    assert (same.value, same.low) == (pytest.approx(0.02), 0.0)
    assert other.value == pytest.approx(0.58)
    # Pooled share 410/1100, standard error 0.0507, four of them 0.203.
    assert other.low == pytest.approx(0.58 - 0.203, abs=0.001)


def test_nothing_to_compare_with_is_no_distance():
    assert ks_distance(np.array([1.0]), np.array([])) is None
    assert share_distance(np.array([1]), 1, np.array([0]), 0) is None


def test_words_of_prompts_without_spaces_are_their_letters():
    """Else each prompt is a word of its own, and prompts on one subject share none."""
    words = PromptWords()
    words.add("上海的天气", 1, fresh=False)
    words.add("上海的历史", 2, fresh=False)

    # Three letters are in both, and two more in each.
    assert sorted(words.counts[0][words.counts[0] > 0]) == [1, 1, 1, 1, 2, 2, 2]
