"""Constructors of trainers: each framework adds its config, and every trainer takes the same other options."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Unpack

import pytest

from headway.core.config import ScalingConfig
from headway.core.errors import ConfigError
from headway.frameworks.base import BackendConfig
from headway.frameworks.torch_config import TorchConfig
from headway.train import DataConfig, DataParallelTrainer
from headway.train.torch import TorchTrainer
from headway.train.trainer import TrainerOptions, TrainingFunction, checked, trainer_options


@dataclass(frozen=True)
class OtherConfig(BackendConfig):
    size: int = 1


class OtherTrainer(DataParallelTrainer):
    """A trainer for another framework: nothing but its config has to be written."""

    @trainer_options
    def __init__(
        self,
        train_loop_per_worker: TrainingFunction,
        *,
        other_config: OtherConfig | None = None,
        **options: Unpack[TrainerOptions],
    ) -> None:
        """Declare a run.

        Args:
            train_loop_per_worker: The function.
            other_config: The framework's config.
        """
        config = checked("other_config", other_config, OtherConfig) or OtherConfig()
        super().__init__(train_loop_per_worker, backend_config=config, **options)


@pytest.mark.parametrize(
    ("trainer", "name", "kind"),
    [
        (DataParallelTrainer, "backend_config", BackendConfig),
        (TorchTrainer, "torch_config", TorchConfig),
        (OtherTrainer, "other_config", OtherConfig),
    ],
)
def test_a_signature_shows_every_option_with_its_type(
    trainer: type[DataParallelTrainer], name: str, kind: type[BackendConfig]
) -> None:
    parameters = inspect.signature(trainer).parameters
    assert list(parameters) == [
        "train_loop_per_worker",
        "train_loop_config",
        name,
        *(option for option in TrainerOptions.__annotations__ if option != "train_loop_config"),
    ]
    assert parameters[name].annotation == kind | None
    assert parameters["scaling_config"].annotation == ScalingConfig | None
    assert inspect.signature(trainer.__init__).return_annotation is None


@pytest.mark.parametrize("trainer", [DataParallelTrainer, TorchTrainer, OtherTrainer])
def test_every_option_is_documented(trainer: type[DataParallelTrainer]) -> None:
    documented = inspect.getdoc(trainer.__init__) or ""
    for name in inspect.signature(trainer).parameters:
        assert f"    {name}: " in documented


def test_an_unknown_keyword_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match="OtherTrainer takes no 'scaling': did you mean 'scaling_config'"):
        OtherTrainer(print, scaling=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="OtherTrainer takes no 'torch_config'"):
        OtherTrainer(print, torch_config=TorchConfig())  # type: ignore[call-arg]


def test_storage_filesystem_belongs_to_the_run_config() -> None:
    with pytest.raises(ConfigError, match="takes no 'storage_filesystem': pass it to RunConfig, together with storage"):
        TorchTrainer(print, storage_filesystem=None)  # type: ignore[call-arg]


def test_a_config_of_another_framework_is_refused() -> None:
    with pytest.raises(ConfigError, match="other_config must be a OtherConfig, got TorchConfig"):
        OtherTrainer(print, other_config=TorchConfig())  # type: ignore[arg-type]


def test_an_option_that_is_none_counts_as_not_given() -> None:
    nothing: TrainerOptions = {"scaling_config": None, "metadata": None, "datasets": None, "run_config": None}
    shared = DataConfig()
    with_nothing = DataParallelTrainer(print, dataset_config=shared, **nothing)
    assert vars(with_nothing) == vars(DataParallelTrainer(print, dataset_config=shared))
