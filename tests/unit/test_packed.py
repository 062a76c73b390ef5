"""What a page holds of its data: smaller, and the same."""

import json

from hypothesis import given
from hypothesis import strategies as st

from chronofed.reports.web.packed import packed, unpacked

LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=20)
KEYS = st.sampled_from(["a", "b", "~", "~table", "~pairs", "a longer key than most"])
DATA = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.builds(lambda row, n: [dict(row)] * n, st.dictionaries(KEYS, inner, max_size=3), st.integers(3, 5))
    ),
    max_leaves=40,
)  # fmt: skip


def written(value):
    return json.dumps(value, separators=(",", ":"))


@given(DATA)
def test_unpacked_is_what_was_packed(content):
    # through text, as on a page; 1, 1.0 and true are not the same
    assert written(unpacked(json.loads(written(packed(content))))) == written(content)


def test_a_table_whose_rows_repeat_is_stored_once():
    rows = [
        {"name": f"m{k}", "x": list(range(100)), "y": {"of": "one long text"}} for k in range(50)
    ]
    assert len(written(packed(rows))) < len(written(rows)) / 20
    tables = [rows, rows]
    page = packed(tables)
    assert page["content"] == [{"~": 0}, {"~": 0}]
    assert unpacked(page) == tables


def test_rows_of_other_keys_stay_rows():
    rows = [{"a": 1}, {"a": 1, "b": 2}, {"a": 1}]
    assert packed(rows) == {"content": rows, "shared": []}
