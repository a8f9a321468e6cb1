from io import BytesIO

import numpy as np
import pytest

from preferences.minhash import (
    SignatureList,
    jaccard,
    near_duplicates,
    near_pairs,
    shingles,
    signature,
)

WORDS = ["the", "parcel", "left", "our", "house", "on", "monday", "and", "waits"]


def text(seed, length=60):
    generator = np.random.default_rng(seed)
    return " ".join(f"{generator.choice(WORDS)}{generator.integers(100)}" for _ in range(length))


def listed(*rows):
    known = SignatureList(len(rows[0]) if rows else 3, BytesIO())
    for row in rows:
        known.append(row)
    return known


def signatures(*rows):
    return listed(*rows).all()


def found(*rows, labels=None, alike=0.8):
    given = np.array([1.0] * len(rows) if labels is None else labels)
    return list(np.flatnonzero(near_duplicates(listed(*rows), given, alike=alike)))


def edited(content):
    words = content.split()
    return " ".join([*words[:-1], "else"])


def test_a_row_with_a_word_changed_in_every_part_is_found_and_the_first_is_not():
    row = [text(1), text(2), text(3)]
    assert found(row, [text(4), text(5), text(6)], [edited(part) for part in row]) == [2]


def test_one_part_that_differs_makes_another_comparison():
    row = [text(1), text(2, 300), text(3, 8)]
    assert found(row, [row[0], row[1], text(9, 8)]) == []
    assert found(row, [text(9, 8), row[1], row[2]]) == []


def test_two_equal_parts_do_not_make_up_for_a_third_that_is_half_alike():
    row = [text(1), text(2), text(3)]
    half = " ".join([*row[2].split()[:40], *text(9).split()[:20]])
    assert found(row, [row[0], row[1], half]) == []


@pytest.mark.parametrize(
    ("one", "other", "unlike"),
    [
        ("请写一篇关于人工智能在医疗领域应用的文章,内容包括诊断、治疗和药物研发,字数不少于八百字。",
         "请写一篇关于人工智能在医疗领域应用的文章,内容包括诊断、治疗和药物研发,字数不少于九百字。",
         "请用三句话介绍上海的历史、气候和交通,并推荐两家适合带孩子去的博物馆,说明开放时间和票价。"),
        ("日本の首都はどこですか。また、その都市の人口と歴史について詳しく教えてください。",
         "日本の首都はどこですか。また、その都市の人口と歴史について、詳しく教えてください。",
         "日本の料理を家で作りたいのですが、初心者におすすめのレシピを三つ教えてください。"),
        ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทยและมีประชากรมากที่สุด",
         "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทยและมีประชากรมากสุด",
         "อาหารไทยมีรสชาติหลากหลายและเป็นที่นิยมทั่วโลกในปัจจุบัน"),
    ],
    ids=["Chinese", "Japanese", "Thai"],
)  # fmt: skip
def test_texts_without_spaces_between_words_are_compared_by_their_letters(one, other, unlike):
    assert found([one] * 3, [unlike] * 3, [other] * 3) == [2]
    assert jaccard(shingles(one), shingles(unlike)) < 0.2


def test_swapped_responses_are_no_near_duplicate():
    row = [text(1), text(2), text(3)]
    assert found(row, [row[0], row[2], row[1]]) == []


def test_case_and_white_space_do_not_matter_and_blank_texts_are_taken():
    row = [text(1), text(2), ""]
    assert found(row, [row[0].upper(), row[1].replace(" ", "\n"), " "]) == [1]


def test_the_share_of_equal_minima_estimates_the_jaccard_similarity():
    # 100 words have 98 shingles of 3; 10 new words at the end leave 88 of 108 in common: 0.815.
    estimates = []
    for seed in range(100):
        words = [f"{seed}w{number}" for number in range(110)]
        one, other = " ".join(words[:100]), " ".join([*words[:90], *words[100:]])
        estimates.append(np.mean(signature([one]) == signature([other])))
    assert abs(np.mean(estimates) - 88 / 108) < 0.03


