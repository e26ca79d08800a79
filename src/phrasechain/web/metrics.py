"""Counters of the server in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Requests by path and status, and how long they took; all calls come from the event loop's thread."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._buckets: Counter[tuple[str, float]] = Counter()

    def observe(self, path: str, status: int, seconds: float) -> None:
        self._requests[path, status] += 1
        self._seconds[path] += seconds
        for bound in BUCKETS:
            self._buckets[path, bound] += seconds <= bound

    def text(self, gauges: Mapping[str, tuple[float, str]]) -> str:
        """All counters, and ``gauges``: from a name to its value now and what it is."""
        lines = ["# HELP phrasechain_requests_total Requests answered.", "# TYPE phrasechain_requests_total counter"]
        for (path, status), count in sorted(self._requests.items()):
            lines.append(f'phrasechain_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += [
            "# HELP phrasechain_request_seconds Time from a request's head to its answer.",
            "# TYPE phrasechain_request_seconds histogram",
        ]
        for path in sorted(self._seconds):
            count = sum(number for (other, _), number in self._requests.items() if other == path)
            for bound in BUCKETS:
                lines.append(
                    f'phrasechain_request_seconds_bucket{{path="{path}",le="{bound}"}} {self._buckets[path, bound]}'
                )
            lines.append(f'phrasechain_request_seconds_bucket{{path="{path}",le="+Inf"}} {count}')
            lines.append(f'phrasechain_request_seconds_sum{{path="{path}"}} {self._seconds[path]:.6f}')
            lines.append(f'phrasechain_request_seconds_count{{path="{path}"}} {count}')
        for name, (value, help_text) in gauges.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"
