"""The edit scripts on a real model whose pages hold latents, with transformers as the cold twin."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ftagent.engine.load import load_runner
from ftagent.engine.options import EngineOptions
from tests.engine.context.replays import Book, Talk, new_part
from tests.engine.context.test_edit_scripts import Script
from tests.engine.context.test_tiers import tiered
from tests.engine.models.tiny import Oracle
from tests.support.toy import VOCAB

SMALL = {"vocab_size": VOCAB, "num_hidden_layers": 2}


class LatentScript(Script):
    """Pages of 64 tokens; few of them, or more than are ever used."""

    def __init__(self, seed: int, family: str, directory: Path, *, ample: bool) -> None:
        self.dice = dice = random.Random(seed)
        self.kind = "pages"
        self.ample = ample
        self.oracle = Oracle(family, directory, seed, SMALL)
        few = None if ample else "1GiB"  # with a limit, there are pages for one context and no more
        context = dice.choice([700, 1000])
        runner = load_runner(directory, EngineOptions(threads=1, context=context, vram=few, max_running=4))
        self.bench = tiered(
            runner,
            contents=runner.contents,
            host=0 if ample else 1 << 20,
            anchors=10_000 if ample else dice.choice([1, 8, 20]),
            chunk_tokens=dice.choice([16, 64, 512]),
            max_running=4,
        )
        self.book = Book(stateful=False)
        self.system, self.tools = new_part("system", dice, 2, 60), new_part("tools", dice, 2, 80)
        self.talks = [Talk.start(dice, self.system, self.tools) for _ in range(dice.randrange(1, 4))]
        self.reused = 0

    def is_cold(self, prompt: list[int], found: list[int]) -> bool:
        """Each token is the best one behind all before it."""
        if not found:
            return True
        best = self.oracle.logits([*prompt, *found[:-1]]).argmax(dim=-1)
        return best[len(prompt) - 1 :].tolist() == found


@pytest.mark.parametrize("ample", [True, False])
@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v32"])
@pytest.mark.parametrize("seed", range(3))
def test_warm_equals_cold_and_a_turn_costs_what_is_new(
    seed: int, family: str, ample: bool, tmp_path: Path
) -> None:
    script = LatentScript(seed, family, tmp_path, ample=ample)
    script.run(8)
    assert script.reused or not ample
