"""What is written as TOML reads back the same."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from chronofed.core.toml import dumps

keys = st.text(min_size=1, max_size=6)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=8),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), values, max_size=4
)


@given(tables)
def test_round_trip(table):
    assert tomllib.loads(dumps(table)) == table


def test_none_is_left_out():
    assert dumps({"a": None, "b": {"c": None, "d": 1}}) == "\n[b]\nd = 1\n"
