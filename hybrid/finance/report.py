"""The cost report: sums of ledger lines that add up to the last digit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from hybrid import api
from hybrid.store.tables import Charge

_HOUR = Decimal(3600)
#: What `--by` may be, and the key of a line under it.
GROUPINGS: Mapping[str, Callable[[Charge], str]] = {
    "project": lambda line: line.project,
    "user": lambda line: line.user,
    "job": lambda line: line.job_id or f"(no job) {line.lease_id}",
    "pool": lambda line: line.place,
    "lease": lambda line: line.lease_id,
}


def month_window(month: str) -> tuple[datetime, datetime]:
    """[first moment, first moment of the next month) in UTC. `month` is YYYY-MM, else
    `ValueError`."""
    try:
        start = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise ValueError(f"month {month!r} is not YYYY-MM, for example 2026-12") from None
    year, number = divmod(start.year * 12 + start.month, 12)
    return start, start.replace(year=year, month=number + 1)


@dataclass(slots=True)
class _Sum:
    amounts: dict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    unit_hours: Decimal = Decimal(0)


def cost_report(
    lines: Iterable[Charge],
    accruing: Iterable[Charge],
    by: str,
    start: datetime,
    end: datetime,
) -> api.CostReport:
    """Closed and accruing lines by project, user, job, pool or lease. A line belongs to the
    month in which it starts. Each row's kinds sum to its total, the rows to the totals."""
    if by not in GROUPINGS:
        raise ValueError(f"--by {by!r} is none of: {', '.join(GROUPINGS)}")
    key_of = GROUPINGS[by]
    sums: dict[tuple[str, str], _Sum] = defaultdict(_Sum)
    totals: dict[str, Decimal] = defaultdict(Decimal)
    open_totals: dict[str, Decimal] = defaultdict(Decimal)
    for part, is_open in ((lines, False), (accruing, True)):
        for line in part:
            if not start <= line.start_at < end:
                continue
            row = sums[(key_of(line), line.currency)]
            row.amounts[line.kind] += line.amount
            row.unit_hours += line.seconds * line.units / _HOUR
            totals[line.currency] += line.amount
            if is_open:
                open_totals[line.currency] += line.amount
    return api.CostReport(
        start=start,
        end=end,
        by=by,
        rows=[
            api.CostRow(
                key=key,
                currency=currency,
                amounts=dict(row.amounts),
                total=sum(row.amounts.values(), Decimal(0)),
                unit_hours=row.unit_hours.quantize(Decimal("0.000001")),
            )
            for (key, currency), row in sorted(sums.items())
        ],
        totals=dict(totals),
        accruing=dict(open_totals),
    )
