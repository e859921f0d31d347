"""The function gets the very config it was given: a dict, a dataclass, any object with fields."""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pydantic
import pytest

from headway import train
from headway.train.torch import TorchTrainer
from support import fit, python, write_script


@dataclasses.dataclass(frozen=True, slots=True)
class Optimizer:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


@dataclasses.dataclass(frozen=True)
class Config:
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    api_key: str = "sk-abcdefghijklmnop"


@attrs.frozen
class Attrs:
    lr: float = 0.1


class Pydantic(pydantic.BaseModel):
    lr: float = 0.1


class Named(NamedTuple):
    lr: float = 0.1


def opening(result: train.Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(result.path, "run.json").read_text())["openings"][-1]
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataclass_arrives_as_itself_and_its_fields_are_written_down(num_workers: int) -> None:
    def train_func(config: Config) -> bool:
        train.report({"lr": config.optimizer.lr})
        return isinstance(config, Config) and config == Config()

    result = TorchTrainer(train_func, train_loop_config=Config(), scaling_config=train.ScalingConfig(num_workers)).fit()
    assert result.return_values == [True] * max(1, num_workers)
    assert result.config == {"optimizer": {"lr": 0.1, "betas": [0.9, 0.99]}, "api_key": "***"}
    assert opening(result)["train_loop_config_type"] == f"{__name__}.Config"
    assert "abcdefghijklmnop" not in Path(result.path, "run.json").read_text()


@pytest.mark.parametrize(
    "config",
    [Attrs(), Pydantic(), Named(), types.SimpleNamespace(lr=0.1), argparse.Namespace(lr=0.1)],
    ids=lambda config: type(config).__name__,
)
def test_other_objects_arrive_as_themselves(config: Any) -> None:
    def train_func(received: Any) -> bool:
        return type(received) is type(config) and received.lr == config.lr

    result = train.DataParallelTrainer(
        train_func, train_loop_config=config, scaling_config=train.ScalingConfig(1)
    ).fit()
    assert result.return_value is True
    assert result.config == {"lr": 0.1}


def test_a_dataclass_of_the_script_itself_survives_a_restart(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import dataclasses, os, sys
        from pathlib import Path
        from headway import train

        @dataclasses.dataclass(frozen=True, slots=True)
        class Config:
            folder: Path
            lr: float = 0.1

        def train_func(config: Config) -> str:
            assert isinstance(config, Config)
            mark = config.folder / "tried"
            if not mark.exists():
                mark.touch()
                os._exit(1)
            return type(config).__name__

        if __name__ == "__main__":
            run = train.RunConfig(storage_path=sys.argv[1], failure_config=train.FailureConfig(1))
            config = Config(Path(sys.argv[1]))
            trainer = train.DataParallelTrainer(train_func, train_loop_config=config, run_config=run)
            print(trainer.fit().return_value)
        """,
    )
    done = python(script, tmp_path)
    assert done.stdout.splitlines()[-1:] == ["Config"], done.stderr


def test_restore_asks_for_what_the_run_does_not_keep(tmp_path: Path) -> None:
    def train_func(config: Any) -> None:
        train.report({"a": 1})

    def fit(name: str, config: Any) -> str:
        run = train.RunConfig(name=name, storage_path=tmp_path)
        return train.DataParallelTrainer(train_func, train_loop_config=config, run_config=run).fit().path

    restore = train.DataParallelTrainer.restore
    restore(fit("dict", {"lr": 0.1}), train_func).fit()
    path = fit("object", Config())
    with pytest.raises(train.ConfigError, match=r"pass train_loop_config to restore\(\) again: it was a .*Config"):
        restore(path, train_func)
    assert restore(path, train_func, train_loop_config=Config()).fit().state == "FINISHED"
    with pytest.raises(train.ConfigError, match=r"does not store secrets and objects, such as 'model\.api_key'"):
        restore(fit("secret", {"model": {"api_key": "abcdefgh"}}), train_func)


def test_a_callback_sees_the_object() -> None:
    seen: list[Any] = []

    class Look(train.UserCallback):
        def before_run(self, run_context: train.TrainRunContext) -> None:
            seen.append(run_context.train_loop_config)

    train.DataParallelTrainer(
        lambda config: None, train_loop_config=Config(), run_config=train.RunConfig(callbacks=[Look()])
    ).fit()
    assert seen == [Config()]


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (
            "config.yaml",
            "train_loop_config must be a dict, a dataclass instance or another object with fields, got 'config.yaml'",
        ),
        (Config, "train_loop_config must be an instance, got the class Config: call it"),
    ],
)
def test_what_is_no_config_is_refused(config: Any, complaint: str) -> None:
    with pytest.raises(train.ConfigError, match=complaint):
        train.DataParallelTrainer(lambda config: None, train_loop_config=config).fit()


def test_a_decorated_function_gets_the_config() -> None:
    def decorated(function: Any) -> Any:
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    @decorated
    def with_config(config: dict[str, Any]) -> float:
        return float(config["lr"])

    @decorated
    def without() -> str:
        return "none"

    assert fit(with_config, num_workers=2, config={"lr": 0.1}).return_values == [0.1, 0.1]
    assert fit(without, num_workers=2).return_values == ["none", "none"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_config_that_the_function_does_not_take_is_reported(
    num_workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def nothing() -> None: ...

    def names(**named: Any) -> None: ...

    def default(config: Any = None) -> None: ...

    for function in (nothing, names):
        fit(function, num_workers, config={"lr": 0.1})
        told = f"train_loop_config is ignored: '{function.__name__}' takes no positional argument"
        assert capfd.readouterr().err.count(told) == 1
    for function, config in ((nothing, None), (nothing, {}), (default, {"lr": 0.1})):
        fit(function, num_workers, config=config)
        assert "not used" not in capfd.readouterr().err
