"""Redaction of passwords, tokens and keys in text that is written to files or shown.

Secrets are recognized by name (``api_key``, ``--token``, a cookie in a header) or by form (a password in a URL, a token
with its issuer's prefix). Similar names that are common in machine learning (``tokenizer``, ``max_tokens``,
``pad_token``, ``sort_key``) are not masked.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MASK = "***"

# Names in snake case; see _words. For names in _ALWAYS every value is a secret, for names in _TEXT_ONLY only text.
_ALWAYS = re.compile(
    r"passw|pass_?phrase|pass_?code|(^|_)(pass|pwd|pw)$|(^|_)(jwt|otp)($|_)|secret|credential|(^|_)creds?($|_)|private_?key"
)
_TEXT_ONLY = re.compile(
    r"(api|access|account|auth|client|consumer|encryption|license|master|service|session|shared|signing|ssh|storage|"
    r"subscription|webhook|wandb|openai|anthropic|hf)_?key(_id)?s?$|^key_id$|(^|_)(tokens?_)?auth$|authorization|bearer|"
    r"cookie|(^|_)(sas|csrf|xsrf|sessionid|session_id|connection_string|conn_str)($|_)|(^|_|api|auth|access)token$"
)
_NO_SECRET = re.compile(
    r"(^|_)(pad|eos|bos|unk|mask|cls|sep|special|prompt|image|audio|video|vision|text|next|last|first|start|end|stop|"
    r"begin|final|num|n|max|min|per|each|blank|newline|word|sub|new|forced|decoder|masked|current|prev|previous|target|"
    r"source|src|tgt|input|output|label|class|register|distillation|query|time)_token$"
)
_LONGEST = 200  # number of characters at the end of a name that are checked
_SHORTEST = 4  # minimum number of characters of a secret; "yes" and "<s>" are not secrets

_IN_TEXT = [
    (re.compile(r"""(?<![a-z0-9+.\-])([a-z][a-z0-9+.\-]*+://[^\s/:@]*):[^\s/"']+@""", re.I), rf"\1:{MASK}@"),
    (re.compile(r"(?<![a-z0-9+.\-])([a-z][a-z0-9+.\-]*+://)[^\s/:@]{16,}@", re.I), rf"\1{MASK}@"),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=\-]{8,}"), rf"\1 {MASK}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", re.S), MASK),
    (re.compile(r"(?<![\w\-])eyJ[\w\-]{8,}+\.[\w\-]{8,}+\.[\w\-]*"), MASK),
    (
        re.compile(
            r"\b(hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w\-]{16,}|sk-[\w\-]{16,}|"
            r"xox[abeprs]-[\w\-]{10,}|(AKIA|ASIA)[0-9A-Z]{16}|AIza[\w\-]{30,}|ya29\.[\w\-]{20,}|npm_[A-Za-z0-9]{30,}|"
            r"pypi-[\w\-]{30,})"
        ),
        MASK,
    ),
]
_PARAMETER = re.compile(r"([?&])([\w.\-]+)=([^&\s'\"]+)")
_SIGNATURE = re.compile(
    r"^(sig|signature|x_(amz|goog)_(signature|credential|security_token))$"
)  # parameters of a signed URL
# Quotes may be escaped, once or several times, in JSON or a repr inside of another text.
_NAME = re.compile(r"""(?<![\w.])(?<![\w.]-)([A-Za-z_][\w.\-]{0,200}+)\\*['"]?\s*[=:]\s*""")
_QUOTED = r"""(?P<escape>\\*)(?P<quote>["'])(?:[^\\"']|(?!(?P=escape)(?P=quote))(?:\\+.|["']))*+(?P=escape)(?P=quote)"""
_VALUE = re.compile(rf"""{_QUOTED}|[^\s,;&)\]}}]+""", re.S)
_FLAG = re.compile(
    rf"""(?<![\w\-])(--[A-Za-z][\w.\-]{{0,200}}+)(\\*['"]?,?\s{{1,8}}+)({_QUOTED}|[^\s,;&)\]}}\-][^\s,;&)\]}}]*+)""",
    re.S,
)


