"""The tree of errors: drawn in the module as it is, printable, and complete after pickling."""

from __future__ import annotations

import pickle
import re

from headway.core import errors


def all_errors() -> dict[str, type[errors.HeadwayError]]:
    members = vars(errors).values()
    return {each.__name__: each for each in members if isinstance(each, type) and issubclass(each, errors.HeadwayError)}


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"([│ ├└─]*)([A-Z]\w+)(?: \((\w+)\))?( {2,}|$)", line):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            drawn[found[2]] = path[depth - 1] if depth else "Exception"
            if found[3]:
                assert found[3] in {base.__name__ for base in all_errors()[found[2]].__mro__}
    assert drawn == {name: kind.__mro__[1].__name__ for name, kind in all_errors().items()}


def test_no_error_prints_control_characters() -> None:
    for kind in all_errors().values():
        assert str(kind("name \x1b]0;title\x07\nmore")) == "name \\x1b]0;title\\x07\nmore"


def test_errors_of_a_run_keep_their_fields_when_pickled() -> None:
    info = errors.PreemptionInfo(deadline_ms=1, preempted_node_to_ranks={"a": [1, 0]})
    error = errors.PreemptionError("received SIGTERM", info, drain_timed_out=True)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.preemption_info.preempted_ranks, copy.drain_timed_out) == (str(error), [0, 1], True)
    group = pickle.loads(pickle.dumps(errors.WorkerGroupError("failed", {1: ValueError("x")})))
    assert str(group.worker_failures[1]) == "x"
    failure = errors.StorageError("read-only")
    assert errors.ControllerError(failure).controller_failure is failure
