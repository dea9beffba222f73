"""The numbers of kimi-mini: Kimi-K2.6's architecture, everything smaller but the sizes of an attention head.

vLLM's MLA kernel for CPUs wants those as they are (512 + 64, 128, 128). The whole checkpoint must stay below 24 MB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from halfbyte.families.kimi_k25.geometry import Geometry

MINI = Geometry(
    layers=6,
    dense_layers=1,
    experts=32,
    active_experts=4,
    width=256,
    dense_width=512,
    expert_width=96,
    vocabulary=3072,
    heads=4,
    q_rank=128,
    vision_blocks=2,
    vision_width=64,
    vision_mlp_width=128,
    vision_grid=16,
)
# For tests of the scripts: a hundredth of the work.
TOY = replace(
    MINI, layers=2, experts=4, active_experts=2, width=64, dense_width=64, expert_width=32, heads=1, q_rank=32
)
VISION_HEADS = 2
ROUTED_SCALE = 2.5
NORM_EPS = 1e-5
CONTEXT = 4096
SPECIAL_TOKENS = 64  # the last ids of the vocabulary; Kimi reserves its last 256


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions, stretched by YaRN as Kimi's are: slow frequencies are slowed down, fast ones are left."""

    theta: float = 50000.0
    factor: float = 4.0
    original_context: int = 1024
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def frequencies(self, width: int) -> list[float]:
        """Return the angle per position of every pair of dimensions."""
        low = max(math.floor(self._pair_that_turns(self.beta_fast, width)), 0)
        high = min(math.ceil(self._pair_that_turns(self.beta_slow, width)), width - 1)
        angles: list[float] = []
        for pair in range(width // 2):
            fast = self.theta ** (-2 * pair / width)
            slowed = min(max((pair - low) / max(high - low, 0.001), 0.0), 1.0)
            angles.append(fast / self.factor * slowed + fast * (1 - slowed))
        return angles

    def softmax_scale(self, head_width: int) -> float:
        """Return what attention scores are multiplied with: YaRN sharpens them."""
        sharper = 0.1 * math.log(self.factor) + 1.0
        return head_width**-0.5 * sharper * sharper

    def _pair_that_turns(self, times: float, width: int) -> float:
        """Which pair of dimensions turns so many times within the original context."""
        return width * math.log(self.original_context / (times * 2 * math.pi)) / (2 * math.log(self.theta))


ROPE = Rope()
