"""Counts as Prometheus reads them."""

from pmlm.serve.metrics import Metrics


def test_counters_gauges_and_histograms() -> None:
    metrics = Metrics()
    metrics.add("pmlm_requests_total", route="/x", status=200)
    metrics.add("pmlm_requests_total", route="/x", status=200)
    metrics.set("pmlm_waiting", 3)
    for seconds in (0.02, 0.2, 100):
        metrics.observe("pmlm_request_seconds", seconds)
    lines = metrics.text().splitlines()
    assert 'pmlm_requests_total{route="/x",status="200"} 2' in lines
    assert "pmlm_waiting 3" in lines
    assert "pmlm_tokens_total 0" in lines
    assert 'pmlm_request_seconds_bucket{le="0.025"} 1' in lines
    assert 'pmlm_request_seconds_bucket{le="60.0"} 2' in lines
    assert 'pmlm_request_seconds_bucket{le="+Inf"} 3' in lines
    assert "pmlm_request_seconds_count 3" in lines
    assert metrics.value("pmlm_requests_total", route="/x", status=200) == 2


def test_large_numbers_are_told_to_the_last_digit() -> None:
    metrics = Metrics()
    metrics.add("pmlm_tokens_total", 12_345_678)
    metrics.set("pmlm_waiting", 10**15 + 1)
    metrics.observe("pmlm_request_seconds", 1234567.25)
    metrics.observe("pmlm_request_seconds", 0.1)
    lines = metrics.text().splitlines()
    assert "pmlm_tokens_total 12345678" in lines
    assert f"pmlm_waiting {10**15 + 1}" in lines
    assert f"pmlm_request_seconds_sum {1234567.25 + 0.1!r}" in lines
