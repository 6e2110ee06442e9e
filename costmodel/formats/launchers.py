"""How nodes are started: our own executor, Slurm, Kubernetes.

torchrun      `meshwright execute`, which is a launcher itself (torch's elastic agent)
slurm         sbatch, with one task a node; of our own executor or another target's
              command (`slurm:megatron`)
kubernetes    the Kubeflow trainer: TrainJob (trainer.kubeflow.org/v1alpha1, version 2)
              and PyTorchJob (kubeflow.org/v1, the training operator); likewise

A manifest is read as the script that it runs on each pod.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, Final

from costmodel.formats.fields import Fields
from costmodel.formats.setup import Run
from costmodel.formats.shell import Script, read_script
from costmodel.formats.text import Written, continued, json_text, yaml_text
from costmodel.schedule import flushes
from costmodel.support import require_supported
from profiles.errors import InvalidFile
from profiles.models import ModuleSpec

LAYOUT: Final = "layout.json"
IMAGE: Final = "IMAGE"  # the user's own
PORT: Final = 29500
MANIFESTS: Final = ("TrainJob", "PyTorchJob")
_COUNTED: Final = (None, "auto", "gpu")  # as many processes as a node has GPUs


def write_torchrun(run: Run) -> Written:
    """A line that runs this layout by our own executor, and the layout file."""
    require_supported(run.layout, run.job)
    command = ("meshwright", "execute", LAYOUT, "--data", "synthetic", "--steps", "100")
    spec = run.job.spec
    # A file decides nothing that is imported; this script is what the user asked for.
    module = ("--model", spec.module) if isinstance(spec, ModuleSpec) else ()
    late = () if flushes(run.layout.schedule) else ("--allow-async",)
    several: tuple[str, ...] = ()
    if run.nodes > 1:
        several = ("--nnodes", str(run.nodes), "--rdzv-endpoint", _endpoint())
    text = "\n".join(
        [
            "#!/bin/bash",
            f"# {run.words}",
            "# Run it on every node, with MASTER_ADDR set; --data names your file.",
            "set -euo pipefail",
            continued((*command, *module, *late, *several)),
        ]
    )
    files = {"torchrun.sh": text + "\n", LAYOUT: json_text(dict(run.document))}
    return Written(files=files, command=("bash", "torchrun.sh"))


def _endpoint() -> str:
    return f"${{MASTER_ADDR:-localhost}}:${{MASTER_PORT:-{PORT}}}"


def write_slurm(run: Run, inner: Written) -> Written:
    """A batch script that starts *inner* on every node."""
    name, command = _name(run), " ".join(_every_node(run, inner))
    text = "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name={name}",
            f"#SBATCH --nodes={run.nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={run.per_node}",
            "#SBATCH --exclusive",
            f"#SBATCH --output={name}-%j.log",
            f"# {run.words}",
            "set -euo pipefail",
            "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)",
            f"export MASTER_ADDR MASTER_PORT={PORT}",
            f"srun bash -c 'export NODE_RANK=$SLURM_NODEID; exec {command}'",
        ]
    )
    return Written(
        files={**inner.files, "slurm.sbatch": text + "\n"},
        command=("sbatch", "slurm.sbatch"),
    )


def _every_node(run: Run, inner: Written) -> tuple[str, ...]:
    """The command with where nodes meet, which a launcher of one node leaves out."""
    command = tuple(inner.command)
    if command[0] == "torchrun" and run.nodes > 1:
        meet = (
            "--node-rank",
            "$NODE_RANK",
            "--master-addr",
            "$MASTER_ADDR",
            "--master-port",
            "$MASTER_PORT",
        )
        return (command[0], *meet, *command[1:])
    if command[0] == "accelerate" and run.nodes > 1:
        meet = (
            "--machine_rank",
            "$NODE_RANK",
            "--main_process_ip",
            "$MASTER_ADDR",
            "--main_process_port",
            "$MASTER_PORT",
        )
        return (*command[:2], *meet, *command[2:])
    return command


def _name(run: Run) -> str:
    """A name that Kubernetes takes: lower case letters, digits and hyphens."""
    short = re.sub(r"[^a-z0-9]+", "-", run.job.model.lower()).strip("-")
    return f"{short[:40].strip('-') or 'model'}-{run.gpus}"


def write_kubernetes(run: Run, inner: Written) -> Written:
    """Manifests of both versions of Kubeflow's trainer, and the files they mount."""
    name = _name(run)
    about = (
        f"{run.words}\nReplace {IMAGE} by an image with your framework, and create the "
        f"files: kubectl create configmap {name} "
        + " ".join(f"--from-file={file}" for file in inner.files)
    )
    files = {
        **inner.files,
        "trainjob.yaml": yaml_text(_train_job(run, inner, name), about),
        "pytorchjob.yaml": yaml_text(_pytorch_job(run, inner, name), about),
    }
    return Written(files=files, command=("kubectl", "apply", "-f", "trainjob.yaml"))


