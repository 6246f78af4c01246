"""What records of benches begin with, so that figures can be compared later. Knows no bench."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ftagent import __version__

if TYPE_CHECKING:
    from ftagent.engine.machine.probe import Machine


def record_head(name: str, machine: Machine) -> dict[str, Any]:
    """What every record of a bench begins with."""
    return {
        "bench": name,
        "version": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            **asdict(machine.cpu),
            "memory": asdict(machine.memory),
            "gpus": [asdict(gpu) for gpu in machine.gpus],
        },
    }
