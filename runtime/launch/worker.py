"""One process of a run: `python -m runtime.launch.worker request.json`, under the
launcher."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from costmodel.operators import GradientCompression
from costmodel.schedule import Action
from costmodel.simulation import fingerprint as job_fingerprint
from costmodel.simulation import job_of, parse_file, trace_named
from profiles.commandline import left_words
from profiles.errors import InvalidFile
from profiles.files import write_text
from profiles.models import ModuleSpec
from profiles.units import MiB
from runtime.checkpoint import (
    Retention,
    Saver,
    first_rank,
    forget_emergency,
    latest,
    layout_hash,
    restore,
    salvaged,
)
from runtime.data import Source, fingerprint, source
from runtime.launch.divergence import Rollbacks, wrong
from runtime.launch.failures import status
from runtime.launch.history import History
from runtime.launch.processes import Worker, process_group, restarts
from runtime.launch.rescue import Rescue
from runtime.launch.run import Request, question, require_agreed
from runtime.models import decoder_of
from runtime.observe import (
    Journal,
    Observed,
    StepProfiler,
    everyone,
    journals,
    measured_parts,
    untimed_steps,
    write_actions,
)
from runtime.trace import resident_bytes
from runtime.train import ActivationBits, Late, Setup, StepResult, Trainer, samples
from runtime.weights import exported, load_weights, save_weights, weights_of

ENDING_S: Final = 5.0  # that a checkpoint under way has to end after a failure


class Run:
    """Trains from the first step (or the newest checkpoint) to the last."""

    def __init__(self, request: Request, worker: Worker) -> None:
        self.request = request
        file = parse_file(request.layout)
        trace_named(request.model, file)
        self.job, self.layout = job_of(file), file.layout
        self.layout_hash = layout_hash(request.layout)
        self.rank, self.device = worker.rank, worker.device
        self.journals: list[Journal] = []
        self.held_out: Source | None = None
        self.rollbacks = Rollbacks()
        self.history = History(request.history if self.rank == 0 else None)
        self.rescue: Rescue | None = None
        self.done = 0  # steps that have ended
        data = self._source(request.data, request.seed)
        self.data = fingerprint(data)
        require_agreed(question(request, self.data))
        self.trainer = Trainer(
            self.job,
            self.layout,
            data,
            settings=request.settings(request.optimizer),
            setup=Setup(
                seed=request.seed,
                device=self.device,
                compiled=request.compiled,
                offload_dir=Path(request.offload_dir) if request.offload_dir else None,
                budget_bytes=request.memory_budget and request.memory_budget * MiB,
                gradients=GradientCompression.parse(
                    request.compress_gradients or file.origin.options.compress_gradients
                ),
            ),
            rate=request.learning_rate(),
            late=Late(
                remedy=request.training.stale_gradients,
                steps=request.training.anneal_steps or request.steps // 4,
            ),
        )
        asked = request.training
        untimed = untimed_steps(observe=request.observe, trace=asked.trace is not None)
        untimed += self.trainer.steps_to_fill - 1
        self.watch = StepProfiler(
            self.trainer, record=request.record, untimed=untimed, trace=asked.trace
        )
        self.observed = Observed(job=self.job, gpus=self.layout.gpus, untimed=untimed)
        self.saver = self._saver()
        self.bits = (
            None
            if request.compress_activations is None
            else ActivationBits(trainer=self.trainer)
        )

    def run(self) -> None:
        """Train; rank 0 writes the result."""
        first, began = self._first_step(), time.perf_counter()
        self._open_journals(first)
        self.rescue = self._rescue()
        self._save_to_go_back(first)
        self.history.add("ready", step=first)
        stopped = self._train(first)
        wall_s = time.perf_counter() - began
        unsaved = None if stopped else self._unsaved()
        for journal in self.journals:
            journal.close()
        peaks, reports = self._peaks(), everyone(self.watch.report())
        trace = self.request.training.trace
        if self.rank == 0 and trace is not None:
            write_actions(Path(trace), reports, self.trainer, self.device.type)
        if self.rank == 0:
            document = self.observed.document(peaks, wall_s, first)
            document["stopped"] = stopped
            document["rollbacks"] = [asdict(one) for one in self.rollbacks.done]
            seconds, kind = document["step_time_s"], self.device.type
            if seconds:
                median_s = seconds["median"]
                document |= measured_parts(reports, self.job, median_s, device=kind)
            record = self.request.record
            document["recorded"] = self.trainer.recorder.document() if record else None
            document["unsaved"] = unsaved
            if self.bits is not None:
                document["activation_bits"] = self.bits.document()
            write_text(Path(self.request.result), json.dumps(document))
        elif stopped and os.environ.get("LOCAL_RANK") == "0":  # its machine says so too
            write_text(Path(self.request.result), json.dumps({"stopped": stopped}))

    def _train(self, first: int) -> dict[str, Any] | None:
        """All steps from *first* on; what was saved is on disk at its end. Gives what
        was wrong with the last one, where it is not that of the request."""
        self.done = first
        try:
            stopped = self._steps(first)
            if self.saver is not None:
                self.saver.wait()
        except Exception as error:
            if self.rescue is not None:
                status(self.rank).say("saving what it holds for the others")
                self.rescue.save(error, self.done, lambda: self._state()["meta"])
            if self.saver is not None:
                self.saver.wait(ENDING_S)
            raise
        return stopped

    def _steps(self, first: int) -> dict[str, Any] | None:
        number, since = first, 0
        while number < self.request.steps:
            self._told(number)
            if self.bits is not None and self.bits.share_out(number):
                self._line(self.bits.words)
            result = self.watch.step(number, since=since, until=self._until(number))
            since += 1
            self.observed.peak = self.watch.peak
            self.observed.results.append(result)
            self._say(number, result)
            if not self.trainer.sound(result):
                back = self._rolled_back(number)
                if back is None:
                    return wrong(number, result)
                self.done = number = back
                self.observed.forget_after(number - first, number)
                continue
            self.done = number = number + 1
            self._evaluate(number)
            self._save(number)
        return None

    def _until(self, number: int) -> int:
        """The step before which all that step *number* has begun is done: where steps
        are not flushed the pipeline is drained for a checkpoint or an evaluation."""
        request, asked = self.request, self.request.training
        every = [
            request.checkpoint_every if self.saver is not None else None,
            asked.eval_every if asked.eval_data is not None else None,
        ]
        ends = [(number // steps + 1) * steps for steps in every if steps]
        return min([request.steps, *ends])

    def _rolled_back(self, number: int) -> int | None:
        """Where training goes on after step *number* went wrong; None: nowhere."""
        saver = self.saver
        if self.request.on_nan != "rollback" or saver is None:
            return None
        saver.wait()
        self.trainer.forget()
        done = self._restored(saver)
        one = self.rollbacks.next(number, done)
        if one is None:
            return None
        self.trainer.skipped = self.rollbacks.skipped
        for journal in self.journals:
            journal.close()
        self._open_journals(done)
        self.history.add("rolled_back", step=done)
        self._line(str(one))
        return done

    def _save_to_go_back(self, first: int) -> None:
        """A rollback may be asked for before the first checkpoint would be there."""
        saver = self.saver
        if saver is None or self.request.on_nan != "rollback":
            return
        if latest(saver.folder) is None:
            saver.save(step=first, **self._state())

    def _open_journals(self, done: int) -> None:
        asked = self.request.training
        self.journals = journals(asked, done) if self.rank == 0 else []

    def _source(self, data: str, seed: int) -> Source:
        if isinstance(self.job.spec, ModuleSpec):
            return samples(data, self.job.spec, seed, checked=True)
        return source(
            data,
            vocab=decoder_of(self.job).vocab,
            seq_len=self.job.seq_len,
            seed=seed,
            checked=True,
        )

    def _evaluate(self, done: int) -> None:
        asked = self.request.training
        every = asked.eval_every or self.request.steps
        if asked.eval_data is None or (done % every and done != self.request.steps):
            return
        if self.held_out is None:
            self.held_out = self._source(asked.eval_data, self.request.seed)
        loss = self.trainer.evaluate(self.held_out, asked.eval_batches)
        self.observed.evaluations.append((done, loss))
        self._write({"step": done, "eval_loss": loss})
        if self.rank == 0 and self.request.progress:
            print(
                f"step {done:5}/{self.request.steps}  eval loss {loss:8.4f}", flush=True
            )

    def _write(self, entry: dict[str, Any]) -> None:
        for journal in self.journals:
            journal.write(entry)

    def _saver(self) -> Saver | None:
        request = self.request
        if request.checkpoint_dir is None:
            return None
        return Saver(
            folder=Path(request.checkpoint_dir),
            keep=Retention(newest=request.keep, every=request.keep_every),
            background=request.async_save,
            say=self._line,
        )

    def _rescue(self) -> Rescue | None:
        if self.request.recovery != "replica" or self.saver is None:
            return None
        parts = [held.module for held in self.trainer.stages]
        return Rescue(self.saver.folder, self.rank, self.trainer, parts)

    def _line(self, text: str) -> None:
        """Said once, by rank 0; on stderr where stdout is the document's."""
        if self.rank == 0:
            print(text, flush=True)

    def _first_step(self) -> int:
        saver, asked = self.saver, self.request.resume
        if saver is None:
            return self._begin()
        anew = not (asked or self.request.elastic or _restarted())
        meta = self._state()["meta"]
        recovered = first_rank(
            lambda: (
                forget_emergency(saver.folder)
                if anew
                else salvaged(saver.folder, meta, saver.keep)
            )
        )
        for line in recovered or ():
            self._line(line)
        if anew or (not asked and latest(saver.folder) is None):
            return self._begin()
        return self._restored(saver)

    def _restored(self, saver: Saver) -> int:
        status(self.rank).say("reading the checkpoint")
        found = restore(saver.folder, **self._state())
        for name, line in zip(found.damaged, found.passed_over, strict=True):
            if name not in self.request.damaged:
                self._line(line)
        saver.follow(found)
        stored = found.meta.get("loss_scale")
        if stored and self.trainer.scale.dynamic:
            self.trainer.scale.value, self.trainer.scale.good_steps = stored
        self.rollbacks.resumed(found.meta.get("skipped") or ())
        self.trainer.skipped = self.rollbacks.skipped
        return found.step

    def _begin(self) -> int:
        """The first step of a run that no checkpoint is of."""
        if self.request.weights is not None:
            status(self.rank).say("reading the weights")
            parts = [held.module for held in self.trainer.stages]
            folder = weights_of(self.job, Path(self.request.weights))
            load_weights(folder, parts, self.trainer.optimizer)
        return 0

    def _unsaved(self) -> str | None:
        """Why the last state, or the weights at the end, are not on disk."""
        failure = None if self.saver is None else self.saver.failure
        request, mesh = self.request, self.trainer.mesh
        export = exported(request.weights, request.save_weights, self.job)
        if export is None:
            return failure
        status(self.rank).say("writing the weights")
        try:
            save_weights(
                export,
                [held.module for held in self.trainer.stages if held.copy == 0],
                writes=not (mesh["dp"].get_local_rank() or mesh["tp"].get_local_rank()),
            )
        except InvalidFile as error:
            failure = f"{failure}; {error}" if failure else str(error)
        return failure

    def _save(self, done: int) -> None:
        saver, every = self.saver, self.request.checkpoint_every
        if saver is None:
            return
        if done == self.request.steps or (every and done % every == 0):
            status(self.rank).say(f"saving the checkpoint of step {done}")
            began = time.perf_counter()
            saver.save(step=done, **self._state())
            seconds = time.perf_counter() - began
            self.history.add("saved", step=done, seconds=seconds)

    def _state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        scale = self.trainer.scale
        return {
            "parts": [held.module for held in self.trainer.stages],
            "optimizer": self.trainer.optimizer,
            "meta": {
                "job": job_fingerprint(self.job),
                "seed": self.request.seed,
                "data": self.data,
                "layout": self.layout_hash,
                "loss_scale": [scale.value, scale.good_steps],
                "skipped": list(self.rollbacks.skipped),
            },
        }

    def _told(self, number: int) -> None:
        """From now on a killed worker is known by this step and its action."""
        words, rescue = status(self.rank), self.rescue

        def told(action: Action) -> None:
            words.say(f"step {number + 1}, {action}")
            if rescue is not None:
                rescue.require_wanted()

        self.trainer.watch(told)

    def _peaks(self) -> list[dict[str, int]]:
        """Every rank's peaks, on every rank."""
        peak = self.observed.peak
        own = [peak.allocated, peak.reserved, peak.device, resident_bytes()]
        mine = torch.tensor(own, dtype=torch.int64, device=self.device)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        names = ("allocated", "reserved", "device", "resident")
        return [dict(zip(names, item.tolist(), strict=True)) for item in everyone]

    def _say(self, number: int, result: StepResult) -> None:
        rate = self.observed.tokens_per_s_per_gpu(result.seconds)
        entry = {"step": number + 1, **asdict(result), "tokens_per_s_per_gpu": rate}
        self._write(entry)
        self.history.add("step", step=number + 1, seconds=result.seconds)
        if self.rank or not self.request.progress:
            return
        print(step_words(number + 1, self.request.steps, result, rate), flush=True)


def step_words(number: int, of: int, result: StepResult, tokens_per_s: float) -> str:
    """A step in a line of a terminal, with an estimate of what is left."""
    left = left_words((of - number) * result.seconds)
    return (
        f"step {number:>{len(str(of))}}/{of}  loss {result.loss:.4f}  "
        f"norm {result.gradient_norm:.3f}  {result.seconds:.3f} s  "
        f"{tokens_per_s:,.0f} tokens/s/GPU  {left} left"
    )


def _restarted() -> bool:
    """Whether any rank was started again: machines do not count alike."""
    everyone: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(everyone, restarts())
    return max(everyone) > 0


def main(path: str) -> None:
    """Run the request at *path* in this process."""
    request = Request.read(Path(path))
    with process_group(
        request.device, timeout_s=request.timeout_s, threads=request.threads
    ) as worker:
        Run(request, worker).run()


if __name__ == "__main__":
    main(sys.argv[1])
    # All is written. What is left is the interpreter's own end, in which a thread of
    # torch's that is still running aborts a process that has succeeded (seen once, of
    # ZeRO-3 with gloo: "terminate called without an active exception").
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
