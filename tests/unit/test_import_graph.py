"""The counts of benchmarks/import_graph.py, on graphs small enough to count by hand."""

from benchmarks.import_graph import circles, table

GRAPH = {
    "flows": set(),
    "tasks": set(), "tasks.ppo": {"tasks.running.stage", "rlhf.ppo"},
    "tasks.running": set(), "tasks.running.stage": {"tasks.running.files"},
    "tasks.running.files": set(),
    "rlhf": set(), "rlhf.ppo": {"rlhf.kl"}, "rlhf.kl": set(),
    "preferences": set(), "feedback": set(), "data": set(),
}  # fmt: skip


def test_modules_and_imports_are_counted_by_room():
    lines = table(GRAPH)

    assert "| `tasks` | 1 | 0 | 2 | 0 |" in lines
    assert "| `tasks.running` | 2 | 1 | 0 | 1 |" in lines
    assert "| `rlhf` | 2 | 1 | 0 | 1 |" in lines
    assert lines[-1] == (
        "5 modules in 7 rooms; 2 imports between 2 pairs of rooms. Circles of modules: none."
    )


def test_modules_that_reach_each_other_are_a_circle():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}, "e": set()}

    assert circles(graph) == [["b", "c"]]
