"""A reward function of the user's own: what it gets, what it may return, and every way to fail."""

from pathlib import Path

import pytest

from rlhf.distributed import LostProcessError
from rlhf.params.rule_rewards import RewardMixParams
from rlhf.reward_functions import CALL, RewardFunction, RewardFunctionError, own_function
from rlhf.rule_rewards import build_rule_rewards
from tests import tiny
from tests.forked import run_together
from tests.waiting import eventually, is_alive


def function(tmp_path: Path, body: str, *, seconds: float = 60.0) -> RewardFunction:
    (tmp_path / "check.py").write_text(f"def score(prompts, responses):\n    {body}\n")
    return RewardFunction(f"{tmp_path / 'check.py'}:score", seconds)


def test_it_gets_prompts_as_they_are_and_returns_a_number_for_each_response(tmp_path: Path):
    own = function(
        tmp_path,
        "return [len(r) + 10 * isinstance(p, list) for p, r in zip(prompts, responses)]",
    )
    prompts = ["Where?", [{"role": "user", "content": "Where?"}], "é"]
    assert own.scores(prompts, ["a", "", "\u2028ü"]) == [1.0, 10.0, 2.0]


def test_numbers_of_numpy_and_torch_and_tuples_are_fine_and_its_prints_disturb_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    body = "import numpy, os; print('said'); os.write(1, b'{}'); return numpy.array([0.5, True])"
    assert function(tmp_path, body).scores(["p"] * 2, ["a", "b"]) == [0.5, 1.0]
    assert "said" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return [1.0]", "expected 2 numbers, one for each response, found 1"),
        ("return [1.0, float('nan')]", "expected finite numbers, found nan for response 1"),
        ("return [float('inf'), 1]", "expected finite numbers, found inf for response 0"),
        ("return [None, 1]", "expected finite numbers, found None for response 0"),
        ("return ['1', '2']", "expected finite numbers, found '1' for response 0"),
        ("return 3", "expected a list of 2 numbers, found int"),
        ("return 'ab'", "expected a list of 2 numbers, found str"),
        ("return {0: 1, 1: 2}", "expected a list of 2 numbers, found dict"),
        ("return [1 / len(r) for r in responses]", "ZeroDivisionError: division by zero ("),
        ("yield from (1 / len(r) for r in responses)", "ZeroDivisionError: division by zero ("),
        ("raise SystemExit('no')", "SystemExit: no ("),
        ("raise ValueError('two\\nlines')", "ValueError: two lines ("),
        ("raise ValueError('x' * 1000)", f"ValueError: {'x' * 200}"),
        ("import os; os._exit(7)", "its process ended with 7"),
    ],
)
def test_every_bad_return_is_one_line_with_file_function_and_what_was_found(
    tmp_path: Path, body: str, problem: str
):
    own = function(tmp_path, body)
    with pytest.raises(RewardFunctionError) as error:
        own.scores(["p", "q"], ["a", ""])
    assert str(error.value).startswith(
        f"ppo.rewards.function: {tmp_path / 'check.py'}:score: {problem}"
    )
    assert "\n" not in str(error.value)
    if "Error: " in problem:
        assert str(error.value).endswith("check.py, line 2)")


def test_one_that_takes_too_long_is_ended_with_everything_it_started(tmp_path: Path):
    body = (
        "import subprocess, time, pathlib; p = subprocess.Popen(['sleep', '3600']); "
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(p.pid)); time.sleep(3600)"
    )
    own = function(tmp_path, body, seconds=3.0)
    with pytest.raises(RewardFunctionError, match=r"no answer within 3 s \(ppo\.rewards\."):
        own.scores(["p"], ["a"])
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not is_alive(pid))


def test_a_file_that_cannot_be_used_is_said_before_anything_is_scored(tmp_path: Path):
    (tmp_path / "check.py").write_text("import nothing_of_this_name\n")
    place = tmp_path / "check.py"
    cases = {
        f"{place}:score": "ModuleNotFoundError: No module named 'nothing_of_this_name' (",
        f"{tmp_path / 'none.py'}:score": f"{tmp_path / 'none.py'}: no such file",
    }
    for name, problem in cases.items():
        with pytest.raises(RewardFunctionError) as error:
            RewardFunction(name, 60.0).check()
        assert problem in str(error.value)
    place.write_text("score = 3\n")
    with pytest.raises(RewardFunctionError, match="expected a function called score, found int"):
        RewardFunction(f"{place}:score", 60.0).check()


