"""The test cluster itself: what the other tests rely on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_cluster
from slurm_cluster import ClusterError, SlurmCluster


def test_tasks_of_a_step_run_on_named_nodes_that_resolve(cluster: SlurmCluster) -> None:
    told = cluster.run("srun", "-N2", "-n3", "sh", "-c", "echo $SLURMD_NODENAME $CS_IP_ADDR").stdout.split(
        "\n"
    )
    nodes = {line.split()[0] for line in told if line}
    assert len(nodes) == 2
    assert nodes <= set(cluster.names)
    assert all(line.split()[1] == "127.0.0.1" for line in told if line)
    assert {socket.gethostbyname(name) for name in nodes} == {"127.0.0.1"}


def test_a_step_runs_in_the_image(cluster: SlurmCluster, image: Path) -> None:
    code = (
        "import torch, portwright, pathlib; print(torch.ones(2).sum().item(), pathlib.Path('/work').exists())"
    )
    # The second word: nothing of the host but what the image holds.
    told = cluster.run(
        "srun", "--export=USER=root,PATH,SLURM_CONF", "ch-run", image, "--", "python", "-c", code
    ).stdout
    assert told.split() == ["2.0", "False"]  # and nothing of the host but what the image holds


def test_a_step_runs_in_the_image_by_apptainer(cluster: SlurmCluster, image: Path, apptainer: Path) -> None:
    said = "echo $1 ${SLURM_JOB_ID:-none}; exit 85"
    done = cluster.run(
        "srun",
        apptainer / "apptainer",
        "exec",
        "--cleanenv",
        image,
        "bash",
        "-c",
        said,
        "-",
        "in it",
        check=False,
    )
    assert (done.stdout, done.returncode) == ("in it none\n", 85)


def test_a_job_that_ended_otherwise_is_told_at_once(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = cluster.submit("--wrap", "exit 3", f"--output={tmp_path}/out")
    with pytest.raises(ClusterError, match=r"it is FAILED.*'ExitCode': '3:0'"):
        cluster.wait_state(job, {"COMPLETED"})


def test_a_second_cluster_lives_beside_and_one_whose_run_was_killed_is_ended_by_the_next_start(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    other = SlurmCluster(tmp_path / "a", nodes=1, prefix="other")
    code = (
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r}); from slurm_cluster import SlurmCluster\n"
        f"with SlurmCluster({str(other.folder)!r}, nodes=1, prefix='other') as made:\n"
        f"  made.run('sbatch', '--wrap', 'srun sleep 300', '--output=/dev/null'); print('up', flush=True); time.sleep(300)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    assert other.node_states().keys() == {"other-1"}
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert other._processes()  # a killed run leaves its daemons and jobs
    with SlurmCluster(tmp_path / "b", nodes=1) as third:
        assert not other._processes()
        assert third.node_states() == {third.names[0]: "idle"}
    names = slurm_cluster.HOSTS.read_text().split()
    assert "other-1" not in names
    assert third.names[0] not in names
    assert set(cluster.node_states()) == set(cluster.names)


def test_a_wrong_node_is_told() -> None:
    done = subprocess.run(
        [sys.executable, slurm_cluster.__file__, "down", "/nowhere", "n1"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("no node n1; there are pw")
