"""The counters in the text format of Prometheus."""

from starlette.testclient import TestClient

from phrasechain.web.metrics import Metrics


def test_a_histogram_is_cumulative() -> None:
    metrics = Metrics()
    for status, seconds in ((200, 0.02), (200, 0.3), (503, 0.001), (200, 99.0)):
        metrics.observe("/api/ground", status, seconds)
    lines = metrics.text({"phrasechain_photos": (3, "Photos.")}).splitlines()
    assert 'phrasechain_requests_total{path="/api/ground",status="200"} 3' in lines
    assert 'phrasechain_requests_total{path="/api/ground",status="503"} 1' in lines
    buckets = [line.split()[-1] for line in lines if "_bucket" in line]
    assert [int(count) for count in buckets] == [1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 4]
    assert 'phrasechain_request_seconds_sum{path="/api/ground"} 99.321000' in lines
    assert "phrasechain_photos 3" in lines


def test_requests_are_counted_by_path(client: TestClient) -> None:
    client.get("/api/health")
    client.get("/api/no/such/path")
    text = client.get("/api/metrics").text
    assert 'phrasechain_requests_total{path="/api/health",status="200"}' in text
    assert 'phrasechain_requests_total{path="other",status="404"}' in text
    assert "no/such" not in text, "a client cannot make new counters"
    for name in ("phrasechain_queue_waiting 0", "phrasechain_queue_running 0", "phrasechain_photos "):
        assert name in text