def test_calls_are_cut_in_order_and_remember_nothing(tmp_path: Path):
    body = "global n; n = globals().get('n', 0) + len(responses); return [n] * len(responses)"
    own = function(tmp_path, body)
    found = own.scores(["p"] * (CALL + 3), ["a"] * (CALL + 3))
    assert found == [float(CALL)] * CALL + [3.0] * 3
    assert own.scores(["p"], ["a"]) == [1.0]


def test_its_folder_and_the_standard_library_can_be_imported_and_nothing_of_ours(tmp_path: Path):
    (tmp_path / "kl.py").write_text("MINE = 4\n")
    body = "import kl, statistics; return [kl.MINE for _ in responses]"
    assert function(tmp_path, body).scores(["p"], ["a"]) == [4.0]


def test_in_a_workspace_it_finds_what_lies_beside_it_in_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """There it is a link (`tasks.workspace.worktrees.link_own_files`), and the rest of its folder
    is not there if git does not know it."""
    mine, workspace = tmp_path / "mine", tmp_path / ".work/variants/x"
    (workspace / "mine").mkdir(parents=True)
    mine.mkdir()
    (mine / "answers.txt").write_text("7")
    body = "import pathlib; text = pathlib.Path(__file__).with_name('answers.txt').read_text(); "
    function(mine, f"{body}return [float(text) for _ in responses]")
    (workspace / "mine/check.py").symlink_to(mine / "check.py")
    monkeypatch.chdir(workspace)
    assert RewardFunction("mine/check.py:score", 60.0).scores(["p"], ["a"]) == [7.0]


def test_it_counts_with_its_weight_beside_the_rules_and_gets_the_prompts_of_the_data(
    tmp_path: Path,
):
    own = function(tmp_path, "return [float(p == 'Where is it?') for p in prompts]")
    params = RewardMixParams(
        learned=0.0, length=0.5, length_target=2, function=own.name, function_weight=3.0
    )
    rules = build_rule_rewards(params, tiny.tokenizer())
    assert rules is not None
    found = rules.score(["Where is it?", "What?"], ["It is", "Nobody"], [True, True])
    assert found == pytest.approx([0.5 * 1.0 + 3.0, 0.5 * 0.5])


def test_of_several_processes_the_first_calls_it_and_all_have_its_scores(tmp_path: Path):
    calls = tmp_path / "calls"
    body = f"open({str(calls)!r}, 'a').write('x'); return [len(r) for r in responses]"
    params = RewardMixParams(learned=0.0, function=function(tmp_path, body).name)

    def work() -> list[float]:
        rules = build_rule_rewards(params, tiny.tokenizer())
        assert rules is not None
        return rules.score(["p"] * 3, ["a", "abc", ""], [True] * 3)

    assert run_together(work) == [[1.0, 3.0, 0.0]] * 2
    assert calls.read_text() == "x"


def test_what_the_first_process_finds_wrong_with_it_is_its_own_error(tmp_path: Path):
    """The other sees that the first is gone; the stage says what the first one does."""
    params = RewardMixParams(learned=0.0, function=function(tmp_path, "return [1]").name)

    def work() -> list[float]:
        rules = build_rule_rewards(params, tiny.tokenizer())
        assert rules is not None
        return rules.score(["p"] * 2, ["a", "b"], [True] * 2)

    ours, theirs = run_together(work)
    assert isinstance(ours, RewardFunctionError)
    assert isinstance(theirs, LostProcessError)


def test_a_weight_of_the_function_needs_a_function_with_file_and_name():
    (problem,) = RewardMixParams(function="mine/check.py").problems()
    assert problem[0] == "function"
    assert list(RewardMixParams(learned=0.0, function="mine/check.py:score").problems()) == []


def test_a_call_may_take_as_long_as_params_yaml_says():
    assert own_function(RewardMixParams()) is None
    params = RewardMixParams(function="mine/check.py:score", function_seconds=7.0)
    assert own_function(params) == RewardFunction("mine/check.py:score", 7.0)