def test_ten_thousand_alike_rows_do_not_take_quadratic_time():
    row = [text(1, 20), text(2, 20), text(3, 20)]
    assert len(found(*[row] * 10_000)) == 9_999


def test_another_label_makes_another_row():
    row = [text(1), text(2), text(3)]
    assert found(row, row, row, row, labels=[1.0, 0.5, 0.9, 1.0]) == [3]


def test_ties_are_near_in_either_order():
    row = [text(1), text(2), text(3)]
    swapped = [edited(row[0]), edited(row[2]), edited(row[1])]
    assert found(row, swapped, labels=[0.5, 0.5]) == [1]
    assert found(row, swapped, labels=[1.0, 1.0]) == []
    assert found(row, row, swapped, labels=[1.0, 0.5, 0.5]) == [2]


def test_one_tie_is_not_near_itself():
    assert found([text(1), text(2), text(2)], labels=[0.5]) == []


def alike_to(content, kept, seed):
    """The first words of `content` and new ones instead of the others."""
    words = content.split()
    return " ".join([*words[:kept], *(f"new{seed}x{n}" for n in range(len(words) - kept))])


def test_what_is_found_is_near_and_all_of_it_is_found():
    # 60 words have 58 shingles: with 53 words kept 51 of 65 are alike (0.785), with 54 52 of 64.
    row = [text(1), text(2), text(3)]
    just = [[row[0], alike_to(row[1], 54, n), row[2]] for n in range(40)]
    less = [[row[0], alike_to(row[1], 53, n), row[2]] for n in range(100, 140)]
    assert [len(found(row, other)) for other in just] == [1] * 40
    assert [len(found(row, other)) for other in less] == [0] * 40


def test_what_is_near_is_found_behind_many_that_are_less_so():
    row = [text(1), text(2), text(3)]
    less = [[row[0], alike_to(row[1], 50, n), alike_to(row[2], 50, n)] for n in range(12)]
    assert found([row[0], alike_to(row[1], 58, 99), row[2]], *less, row) == [13]


def test_no_rows_give_no_rows():
    assert found() == []
    assert list(near_pairs(signatures(), signatures(["a"]))) == []
    assert list(near_pairs(signatures(["a"]), signatures())) == []


def test_texts_that_are_nearly_one_of_the_others_are_found_whatever_stands_beside_them():
    mine = signatures([text(1)], [text(2)], [edited(text(3))], [text(4)])
    others = signatures([text(5)], [edited(text(1))], [text(3)], [text(6)])
    assert set(near_pairs(mine, others)) == {(0, 1), (2, 2)}


def test_what_is_nearly_alike_is_found_behind_what_is_less_so():
    missed = []
    for seed in range(40):
        words = text(seed, length=21).split()
        # Another word in the middle leaves 16 of 22 shingles alike, at the end 18 of 20.
        less = [[" ".join([*words[:n], "less", *words[n + 1 :]])] for n in (3, 6, 9, 12, 15)]
        near = [" ".join([*words[:-1], "near"])]
        if (0, 5) not in set(near_pairs(signatures([" ".join(words)]), signatures(*less, near))):
            missed.append(seed)
    assert missed == []


def test_jaccard_by_hand():
    # Shingles abc, bcd, cde against abc, bcd, cdx: two of four.
    assert jaccard(shingles("a b c d e"), shingles("a b c d x")) == 0.5
    assert jaccard(shingles("A  b c"), shingles("a b c")) == 1.0


def test_near_is_what_alike_says():
    other = " ".join([*text(1).split()[:40], *text(9).split()[:20]])
    rows = [text(1), text(2), text(3)], [other, text(2), text(3)]
    assert found(*rows, alike=0.8) == []
    assert found(*rows, alike=0.4) == [1]