@functools.lru_cache(maxsize=4096)
def _words(name: str) -> str:
    """The name in snake case: ``api_key`` for ``apiKey`` and ``API-KEY``."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")


def is_secret(name: object, value: object = "secret") -> bool:
    """Whether a value with this name is a secret.

    >>> is_secret("wandb_api_key"), is_secret("AWS_ACCESS_KEY_ID"), is_secret("tokenizer"), is_secret("max_tokens", 512)
    (True, True, False, False)
    """
    if not isinstance(name, str) or value is None or isinstance(value, bool):
        return False
    words = _words(name[-_LONGEST:])
    if _ALWAYS.search(words):
        return True
    is_text = isinstance(value, str | bytes) and len(value) >= _SHORTEST
    return is_text and bool(_TEXT_ONLY.search(words)) and not _NO_SECRET.search(words)


def redact_text(text: str) -> str:
    """Mask secrets in a text that are recognized by form, or as parameters of a URL.

    >>> redact_text("postgres://me:hunter2@db/x?sslmode=on&token=abcdefgh")
    'postgres://me:***@db/x?sslmode=on&token=***'
    """
    for pattern, mask in _IN_TEXT:
        text = pattern.sub(mask, text)
    return _PARAMETER.sub(_redact_parameter, text)


def _redact_parameter(found: re.Match[str]) -> str:
    mark, name, value = found.groups()
    hidden = is_secret(name, value) or _SIGNATURE.match(_words(name))
    return f"{mark}{name}={MASK if hidden else value}"


def redact_assignments(text: str) -> str:
    """Like :func:`redact_text`, but also mask ``name=value`` in a ``repr`` or a command line.

    >>> redact_assignments("Config(lr=0.1, api_key='abcdefgh')")
    'Config(lr=0.1, api_key=***)'
    """
    text = _FLAG.sub(_redact_flag, redact_text(text))
    parts, done, position = [], 0, 0
    while (named := _NAME.search(text, position)) is not None:
        position = named.end()  # the value may itself be a name: "refused: password=x"
        value = _VALUE.match(text, position) if is_secret(named[1]) else None
        if value is not None and is_secret(named[1], value[0]):
            parts += [text[done:position], MASK]
            done = position = value.end()
    return "".join([*parts, text[done:]])


def _redact_flag(found: re.Match[str]) -> str:
    flag, between, value = found.group(1, 2, 3)
    return f"{flag}{between}{MASK if is_secret(flag, value) else value}"


def redact(value: Any, name: object = "") -> Any:
    """Mask secrets in nested dicts and lists of JSON values.

    >>> redact({"lr": 0.1, "db": {"password": "hunter2"}, "args": ["--token", "abcdefgh", "--lr=1"]})
    {'lr': 0.1, 'db': {'password': '***'}, 'args': ['--token', '***', '--lr=1']}
    """
    if is_secret(name, value) and not isinstance(value, Mapping | list | tuple):
        return MASK
    if isinstance(value, Mapping):
        whole = is_secret(name)  # {"credentials": {"me": "hunter2"}}: only the outer name shows that it is secret
        return {key: redact(item, name if whole else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(redact_arguments([redact(item, name) for item in value]))
    return redact_assignments(value) if isinstance(value, str) else value


def redact_arguments(arguments: Sequence[Any]) -> Iterator[Any]:
    """Mask secrets in a command line: ``--token x``, ``--token=x``, ``db.password=x``."""
    flag = ""
    for argument in arguments:
        if not issubclass(type(argument), str):  # isinstance() could run the object's own code
            yield argument
        elif flag and is_secret(flag, argument) and not argument.startswith("-"):
            yield MASK
        else:
            yield redact_assignments(argument)
        flag = argument.lstrip("-") if issubclass(type(argument), str) and argument.startswith("-") else ""


def masked(value: Any, name: str = "") -> Iterator[str]:
    """Yield the names of the masked parts of a redacted value.

    >>> list(masked(redact({"lr": 0.1, "db": {"password": "hunter2"}, "cmd": "--token=abcdefgh"})))
    ['db.password', 'cmd']
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from masked(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from masked(item, f"{name}[{index}]")
    elif isinstance(value, str) and MASK in value:
        yield name
