"""The report, the result tables and `reports/summary.json`."""
