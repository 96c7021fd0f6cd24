"""Length tables: supported inputs and the errors for invalid ones."""

import numpy as np
import pytest

from phalanx.data import LengthTable
from phalanx.data.lengths import RangeIds, as_length_table


def test_mapping_order_is_preserved():
    table = as_length_table({"b": 3, "a": 5})
    assert list(table.ids) == ["b", "a"]
    assert table.lengths.tolist() == [3, 5] and table.lengths.dtype == np.int32
    assert len(table) == 2 and table.as_dict() == {"b": 3, "a": 5}


def test_ids_default_to_row_numbers():
    table = LengthTable.from_arrays(None, np.array([7, 8, 9]))
    assert isinstance(table.ids, RangeIds)
    assert list(table.ids) == ["0", "1", "2"] and table.ids[1:] == ["1", "2"] and table.ids[-1] == "2"


def test_numpy_ids_and_integer_types_are_accepted():
    table = LengthTable.from_arrays(np.array(["x", "y"]), np.array([1, 2], np.uint8))
    assert table.as_dict() == {"x": 1, "y": 2} and table.lengths.dtype == np.int32


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({"a": 5, "b": -3}, r"sample 1 \('b'\): length must be a positive integer, got -3"),
        ({"a": 0}, r"sample 0 \('a'\): length must be a positive integer, got 0"),
        ({"a": 5, "b": 2.5}, r"sample 1 \('b'\): length must be a positive integer, got 2.5"),
        ({"a": True}, r"sample 0 \('a'\): length must be a positive integer, got True"),
        ({"a": "7"}, r"sample 0 \('a'\): length must be a positive integer, got '7'"),
        ({"a": None}, r"sample 0 \('a'\): length must be a positive integer, got None"),
        ({"a": 2**31}, r"sample 0 \('a'\): length 2147483648 is above 2147483647"),
        ({"a": 2**70}, r"sample 0 \('a'\): length 1180591620717411303424 is above 2147483647"),
        ({"a": 1, 7: 2}, r"sample 1: ids must be strings, got 7 \(int\)"),
    ],
)
def test_invalid_entry_is_reported_with_row_and_id(lengths, message):
    with pytest.raises(ValueError, match=message):
        as_length_table(lengths)


def test_duplicate_id_is_reported_with_both_rows():
    with pytest.raises(ValueError, match="samples 0 and 2 have the same id 'a'"):
        LengthTable.from_arrays(["a", "b", "a"], [1, 2, 3])


def test_unvalidated_table_is_checked_on_use():
    table = LengthTable(["a", "a"], np.array([1, 2], np.int32))
    with pytest.raises(ValueError, match="same id 'a'"):
        as_length_table(table)


def test_ids_and_lengths_must_have_equal_size():
    with pytest.raises(ValueError, match="got 2 ids but 3 lengths"):
        LengthTable.from_arrays(["a", "b"], [1, 2, 3])


def test_float_lengths_are_rejected_even_if_integral():
    with pytest.raises(ValueError, match="lengths must be a one-dimensional array of integers, got float64"):
        LengthTable.from_arrays(None, np.array([1.0, 2.0]))
