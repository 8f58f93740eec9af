"""What a report says of nothing, of what passed and of what did not."""

import pytest

from ostinato.errors import QualificationError
from ostinato.runtime import GraphKey, KeyReport, QualificationReport, RuntimeMode
from ostinato.runtime.qualify.report import Finding, FindingKind

KEY = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=4)


def report_of(*keys: KeyReport) -> QualificationReport:
    return QualificationReport(backend="simulated", is_bitwise=True, keys=list(keys))


@pytest.mark.parametrize("keys", [(), (KeyReport(key=KEY),)])
def test_nothing_tried_has_not_passed(keys):
    """No graph, or no batch for any: whoever waits for a pass before serving must not get one."""
    report = report_of(*keys)
    assert not report.passed and report.to_dict()["passed"] is False
    assert not report.failed, "and nothing was quarantined"
    assert report.to_text().startswith("nothing was tried")
    with pytest.raises(QualificationError, match="nothing was tried") as caught:
        report.check()
    assert caught.value.fix


def test_one_key_that_was_tried_is_enough():
    report = report_of(KeyReport(key=KEY, num_cases=2), KeyReport(key=KEY))
    assert report.passed and not report.failed
    report.check()
    assert "nothing was tried" not in report.to_text()


def test_a_finding_is_named_before_all():
    bad = KeyReport(key=KEY, findings=[Finding(kind=FindingKind.REFUSED, what="it raised")])
    report = report_of(bad, KeyReport(key=KEY, num_cases=2))
    assert not report.passed and report.failed == [bad]
    with pytest.raises(QualificationError, match="REFUSED: it raised"):
        report.check()
    assert "nothing was tried" not in report.to_text()
