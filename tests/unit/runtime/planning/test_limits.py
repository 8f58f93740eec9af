"""The largest step that is planned for."""

import pytest

from ostinato.errors import ConfigError
from ostinato.runtime import GraphConfig
from ostinato.runtime.planning import largest_size


@pytest.mark.parametrize(
    ("config", "rows", "largest"),
    [
        (GraphConfig(), 6, 6),
        (GraphConfig(sizes=(2, 8)), 6, 8),
        (GraphConfig(sizes=(2, 8), max_size=16), 6, 16),
        (GraphConfig(sizes=(2,), max_num_reqs=5), None, 5),
        (GraphConfig(sizes=(2,), max_num_reqs=5, decode_sizes=(1, 3), uniform_query_lens=(1, 4)), None, 12),
    ],
)
def test_largest_size(config, rows, largest):
    assert largest_size(config, rows) == largest


def test_nothing_tells():
    with pytest.raises(ConfigError, match="largest size is unknown"):
        largest_size(GraphConfig(), None)
