"""Prefill and decode apart: some replicas read prompts, the others make tokens.

Nothing interrupts decoding then; a prompt's keys and values go from one replica to the
other through the network (Zhong et al., "DistServe", OSDI 2024, sections 3 and 4). Each
pool serves requests at a rate of its own, and the slower one decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.inference.estimate import InferenceEstimate, token_bytes
from costmodel.machine import shares
from profiles.errors import Contradiction


@dataclass(frozen=True, kw_only=True)
class Pools:
    """So many of an estimate's GPUs read prompts, in whole replicas."""

    plain: InferenceEstimate
    prefill_gpus: int

    @property
    def replica(self) -> int:
        """GPUs of one."""
        return self.plain.asked.choice.tp * self.plain.asked.choice.pp

    @property
    def prefill_per_s(self) -> float:
        """Prompts that the first pool reads a second."""
        return self._prompts_per_s * self.prefill_gpus / self.replica

    @property
    def decode_per_s(self) -> float:
        """Answers that the second one makes a second."""
        rest = self.plain.gpus - self.prefill_gpus
        return self._answers_per_s * rest / self.replica

    @property
    def requests_per_s(self) -> float:
        return min(self.prefill_per_s, self.decode_per_s)

    @property
    def together_per_s(self) -> float:
        """Requests a second where every replica does both."""
        plain = self.plain
        return plain.asked.job.global_batch / plain.total_s

    @property
    def balanced_gpus(self) -> int:
        """GPUs of the first pool with which most requests are served."""
        one = self.replica
        return max(
            range(one, self.plain.gpus, one),
            key=lambda size: Pools(plain=self.plain, prefill_gpus=size).requests_per_s,
        )

    @property
    def moved_bytes(self) -> float:
        """Keys and values of one prompt."""
        return token_bytes(self.plain.asked) * self.plain.asked.prompt_len

    @property
    def moved_s(self) -> float:
        """Seconds that one prompt's take through the network, each tp rank's its own;
        the second token waits so long."""
        asked = self.plain.asked
        tp, machine = asked.choice.tp, asked.machine
        sent = machine.send(
            np.asarray(self.moved_bytes / tp),
            far=np.asarray(True),
            shares=shares(np.asarray(tp), machine.island),
        )
        return float(np.max(sent.seconds))

    @property
    def _prompts_per_s(self) -> float:
        """Of one replica, whose stages all have one at work."""
        return self.plain.prompts_together / float(self.plain.prefill.slowest_s)

    @property
    def _answers_per_s(self) -> float:
        asked = self.plain.asked
        sequences = asked.micro_batches * asked.choice.micro_batch
        seconds = self.plain.generation_s
        return sequences / seconds if seconds else float("inf")

    def document(self) -> dict[str, Any]:
        """A member of what `simulate --inference --json` prints."""
        return {
            "prefill_gpus": self.prefill_gpus,
            "decode_gpus": self.plain.gpus - self.prefill_gpus,
            "prefill_requests_per_s": self.prefill_per_s,
            "decode_requests_per_s": self.decode_per_s,
            "requests_per_s": self.requests_per_s,
            "requests_per_s_together": self.together_per_s,
            "balanced_prefill_gpus": self.balanced_gpus,
            "kv_cache_bytes_moved": self.moved_bytes,
            "kv_cache_transfer_s": self.moved_s,
        }


def pools(plain: InferenceEstimate, prefill_gpus: int) -> Pools:
    """The same GPUs in two pools; raises Contradiction where they are no replicas."""
    found = Pools(plain=plain, prefill_gpus=prefill_gpus)
    one, most = found.replica, plain.gpus
    if prefill_gpus % one or not 0 < prefill_gpus < most:
        raise Contradiction(
            f"--prefill-gpus {prefill_gpus}: each pool has whole replicas of tp x pp = "
            f"{one} GPUs, one at least; of {most} GPUs, give a multiple of {one} "
            f"from {one} to {most - one}"
            if most > one
            else f"--prefill-gpus {prefill_gpus}: {most} GPUs are one replica; give "
            "more --gpus, for one that reads prompts and one that decodes"
        )
    return found
