"""The rules as Great Expectations' expectations, and a run of them.

Importing this takes two to three seconds, so only `preferences.gate` does. Great Expectations
counts an expectation that crashed as one that found bad data; here a crash stays a crash.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import great_expectations as gx
import pandas as pd
from great_expectations.checkpoint.actions import UpdateDataDocsAction
from great_expectations.core import ExpectationValidationResult
from great_expectations.data_context.store.store import DataDocsSiteConfigTypedDict
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import MulticolumnMapExpectation
from great_expectations.expectations.metadata_types import FailureSeverity
from great_expectations.expectations.metrics.map_metric_provider.multicolumn_condition_partial import (  # noqa: E501
    multicolumn_condition_partial,
)
from great_expectations.expectations.metrics.map_metric_provider.multicolumn_map_metric_provider import (  # noqa: E501
    MulticolumnMapMetricProvider,
)

from preferences.params import Severity
from preferences.report import Finding
from preferences.rules import RULES

_RULES = {rule.name: rule for rule in RULES}
_GX_SEVERITY: Mapping[str, FailureSeverity] = {
    "error": FailureSeverity.CRITICAL,
    "quarantine": FailureSeverity.WARNING,
    "warn": FailureSeverity.INFO,
}


class BrokenExpectationError(RuntimeError):
    """An expectation crashed: a defect of the program, and no word about the data."""


class RowsKeepRule(MulticolumnMapMetricProvider):  # type: ignore[misc]
    """Metric behind `ExpectRowsToKeepRule`."""

    condition_metric_name = "multicolumn_values.keep_rule"
    condition_domain_keys = (
        "batch_id",
        "table",
        "column_list",
        "row_condition",
        "condition_parser",
        "ignore_row_if",
    )
    condition_value_keys = ("rule",)

    @multicolumn_condition_partial(engine=PandasExecutionEngine)  # type: ignore[untyped-decorator]
    def _pandas(cls, column_list: pd.DataFrame, rule: str, **_: object) -> "pd.Series[bool]":
        return _RULES[rule].keeps(column_list)


class ExpectRowsToKeepRule(MulticolumnMapExpectation):  # type: ignore[misc]
    """No row breaks the rule of this name (see `preferences.rules`)."""

    map_metric = "multicolumn_values.keep_rule"
    rule: str
    # Typed like the built-in ones: else Great Expectations drops the default.
    ignore_row_if: Literal["all_values_are_missing", "any_value_is_missing", "never"] = "never"
    domain_keys: ClassVar[tuple[str, ...]] = (
        "batch_id",
        "column_list",
        "row_condition",
        "condition_parser",
    )
    success_keys: ClassVar = ("rule", "ignore_row_if", "mostly")
    args_keys: ClassVar = ("column_list", "rule")


def check(
    table: pd.DataFrame, severities: Mapping[str, Severity], *, docs: Path | None = None
) -> list[Finding]:
    """What each rule finds in the table of measures, in the order of the rules.

    With a folder for `docs`, Great Expectations' HTML report is written there; the names of its
    files hold the time, so no DVC output may hold it.

    Raises:
        BrokenExpectationError: an expectation crashed.
    """
    expectations = [
        ExpectRowsToKeepRule(
            column_list=list(rule.columns),
            rule=rule.name,
            severity=_GX_SEVERITY[severities[rule.name]],
            description=f"{rule.name}: no row where {rule.reason}",
        )
        for rule in RULES
        if severities[rule.name] != "off"
    ]
    return [_finding(result, severities) for result in _run(table, expectations, docs)]


def _run(
    table: pd.DataFrame, expectations: Sequence[MulticolumnMapExpectation], docs: Path | None
) -> list[ExpectationValidationResult]:
    os.environ["GX_ANALYTICS_ENABLED"] = "False"
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("preferences").add_dataframe_asset("pairs")
    suite = context.suites.add(gx.ExpectationSuite("preferences", expectations=list(expectations)))
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(
            name="gate", data=asset.add_batch_definition_whole_dataframe("all"), suite=suite
        )
    )
    if docs is not None:
        context.add_data_docs_site("gate", _site(docs))
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name="gate",
            validation_definitions=[definition],
            actions=[]
            if docs is None
            else [UpdateDataDocsAction(name="docs", site_names=["gate"])],
            result_format={"result_format": "COMPLETE", "partial_unexpected_count": 5},
        )
    )
    run = checkpoint.run(batch_parameters={"dataframe": table})
    return list(next(iter(run.run_results.values())).results)


def _site(folder: Path) -> DataDocsSiteConfigTypedDict:
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": str(folder.resolve()),
        },
    }


def _finding(result: ExpectationValidationResult, severities: Mapping[str, Severity]) -> Finding:
    assert result.expectation_config is not None
    rule = str(result.expectation_config.kwargs["rule"])
    crash = _crash(result.exception_info)
    if crash:
        raise BrokenExpectationError(f"expectation {rule} crashed: {crash}")
    rows = tuple(int(row) for row in result.result["unexpected_index_list"] or ())
    return Finding(rule=rule, severity=severities[rule], rows=rows)


def _crash(info: Mapping[str, Any]) -> str:
    """The message of a crash; Great Expectations has it at the top, or below each metric."""
    entries = [info, *(value for value in info.values() if isinstance(value, Mapping))]
    return next(
        (str(entry["exception_message"]) for entry in entries if entry.get("raised_exception")), ""
    )