def _shell(run: Run, inner: Written, *variables: str) -> list[str]:
    """The command on a pod, whose *variables* say where the nodes meet; the files are
    copied, since what is mounted cannot be written."""
    words = " ".join(_every_node(run, inner))
    meet = " ".join(variables)
    return ["bash", "-c", f"cp -L /config/* . && export {meet} && exec {words}"]


def _gpus(run: Run) -> dict[str, Any]:
    return {"limits": {"nvidia.com/gpu": run.per_node}}


def _train_job(run: Run, inner: Written, name: str) -> dict[str, Any]:
    volume = {"name": "config", "configMap": {"name": name}}
    mount = {"name": "config", "mountPath": "/config"}
    template = {
        "targetJobs": [{"name": "node"}],
        "spec": {
            "volumes": [volume],
            "containers": [{"name": "node", "volumeMounts": [mount]}],
        },
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": IMAGE,
                "numNodes": run.nodes,
                "numProcPerNode": run.per_node,
                "command": _shell(
                    run,
                    inner,
                    "NODE_RANK=$PET_NODE_RANK",
                    "MASTER_ADDR=$PET_MASTER_ADDR",
                    "MASTER_PORT=$PET_MASTER_PORT",
                ),
                "resourcesPerNode": _gpus(run),
            },
            "podTemplateOverrides": [template],
        },
    }


def _pytorch_job(run: Run, inner: Written, name: str) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": IMAGE,
        "command": _shell(run, inner, "NODE_RANK=${RANK:-0}"),
        "resources": _gpus(run),
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
    }
    pod = {
        "spec": {
            "containers": [container],
            "volumes": [{"name": "config", "configMap": {"name": name}}],
        }
    }
    replicas: dict[str, Any] = {
        "Master": {"replicas": 1, "restartPolicy": "OnFailure", "template": pod}
    }
    if run.nodes > 1:
        replicas["Worker"] = {**replicas["Master"], "replicas": run.nodes - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"nprocPerNode": str(run.per_node), "pytorchReplicaSpecs": replicas},
    }


def read_manifest(fields: Fields) -> Script:
    """The script that every pod of one of the MANIFESTS runs, with its nodes and their
    processes as Slurm's header has them; raises InvalidFile."""
    spec = fields.section("spec")
    if fields.word("kind", MANIFESTS) == "TrainJob":
        pod = spec.section("trainer")
        nodes, resources = pod.count("numNodes", 1), pod.section("resourcesPerNode")
        several, name = pod, "numProcPerNode"
    else:
        roles = spec.section("pytorchReplicaSpecs")
        each = [roles.section(role).count("replicas", 1) for role in roles.values]
        pod = _container(roles.section("Master"))
        nodes, resources = sum(each), pod.section("resources")
        several, name = spec, "nprocPerNode"
    words = [*_words(pod, "command"), *_words(pod, "args")]
    if not words:
        raise InvalidFile(
            f"{fields.what} has no command, which would say what is trained; write "
            "there what every node runs, such as meshwright execute layout.json"
        )
    count = several.raw(name)
    if count in _COUNTED:
        several, name = resources.section("limits"), "nvidia.com/gpu"
    size = several.integer(name)
    script = read_script(shlex.join(words), fields.what)
    script.slurm["nodes"] = str(nodes)
    if size is not None:
        script.slurm["gpus-per-node"] = str(size)
    return script


def _container(role: Fields) -> Fields:
    """The first container of a role's pods."""
    pod = role.section("template").section("spec")
    several = pod.raw("containers")
    if not isinstance(several, list) or not several or not isinstance(several[0], dict):
        raise pod.wrong("containers", "a list of containers")
    return Fields({str(key): one for key, one in several[0].items()}, pod.what)


def _words(pod: Fields, name: str) -> list[str]:
    found = pod.raw(name) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise pod.wrong(name, "a list of text")
    return found
