"""What a caller may ask of an engine, as one immutable value. Knows no torch and reads no file.

Values are taken as given here; the loader and the engine check them against the model and the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["auto", "fused", "offload", "cpu", "hybrid"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to load and run a model. None means: the engine chooses.

    `experts` is the room for expert slots: a count ("96"), a size ("2GiB") or a fraction of all experts
    ("0.5"). `vram` and `ram` are sizes. `context` is in tokens, prompt and reply together. `chunk_tokens`
    bounds the prompt tokens of one step. `reference` leaves out, on a device, what this engine adds to the
    common way: chunks of 8,192 tokens that stream every expert of every layer through a double buffer and
    keep none of them, least recently used slots, whole experts on either side, no look-ahead, no backfill.
    `keep_prefixes`: what agents' prompts begin with is kept in files for later runs, under `prefix_root` if
    that is given. `anchors` is the host
    memory for kept prompts: a count of states to resume at ("16"), or a size for states and pages together
    ("4GiB"); with "0", nothing of a prompt is kept.
    `verify_anchors`: this part of the hits, 0 to 1, is computed cold as well and compared.
    `verify_weights`: what is read is held against digests, where the format has them (FTW). `readers`:
    threads that read experts.
    """

    model: str = "demo"
    device: str = "auto"
    context: int | None = None
    experts: str | None = None
    mode: Mode = "auto"
    seed: int = 0
    threads: int | None = None
    max_running: int = 8
    max_waiting: int = 64
    chunk_tokens: int | None = None
    vram: str | None = None
    ram: str | None = None
    constrain_tools: Literal["auto", "required"] | None = None
    reference: bool = False
    keep_prefixes: bool = False
    prefix_root: str | None = None
    anchors: str | None = None
    verify_anchors: float = 0.0
    verify_weights: bool = False
    readers: int | None = None
