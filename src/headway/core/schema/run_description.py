"""Descriptions of runs: the content of ``run.json``, with one entry per opening."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.schema.record import FORMAT, Record


@dataclass(frozen=True, kw_only=True)
class DatasetDescription(Record):
    """A dataset of a trainer.

    Args:
        rows: Number of its rows; None if unknown.
        source: Description of its source.
        fingerprint: Fingerprint of its files, their shuffling and their filters.
        lanes: Number of lanes of its order.
        window: Size of its shuffle window.
        filter_code: Fingerprint of the source of the functions that drop rows; None if there are none.
        unknown: Fields that only newer versions know.
    """

    rows: int | None
    source: str
    fingerprint: str
    lanes: int
    window: int
    filter_code: str | None = None


@dataclass(frozen=True, kw_only=True)
class Opening(Record):
    """One ``fit()`` of a run: when, where and with which settings. Secrets are omitted.

    Args:
        time: Time at which it started, in seconds since 1970.
        host: Name of the driver's host.
        pid: Process id of the driver.
        trainer: Class of the trainer.
        function: Name of the training function.
        code: Fingerprint of its source.
        train_loop_config: The function's config, as far as JSON can represent it.
        train_loop_config_type: Class of the config, if it was not a dict.
        train_loop_config_incomplete: Parts of the config that JSON cannot represent.
        scaling_config: Fields of the ScalingConfig.
        checkpoint_config: Fields of the CheckpointConfig.
        failure_config: Fields of the FailureConfig.
        datasets: Datasets, by name.
        argv: Arguments of the program.
        versions: Versions of packages that a run depends on.
        unknown: Fields that only newer versions know.
    """

    time: float | None = None
    host: str | None = None
    pid: int | None = None
    trainer: str | None = None
    function: str | None = None
    code: str | None = None
    train_loop_config: dict[str, object] | None = None
    train_loop_config_type: str | None = None
    train_loop_config_incomplete: tuple[str, ...] | None = None
    scaling_config: dict[str, object] = field(default_factory=dict)
    checkpoint_config: dict[str, object] = field(default_factory=dict)
    failure_config: dict[str, object] = field(default_factory=dict)
    datasets: dict[str, DatasetDescription] | None = None
    argv: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunDescription(Record):
    """A run and its openings.

    Args:
        format: Version of all contents of the run directory.
        id: Random id, in hexadecimal digits.
        name: Name of the directory when it was created.
        seed: Seed of all random numbers that are drawn for the run.
        created: Time of its creation, in seconds since 1970.
        openings: The settings of each ``fit()``, oldest first.
        unknown: Fields that only newer versions know.
    """

    format: int = FORMAT
    id: str
    name: str
    seed: int
    created: float
    openings: tuple[Opening, ...] = ()

    @property
    def newest(self) -> Opening:
        """The newest opening, or an empty one."""
        return self.openings[-1] if self.openings else Opening()
