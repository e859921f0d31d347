"""Fields of config objects, and names of those that JSON cannot represent."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import math
import pathlib
import types
from typing import Any, NamedTuple

import attrs
import pydantic
import pytest

from headway.core.config_fields import describe, fields_of


@dataclasses.dataclass(frozen=True, slots=True)
class Optimizer:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


@dataclasses.dataclass
class Config:
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    api_key: str = "sk-abcdefghijklmnop"
    note: str = dataclasses.field(default="mine", repr=False)


@attrs.define
class Attrs:
    lr: float = 0.1


class Pydantic(pydantic.BaseModel):
    lr: float = 0.1


class Named(NamedTuple):
    lr: float = 0.1


class Plain:
    def __init__(self) -> None:
        self.lr = 0.1


OBJECTS = [Attrs(), Pydantic(), Named(), Plain(), types.SimpleNamespace(lr=0.1), argparse.Namespace(lr=0.1)]


@pytest.mark.parametrize("config", [{"lr": 0.1}, types.MappingProxyType({"lr": 0.1}), *OBJECTS], ids=repr)
def test_configs_of_every_kind_have_fields(config: Any) -> None:
    assert fields_of(config) == {"lr": 0.1}
    assert describe(config).content == {"lr": 0.1}


@pytest.mark.parametrize("config", [1, "config.yaml", [1], (1,), {1}, Config, print, json, lambda: None, math.sin])
def test_other_objects_have_no_fields(config: Any) -> None:
    assert fields_of(config) is None


def test_nested_objects_are_shown_by_their_fields_with_secrets_masked() -> None:
    described = describe(Config())
    assert described.content == {"optimizer": {"lr": 0.1, "betas": [0.9, 0.99]}, "api_key": "***", "note": "***"}
    assert set(described.incomplete) == {"", "optimizer", "api_key"}


def test_a_plain_dict_is_kept_completely() -> None:
    config = {"lr": 0.1, "layers": [1, 2], "model": {"name": "small", "dropout": None}, "decay": math.inf}
    described = describe(config)
    assert (described.content, described.incomplete) == (config, ())


def test_incomplete_fields_are_named() -> None:
    config = {"folder": pathlib.Path("/x"), "model": {"token": "abcdefgh", "size": 3}, "url": "s3://me:hunter2@host/x"}
    described = describe(config)
    assert described.content["model"] == {"token": "***", "size": 3}
    assert set(described.incomplete) == {"folder", "model.token", "url"}


class Colour(enum.Enum):
    RED = 1


class Grumpy:
    def __repr__(self) -> str:
        raise ValueError("do not look")


class Trap:
    def __init__(self) -> None:
        self.x = 1

    @property
    def __attrs_attrs__(self) -> Any:
        raise ValueError("do not look")


def endless() -> dict[str, Any]:
    config: dict[str, Any] = {"x": 1}
    config["self"] = config
    return config


def deep() -> dict[str, Any]:
    config: dict[str, Any] = {}
    for _ in range(5000):
        config = {"a": config}
    return config


@pytest.mark.parametrize(
    "config", [{"a": Grumpy()}, {"a": Colour.RED}, {"a": 10**5000}, endless(), deep(), {"a": Trap()}], ids=lambda _: ""
)
def test_any_config_becomes_json(config: Any) -> None:
    described = describe(config)
    assert len(json.dumps(described.content)) < 5000
    assert described.incomplete
