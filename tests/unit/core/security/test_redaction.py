"""Passwords, tokens and keys are masked; nothing else is."""

from __future__ import annotations

import json
import time

import pytest

from headway.core.security.redaction import (
    MASK,
    is_secret,
    masked,
    redact,
    redact_arguments,
    redact_assignments,
    redact_text,
)

SECRET = """
    password passwd db_password pwd user_pwd passphrase ssh-passphrase passcode pass secret client_secret SECRET_KEY
    aws_secret_access_key aws_access_key_id AWS_ACCESS_KEY_ID accessKeyId api_key apikey apiKey API-KEY x-api-key
    wandb_api_key openai_key hf_token HF_TOKEN token authToken access_token refresh_token id_token github.token
    Authorization auth http_auth bearer bearer_token cookie Set-Cookie session_cookie jwt jwt_token credentials
    gcp_credential creds private_key privateKey ssh_key account_key storage_key sas sas_token connection_string otp
    csrf_token sessionid pass_phrase passCode apitoken
""".split()

HARMLESS = """
    tokenizer tokenizer_name tokens num_tokens max_tokens max_new_tokens token_ids token_type_ids tokens_per_second
    pad_token eos_token bos_token mask_token cls_token decoder_start_token key keys sort_key cache_key primary_key
    key_padding_mask author authors num_passes pass_rate bypass compass lr batch_size path name url model secretary_of
    monkey keyboard attention_key_size
""".split()


@pytest.mark.parametrize("name", SECRET)
def test_values_of_secret_names_are_masked(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", [name for name in HARMLESS if not name.startswith("secret")])
def test_similar_names_of_machine_learning_are_not_masked(name: str) -> None:
    assert not is_secret(name)


def test_numbers_and_switches_are_no_secrets_unless_they_are_passwords() -> None:
    assert redact({"token": 5, "auth": True, "api_key": None, "pin_password": 1234}) == {
        "token": 5,
        "auth": True,
        "api_key": None,
        "pin_password": MASK,
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://user:hunter2@db:5432/x", f"postgres://user:{MASK}@db:5432/x"),
        ("postgres://user:hunt@er2@db/x", f"postgres://user:{MASK}@db/x"),
        ('{"url": "http://host:80", "mail": "me@example.org"}', '{"url": "http://host:80", "mail": "me@example.org"}'),
        ("redis://:hunter2@host", f"redis://:{MASK}@host"),
        ("https://x-access-token-12345@github.com/a", f"https://{MASK}@github.com/a"),
        ("https://host/p?token=abcdef&x=1", f"https://host/p?token={MASK}&x=1"),
        ("https://acc.blob/x?sv=1&sig=2", f"https://acc.blob/x?sv=1&sig={MASK}"),
        ("https://b/x?X-Amz-Signature=abc&v=2", f"https://b/x?X-Amz-Signature={MASK}&v=2"),
        ("Authorization: Bearer abcdefgh123", f"Authorization: Bearer {MASK}"),
        ("s3://bucket/key@version", "s3://bucket/key@version"),
        ("AKIAIOSFODNN7EXAMPLE", MASK),
        ("login with hf_abcdefghijklmnopqrst now", f"login with {MASK} now"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", MASK),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", MASK),
        ("mail me@example.org at 10:30", "mail me@example.org at 10:30"),
    ],
)
def test_secrets_are_recognized_by_form(text: str, shown: str) -> None:
    assert redact_text(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tool --password hunter2 --lr 1", f"tool --password {MASK} --lr 1"),
        (
            "Command '['tool', '--api-key', 'hunter2', '-x']' failed",
            f"Command '['tool', '--api-key', {MASK}, '-x']' failed",
        ),
        ("tool --token --flag --num-workers 2", "tool --token --flag --num-workers 2"),
    ],
)
def test_a_text_may_hold_a_command_line(text: str, shown: str) -> None:
    assert redact_assignments(text) == shown


def test_values_below_a_secret_name_are_secrets() -> None:
    asked = {
        "credentials": {"me": "hunter2", "on": True},
        "api_keys": {"hub": ["abcdef", {"x": "ghijkl"}]},
        "lr": {"a": 1},
    }
    assert redact(asked) == {
        "credentials": {"me": MASK, "on": True},
        "api_keys": {"hub": [MASK, {"x": MASK}]},
        "lr": {"a": 1},
    }


def test_nested_values_and_command_lines() -> None:
    asked = {"db": {"password": "p", "url": "pg://u:p@h"}, "args": ["--token", "abcd", "--lr", "0.1"], "n": [1, 2]}
    assert redact(asked) == {
        "db": {"password": MASK, "url": f"pg://u:{MASK}@h"},
        "args": ["--token", MASK, "--lr", "0.1"],
        "n": [1, 2],
    }
    line = ["train.py", "--api-key=abcdef", "db.password=x", "--token", "--flag", "--pwd", "abcdef", "lr=0.1"]
    shown = ["train.py", f"--api-key={MASK}", f"db.password={MASK}", "--token", "--flag", "--pwd", MASK, "lr=0.1"]
    assert list(redact_arguments(line)) == shown


@pytest.mark.parametrize(
    "part",
    ["x", "a.", "a--", "-a", "eyJ-", "eyJaaaaaaaa.", "a://", "a://b", "?a", "-----BEGIN ", "a='", "--a '", "--a "],
)
def test_masking_a_long_text_takes_time_in_proportion(part: str) -> None:
    """No text makes masking slow; the time is compared with the time for a text of a tenth of the length."""

    def seconds(length: int) -> float:
        text, began = part * (length // len(part)), time.thread_time()
        redact({"k": text})
        return time.thread_time() - began

    short = min(seconds(20_000) for _ in range(3))
    assert seconds(200_000) < 40 * short + 0.05


def test_masked_fields_can_be_named() -> None:
    assert list(masked(redact({"lr": 0.1, "db": [{"password": "hunter2"}], "run": "--token=abcdefgh"}))) == [
        "db[0].password",
        "run",
    ]


@pytest.mark.parametrize("depth", range(4))
def test_a_secret_in_json_inside_of_json_is_masked(depth: int) -> None:
    """As errors quote the body of a request."""
    text = json.dumps({"password": 'hun"ter\\22, x', "api_key": "abcdefgh", "lr": 0.1, "args": ["--token", "ijklmnop"]})
    for _ in range(depth):
        text = json.dumps({"body": text})
    masked_text = redact_assignments(f"refused: {text}")
    assert not any(part in masked_text for part in ("hun", "ter", "22", "abcdefgh", "ijklmnop"))
    assert "0.1" in masked_text


def test_a_secret_that_contains_its_quote_is_masked() -> None:
    assert redact_assignments(r"Config(password='it\'s me', lr=0.1)") == f"Config(password={MASK}, lr=0.1)"


@pytest.mark.parametrize(
    "text",
    ['password="' + "\\" * 50_000, 'password=\\"' + 'a"' * 50_000, "password='\\" * 20_000, "--token '" * 20_000],
)
def test_unfinished_quotes_take_no_long_time(text: str) -> None:
    began = time.process_time()
    redact_assignments(text)
    assert time.process_time() - began < 2
