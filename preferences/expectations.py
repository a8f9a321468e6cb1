"""The rules as expectations of Great Expectations, and how they are run.

Importing this module takes two to three seconds, so only `preferences.gate` does. Great
Expectations treats a crashed expectation as one that found bad data; here a crash stays a crash.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import great_expectations as gx
import great_expectations.expectations as gxe
import numpy as np
import pandas as pd
from great_expectations.core import ExpectationValidationResult
from great_expectations.data_context import EphemeralDataContext
from great_expectations.data_context.store.store import DataDocsSiteConfigTypedDict
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import (
    ColumnAggregateExpectation,
    MulticolumnMapExpectation,
)
from great_expectations.expectations.metadata_types import FailureSeverity
from great_expectations.expectations.metrics.map_metric_provider.multicolumn_condition_partial import (  # noqa: E501
    multicolumn_condition_partial,
)
from great_expectations.expectations.metrics.map_metric_provider.multicolumn_map_metric_provider import (  # noqa: E501
    MulticolumnMapMetricProvider,
)

from preferences.data_docs import make_readable_offline
from preferences.overview import AT_LEAST, Number
from preferences.params import Severity, ValidateParams
from preferences.report import Finding
from preferences.rules import RULES, Rule

_RULES = {rule.name: rule for rule in RULES}
_GX_SEVERITY: Mapping[str, FailureSeverity] = {
    "error": FailureSeverity.CRITICAL,
    "quarantine": FailureSeverity.WARNING,
    "warn": FailureSeverity.INFO,
}


class BrokenExpectationError(RuntimeError):
    """An expectation crashed: a bug in the program, which says nothing about the data."""


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
    # Typed like the built-in ones; otherwise Great Expectations drops the default.
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
    table: pd.DataFrame,
    params: ValidateParams,
    numbers: Sequence[Number] = (),
    *,
    docs: Path | None = None,
) -> list[Finding]:
    """What each rule finds in the table of measures, in the order of the rules.

    The numbers' bounds are checked too, for the report only; acting on them is up to the caller.
    With `docs`, the report is written to that folder; its file names contain the time, so it must
    not be part of a DVC output.

    Raises:
        BrokenExpectationError: an expectation crashed.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "False"
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    if docs is not None:
        context.add_data_docs_site("gate", _site(docs))
    severities = {rule.name: _severity(params, rule) for rule in RULES}
    rules = [rule for rule in RULES if severities[rule.name] != "off"]
    expectations = [
        ExpectRowsToKeepRule(
            column_list=list(rule.columns),
            rule=rule.name,
            mostly=1 - params.limit(rule.name),
            severity=_GX_SEVERITY[severities[rule.name]],
            description=f"{rule.name}: no row where {rule.reason}",
        )
        for rule in rules
    ]
    results = _run(context, "rows", table, expectations) if len(table) else []
    counts = dict(map(_broken, results))
    if numbers:
        values = pd.DataFrame({number.name: [number.near] for number in numbers})
        bounds = [_bound(number) for number in numbers]
        for result in _run(context, "numbers", values, bounds):
            _refuse_crash(result, str(result.expectation_config and result.expectation_config.type))
    if docs is not None:
        context.build_data_docs(build_index=False)
        make_readable_offline(docs)
    return [
        Finding(rule.name, severities[rule.name], _rows(rule, table, counts.get(rule.name, 0)))
        for rule in rules
    ]


def _severity(params: ValidateParams, rule: Rule) -> Severity:
    severity: Severity = getattr(params.severities, rule.name)
    return severity


def _bound(number: Number) -> ColumnAggregateExpectation:
    """An expectation on the number, which is the only row of its column."""
    limit = {"min_value" if number.name in AT_LEAST else "max_value": number.bound.limit}
    return gxe.ExpectColumnMaxToBeBetween(
        column=number.name,
        severity=_GX_SEVERITY[number.bound.severity],
        description=f"{number.name}: {number.without_names()}",
        **limit,
    )


def _run(
    context: EphemeralDataContext,
    name: str,
    table: pd.DataFrame,
    expectations: Sequence[MulticolumnMapExpectation | ColumnAggregateExpectation],
) -> list[ExpectationValidationResult]:
    asset = context.data_sources.add_pandas(name).add_dataframe_asset(name)
    suite = context.suites.add(gx.ExpectationSuite(name, expectations=list(expectations)))
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(
            name=name, data=asset.add_batch_definition_whole_dataframe("all"), suite=suite
        )
    )
    # Counts only: a list of all matching rows would take more memory than the table.
    counts = {"result_format": "BASIC", "partial_unexpected_count": 0}
    return list(definition.run(batch_parameters={"dataframe": table}, result_format=counts).results)


def _site(folder: Path) -> DataDocsSiteConfigTypedDict:
    place = str(folder.resolve()).replace("$", r"\$")  # Not the name of one of its variables.
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": place,
        },
    }


def _broken(result: ExpectationValidationResult) -> tuple[str, int]:
    """The name of a rule, and how many rows break it."""
    assert result.expectation_config is not None
    rule = str(result.expectation_config.kwargs["rule"])
    _refuse_crash(result, rule)
    return rule, int(result.result["unexpected_count"])


def _rows(rule: Rule, table: pd.DataFrame, count: int) -> tuple[int, ...]:
    """Indexes of the rows that Great Expectations counted."""
    if not count:
        return ()
    rows = np.flatnonzero(~_RULES[rule.name].keeps(table[list(rule.columns)]).to_numpy())
    assert len(rows) == count, f"{rule.name}: {len(rows)} rows found, {count} expected"
    return tuple(rows.tolist())


def _refuse_crash(result: ExpectationValidationResult, name: str) -> None:
    crash = _crash(result.exception_info)
    if crash:
        raise BrokenExpectationError(f"expectation {name} crashed: {crash}")


def _crash(info: Mapping[str, Any]) -> str:
    """The message of a crash, which Great Expectations puts at the top or below each metric."""
    entries = [info, *(value for value in info.values() if isinstance(value, Mapping))]
    return next(
        (str(entry["exception_message"]) for entry in entries if entry.get("raised_exception")), ""
    )
