"""What is remembered of an attempt until it has failed."""

from __future__ import annotations

from pathlib import Path

from headway.control.narration.failure_recorder import Witness
from headway.core.messages import Failed, Pulse, Stacks
from headway.core.security.signing import Key


def test_where_a_rank_raised_counts_not_what_it_did_while_it_left(tmp_path: Path) -> None:
    witness = Witness(tmp_path, b"", Key(b"key"), print)
    witness.heard(1, Failed(kind="ValueError", message="bad", traceback="", stacks="raised here"))
    witness.heard(1, Stacks(index=-1, pulse=Pulse(), main=(), text="in an exit handler"))
    witness.heard(0, Stacks(index=-1, pulse=Pulse(), main=(), text="in backward"))
    assert witness._stacks == {0: "in backward", 1: "raised here"}
