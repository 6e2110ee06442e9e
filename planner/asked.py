"""`Asked`: a command line's question, of which one number may be asked anew."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.pins import Pins
from costmodel.profiled import Profile
from planner.problem import Objective
from planner.question import Posed, pose
from profiles.cluster import Cluster
from profiles.errors import Unsupported
from profiles.job_options import JobOptions
from profiles.models.catalog import Model
from profiles.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Everything that was said; *where* is the cluster's name."""

    model: Model
    cluster: Cluster
    where: str
    job: JobOptions
    pins: Pins
    objective: Objective = Objective.THROUGHPUT
    executable: bool | None = None
    profile: Profile | None = None
    probability: float | None = None
    any_stage: bool = False

    def pose(
        self,
        *,
        gpus: int | None = None,
        seq_len: int | None = None,
        global_batch: int | None = None,
        layers: int | None = None,
    ) -> Posed:
        """The complete question, with the numbers given here in place of what was said.

        Raises as `question.pose`, and Unsupported for the layers of another family.
        """
        job = self.job
        job = replace(
            job,
            gpus=job.gpus if gpus is None else gpus,
            seq_len=job.seq_len if seq_len is None else seq_len,
            global_batch=job.global_batch if global_batch is None else global_batch,
        )
        posed = pose(
            self.model if layers is None else with_layers(self.model, layers),
            self.cluster,
            job,
            self.pins,
            self.objective,
            self.executable,
            self.profile,
            self.probability,
            any_stage=self.any_stage,
        )
        if self.job.cluster is None:
            assumed = {"cluster": self.where, **posed.assumed}
            posed = replace(posed, assumed=assumed)
        return posed


def with_layers(model: Model, layers: int) -> Model:
    """*model* with another number of layers, and a name that says so.

    Raises Unsupported for what is no decoder, InvalidSpec for too few layers.
    """
    spec = model.spec
    if not isinstance(spec, DecoderSpec):
        raise Unsupported(
            f"{model.name} is of family {spec.family!r}; layers are added to decoders"
        )
    if layers == spec.layers:
        return model
    deeper = replace(spec, layers=layers)
    return replace(model, name=f"{model.name}-{layers}-layers", spec=deeper)
