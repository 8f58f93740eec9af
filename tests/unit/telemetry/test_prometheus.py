"""Prometheus: what an endpoint answers is what was counted, and bad set-ups are typed errors."""

import builtins
import socket
import threading
from urllib.request import urlopen

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ostinato.errors import ClosedError, ConfigError
from ostinato.telemetry import EventBus, PrometheusSink, StepDispatched, Tally, read_metrics

STEP = StepDispatched(runtime_mode="FULL", bucket="4", reason="PADDED", live_tokens=3, padded_tokens=4)


def scraped(port):
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode("utf-8")


def test_an_endpoint_answers_what_was_counted(traffic):
    tally = Tally()
    with PrometheusSink() as sink:
        port = sink.serve(0)
        bus = EventBus(sink, tally)
        for event in traffic:
            bus.emit(event)
        found = read_metrics(scraped(port))
        expected = tally.snapshot()
        del expected["dispatch"]["histogram"]
        assert found == expected
        assert found["dispatch"]["never_hit"] == [
            tally.snapshot()["dispatch"]["never_hit"][0],
            'odd "key"\\with\nescapes',
        ]
        bus.emit(STEP)
        assert read_metrics(scraped(port))["dispatch"]["steps"] == 601, "a scrape tells of this moment"


def test_names_and_labels_are_as_prometheus_has_them(traffic):
    sink = PrometheusSink()
    for event in traffic:
        sink.emit(event)
    families = {
        f.name: f for f in text_string_to_metric_families(prometheus_client.generate_latest(sink.registry).decode())
    }
    steps = [(s.name, s.labels, s.value) for s in families["ostinato_steps"].samples]
    assert steps == [
        ("ostinato_steps_total", {"runtime_mode": "EAGER", "bucket": "-", "reason": "OVER_LARGEST"}, 300),
        ("ostinato_steps_total", {"runtime_mode": "FULL", "bucket": "4/256", "reason": "PADDED"}, 300),
    ]
    assert families["ostinato_padded_tokens"].type == "counter"
    states = {s.labels["state"]: s.value for s in families["ostinato_keys"].samples}
    assert states == {"captured": 1, "waiting": 0, "failed": 1, "quarantined": 1}
    assert families["ostinato_keys"].type == "gauge"
    assert families["ostinato_never_hit_keys"].samples[0].value == 2


def test_nothing_counted_is_still_an_answer():
    found = read_metrics(prometheus_client.generate_latest(PrometheusSink().registry).decode())
    expected = Tally().snapshot()
    del expected["dispatch"]["histogram"]
    assert found == expected


def test_a_registry_of_the_application_s():
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    prometheus_client.Counter("theirs", "Not ours.", registry=registry).inc()
    sink = PrometheusSink(registry)
    sink.emit(STEP)
    text = prometheus_client.generate_latest(registry).decode()
    assert "theirs_total 1.0" in text and read_metrics(text)["dispatch"]["steps"] == 1
    with pytest.raises(ConfigError, match="has these metrics already"):
        PrometheusSink(registry)
    sink.close()
    assert "ostinato" not in prometheus_client.generate_latest(registry).decode()
    PrometheusSink(registry)


def test_serving_ends_with_close():
    sink = PrometheusSink()
    port = sink.serve(0)
    with pytest.raises(ConfigError, match="served already"):
        sink.serve(0)
    scraped(port)
    sink.close()
    sink.close()
    with pytest.raises(OSError):
        scraped(port)
    with pytest.raises(ClosedError):
        sink.serve(0)


def test_a_port_that_cannot_be_had():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for port in (taken.getsockname()[1], 70_000):
            with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be had"):
                PrometheusSink().serve(port)


def test_no_step_is_lost_while_it_is_scraped():
    sink = PrometheusSink()
    threads = [threading.Thread(target=lambda: [sink.emit(STEP) for _ in range(3000)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen = [0]
    while any(thread.is_alive() for thread in threads):
        text = prometheus_client.generate_latest(sink.registry).decode()
        seen.append(read_metrics(text)["dispatch"]["steps"])
    assert seen == sorted(seen)
    assert read_metrics(prometheus_client.generate_latest(sink.registry).decode())["dispatch"]["steps"] == 9000


def test_without_the_package_the_extra_is_named(monkeypatch):
    load = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.partition(".")[0] == "prometheus_client":
            raise ModuleNotFoundError(f"refused: {name}", name=name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    for use in (PrometheusSink, lambda: read_metrics("")):
        with pytest.raises(ConfigError, match=r"pip install 'ostinato\[metrics\]'"):
            use()


@pytest.mark.parametrize("text", ["<html>no</html>", "", "other_total 1.0\n", "ostinato_steps_total{bucket= 3\n"])
def test_something_else_is_no_metrics(text):
    with pytest.raises(ConfigError, match=r"steps.example (gives no metrics|has no metrics of Ostinato)"):
        read_metrics(text, name="steps.example")
