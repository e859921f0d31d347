"""Barriers and broadcasts: all ranks reach the same point, or the run reports which rank cannot. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.messages import BarrierArrival


@dataclass(frozen=True, slots=True)
class BarrierComplete:
    """Every rank has arrived."""

    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class BarrierBroken:
    """The barrier can never be complete."""

    reason: str


@dataclass(frozen=True, slots=True)
class Barriers:
    """The barrier in progress, if any. The next one starts only after all ranks were released from this one."""

    num_workers: int
    arrived: tuple[tuple[int, BarrierArrival], ...] = ()
    ended: frozenset[int] = frozenset()

    def arrive(self, rank: int, arrival: BarrierArrival) -> tuple[Barriers, BarrierComplete | BarrierBroken | None]:
        return Barriers(self.num_workers, (*self.arrived, (rank, arrival)), self.ended)._settled()

    def end(self, rank: int) -> tuple[Barriers, BarrierComplete | BarrierBroken | None]:
        return Barriers(self.num_workers, self.arrived, self.ended | {rank})._settled()

    def _settled(self) -> tuple[Barriers, BarrierComplete | BarrierBroken | None]:
        if not self.arrived:
            return self, None
        first_rank, first = self.arrived[0]
        for rank, arrival in self.arrived:
            if (arrival.kind, arrival.index) != (first.kind, first.index):
                return self, BarrierBroken(
                    f"rank {first_rank} waits in {first.kind} while rank {rank} waits in {arrival.kind}"
                )
        if self.ended:
            return self, BarrierBroken(
                f"rank {first_rank} waits in {first.kind}, which rank {min(self.ended)} will never reach: "
                "its function has returned"
            )
        if len(self.arrived) < self.num_workers:
            return self, None
        data = next(arrival.data for rank, arrival in self.arrived if rank == 0)
        return Barriers(self.num_workers, (), self.ended), BarrierComplete(first.index, data)
