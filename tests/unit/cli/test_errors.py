"""`ostinato errors`: one code, all codes, JSON, an unknown code."""

from __future__ import annotations

import json

import pytest

import ostinato.errors
from ostinato.cli.app import main
from ostinato.cli.errors import entries


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["errors", *args])
    code = stopped.value.code
    return code if isinstance(code, int) else 0


def test_one_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ost301") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("OST301  AddressChangedError (GuardError): ")


def test_all_codes_are_listed_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    codes = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert codes == sorted(codes)
    assert len(codes) == len(ostinato.errors.__all__)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("OST500", "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["name"] == "RequestError"
    assert entry["parent"] == "OstinatoError"


def test_an_unknown_code_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("OST0000") == 2
    assert "did you mean 'OST000'" in capsys.readouterr().err


def test_every_error_has_a_meaning() -> None:
    assert all(entry.meaning.endswith(".") for entry in entries())
