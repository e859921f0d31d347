"""Inspection without running code of the inspected objects."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from headway.diagnosis.safe_inspection import NOTHING, attribute, is_a, loaded, local_variables, module_of, name_of
from hostile_objects import Guarded, Holder, Liar, Strange, dead_proxy, guarded


class Slotted:
    __slots__ = ("empty", "full")

    def __init__(self) -> None:
        self.full = 1


def test_attributes_are_read_where_they_are_stored() -> None:
    holder = Holder()
    assert attribute(holder, "mutex") is holder.mutex
    assert attribute(Slotted(), "full") == 1
    assert attribute(Holder, "__init__") is Holder.__init__
    assert attribute(threading, "Lock") is threading.Lock


@pytest.mark.parametrize(("make", "name"), [(Strange, "lock"), (Strange, "other"), (Slotted, "empty"), (Liar, "shape")])
def test_what_would_run_code_is_not_read(make: type, name: str) -> None:
    assert attribute(make(), name) is NOTHING


def test_classes_are_known_without_asking_the_object() -> None:
    assert is_a(guarded(), Guarded)
    assert not is_a(Liar(), int)
    assert not is_a(dead_proxy(), Holder)
    assert is_a(True, int)


def test_names_of_classes_need_no_code_of_their_metaclass() -> None:
    assert (module_of(Guarded), name_of(Guarded)) == ("hostile_objects", "hostile_objects.Guarded")


def test_only_local_variables_in_a_plain_dict_are_read() -> None:
    class Mapping(dict[str, Any]):
        pass

    def here(value: int) -> dict[str, Any]:
        return local_variables(sys._getframe())

    assert here(3) == {"value": 3}
    names = Mapping(sys=sys, local_variables=local_variables)
    exec("found = local_variables(sys._getframe())", {}, names)
    assert names["found"] == {}


def test_a_module_that_is_not_imported_is_not_imported() -> None:
    assert loaded("threading", "Lock") is threading.Lock
    assert loaded("threading", "no such name") is None
    assert loaded("a_module_that_nobody_imports", "name") is None
