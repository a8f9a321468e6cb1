"""The report, the result tables and `reports/summary.json`.

A new metric of PPO (a field in `rlhf/ppo_metrics.py`) appears among the report's curves by itself;
`PANELS` in `page` gives it a large chart. A new metric of a policy or reward model, once it is in a
`metrics.json`, gets into the results by its name in `summary` and onto the page by
`report.html.j2`; `result_table` and `headline` hold the few that `make repro` prints and git keeps.
"""
