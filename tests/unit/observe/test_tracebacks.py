"""Tracebacks show the user's frames in full and fold library frames."""

from __future__ import annotations

import pytest

from headway.observe.tracebacks import folded, full


def test_library_frames_are_folded_and_causes_kept() -> None:
    import json

    def users_code() -> None:
        try:
            json.loads("{")
        except ValueError as error:
            raise RuntimeError("cannot read the config") from error

    with pytest.raises(RuntimeError) as caught:
        users_code()
    text = folded(caught.value)
    assert "frames in json, last decoder.py" in text
    assert 'json.loads("{")' in text
    assert text.index("JSONDecodeError") < text.index("RuntimeError: cannot read the config")
    assert len(text.splitlines()) < len(full(caught.value).splitlines())


def test_an_error_without_a_frame_of_the_user_is_shown_in_full() -> None:
    from headway.core.wire import WireError, decode

    with pytest.raises(WireError) as caught:
        decode(1, memoryview(b""))
    stripped = caught.value.with_traceback(None)
    assert folded(stripped) == full(stripped)
