"""Training with several processes and devices: equal results, and recovery from a lost process."""

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from phalanx import load_policy
from phalanx.cli.app import app
from phalanx.logging import LoggingConfig
from phalanx.training.checkpoints import open_checkpoint
from phalanx.training.device_mesh import DeviceMesh, initialize
from phalanx.training.optimizer import OptimizerConfig
from phalanx.training.ppo import PPO, PPOConfig
from phalanx.training.process_group import EXIT_CODE_PROCESS_LOST, ProcessGroup, ProcessLostError
from tests.helpers.short_walk import ShortWalk, WalkNetwork
from tests.helpers.small_training import metrics_of

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_processes(count: int, work: Callable[[ProcessGroup], Any], timeout: float = 60) -> list[Any]:
    """Run a function in several processes and return the results. The processes are connected threads."""
    address = f"127.0.0.1:{free_port()}"

    def run_process(rank: int) -> Any:
        group = ProcessGroup.join(address, count, rank, timeout)
        try:
            return work(group)
        finally:
            group.close()

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(run_process, range(count)))


def bits(tree: Any) -> list[bytes]:
    def without_key_type(leaf: Any) -> Any:
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf

    return [np.asarray(without_key_type(leaf)).tobytes() for leaf in jax.tree.leaves(tree)]


# -- bit-identical results -------------------------------------------------------------------------

# The learning rate is so large that updates stop at target_kl. Each shard has two environments, whose
# episodes end at different times.
CONFIG = PPOConfig(
    num_envs=8,
    num_steps=12,
    num_updates=3,
    update_epochs=2,
    num_minibatches=3,
    num_env_shards=4,
    optimizer=OptimizerConfig(
        learning_rate=0.03, end_learning_rate=0.02, lr_schedule="linear", max_grad_norm=0.5, eps=1e-5
    ),
    target_kl=1e-5,
    evaluation={"num_episodes": 0},
    logging=LoggingConfig(log_frequency=1),
)


def create_ppo(mesh: DeviceMesh) -> PPO:
    return PPO(CONFIG, ShortWalk(), WalkNetwork, mesh)


def train_three_updates(processes: ProcessGroup) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return state, metrics and episodes after three updates; the state is gathered and sharded once."""
    mesh = DeviceMesh(jax.devices()[:1], processes)
    ppo = create_ppo(mesh)
    state, _ = ppo.update(ppo.init(jax.random.key(0)))
    state, _ = ppo.update(mesh.shard_state(mesh.gather_state(state)))
    state, result = ppo.update(state)
    steps = np.asarray(result.metrics["gradient_steps"])
    assert (steps < CONFIG.gradient_steps).any(), "no update was stopped at target_kl"
    return bits(mesh.gather_state(state)), bits(result.metrics), bits(result.episodes)


@pytest.fixture(scope="module")
def single_process() -> tuple[list[bytes], list[bytes], list[bytes]]:
    return train_three_updates(ProcessGroup(0, 1))


@pytest.mark.parametrize("count", [2, 4])
def test_result_is_bit_identical_for_any_number_of_processes_with_one_device(
    count: int, single_process: tuple
) -> None:
    for result in run_processes(count, train_three_updates):
        assert result == single_process


TRAIN_ON_FOUR_DEVICES = """
import sys
import jax
import jax.numpy as jnp
from phalanx.training import DeviceMesh, train
from tests.helpers.descent import Descent, DescentConfig
from tests.training.test_distributed import create_ppo

class ShardedEpisodes(Descent):
    def update(self, state):
        state, result = super().update(state)
        returns = self.mesh.shard(jnp.arange(4.0))
        return state, result._replace(episodes={"episode_returns": returns, "success_mask": returns > 1})

for name, count in {"1": 1, "4": 4, "again": 4}.items():
    train(create_ppo(DeviceMesh(jax.devices()[:count])), f"{sys.argv[1]}/{name}")
train(ShardedEpisodes(DescentConfig(num_updates=1)), f"{sys.argv[1]}/sharded")
"""


@pytest.fixture(scope="module")
def four_devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with one and four devices, and return the folder of the runs `1`, `4`, `again` and `sharded`."""
    folder = tmp_path_factory.mktemp("devices")
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    command = [sys.executable, "-c", TRAIN_ON_FOUR_DEVICES, str(folder)]
    subprocess.run(command, check=True, env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags})
    return folder


def test_episodes_of_all_devices_are_logged(four_devices: Path) -> None:
    one, four = metrics_of(four_devices / "1"), metrics_of(four_devices / "4")
    assert list(one) == list(four) == [1, 2, 3]
    # The first update acts with the same initial parameters on any number of devices.
    for name in ("num_episodes", "reward_mean", "episode_length_mean"):
        assert four[1][name] == pytest.approx(one[1][name])


def test_result_is_bit_identical_for_the_same_number_of_devices(four_devices: Path) -> None:
    first, second = four_devices / "4", four_devices / "again"
    assert metrics_of(first) == metrics_of(second)
    with open_checkpoint(first) as (left, step, _), open_checkpoint(second) as (right, _, metadata):
        names = metadata["params"]
        arrays, others = left.load_arrays(step, names), right.load_arrays(step, names)
    assert step == 3
    for name in names:
        np.testing.assert_array_equal(arrays[name], others[name])


def test_sharded_episodes_are_logged_completely(four_devices: Path) -> None:
    logged = metrics_of(four_devices / "sharded")[1]
    assert (logged["reward_mean"], logged["reward_max"], logged["success_rate"]) == (1.5, 3.0, 0.5)


# After the first checkpoint, enough updates remain to lose a process before the last one.
SETTINGS = (
    "num_envs=8",
    "num_steps=4",
    "num_updates=40",
    "num_minibatches=2",
    "num_env_shards=4",
    "evaluation.every=0",
    "evaluation.num_episodes=4",
    "checkpoint.every=8",
    "logging.log_frequency=1",
    "logging.sample_frequency=16",
    "logging.num_samples=2",
)


def training_command(folder: Path, run: str, *options: str) -> list[str]:
    environment = "--env=tests.helpers.short_walk:NamedWalk"
    return ["train", "ppo", environment, *SETTINGS, f"--out={folder / run}", *options]


def start_training(folder: Path, run: str, *options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "phalanx", *training_command(folder, run, *options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": "1"},
    )


def run_training(folder: Path, run: str, *options: str) -> None:
    """Run the same command in this process, which has as many threads as there are cores."""
    done = CliRunner().invoke(app, training_command(folder, run, *options))
    assert done.exit_code == 0, done.output


def test_training_that_lost_a_process_resumes_with_fewer_processes_and_the_same_result(
    tmp_path: Path,
) -> None:
    shared = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2", "--process-id")
    run_training(tmp_path, "one")
    children = [start_training(tmp_path, "two", *shared, number) for number in "01"]
    checkpoint, deadline = tmp_path / "two" / "checkpoints" / "8", time.monotonic() + 240
    while not checkpoint.is_dir() and children[0].poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    children[1].send_signal(signal.SIGKILL)
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [EXIT_CODE_PROCESS_LOST, -signal.SIGKILL], outputs
    assert "process 1 was lost" in outputs[0] and "--resume continues" in outputs[0]
    assert json.loads((tmp_path / "two" / "run.json").read_text())["status"] == "interrupted"

    run_training(tmp_path, "two", "--resume")
    assert metrics_of(tmp_path / "two") == metrics_of(tmp_path / "one")
    weights = [bits(eqx.filter(load_policy(tmp_path / run).network, eqx.is_array)) for run in ("one", "two")]
    assert weights[0] == weights[1]


# -- process groups --------------------------------------------------------------------------------


def test_arrays_are_gathered_in_the_order_of_the_processes() -> None:
    def work(processes: ProcessGroup) -> list[np.ndarray]:
        return processes.gather([np.full((1, 2), processes.rank, np.int8)])

    for [rows] in run_processes(3, work):
        assert rows.tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_large_arrays_are_gathered_in_one_exchange(count: int) -> None:
    # Larger than the socket buffers: processes that send everything before they receive would deadlock.
    large = np.arange(3_000_000, dtype=np.int32)

    def work(processes: ProcessGroup) -> tuple[list[list[bool]], int]:
        own = [(large + processes.rank)[None], np.full((2, 1), processes.rank, bool), np.zeros((1, 0))]
        rows, flags, empty = processes.gather(own)
        expected = np.stack([large + rank for rank in range(count)])
        assert np.array_equal(rows, expected) and empty.shape == (count, 0)
        return flags.tolist(), processes.num_exchanges

    for flags, exchanges in run_processes(count, work):
        assert flags == [[rank > 0] for rank in range(count) for _ in range(2)]
        assert exchanges == 1


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_process_is_reported_by_the_others(lost: int) -> None:
    def work(processes: ProcessGroup) -> str:
        processes.exchange(b"here")
        if processes.rank == lost:
            return "lost"
        with pytest.raises(ProcessLostError) as caught:
            processes.exchange(b"there")
        return str(caught.value)

    messages = run_processes(2, work)
    assert messages[lost] == "lost"
    assert f"process {lost} was lost: " in messages[1 - lost]


def test_processes_that_are_out_of_step_raise_an_error() -> None:
    def work(processes: ProcessGroup) -> str:
        with pytest.raises(ProcessLostError) as caught:
            processes.exchange(b"x" * (1 + processes.rank))
        return str(caught.value)

    assert "it sends 2 bytes in exchange 1, but 1 in exchange 1 were expected" in run_processes(2, work)[0]


def test_other_connections_to_the_port_are_closed() -> None:
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(ProcessGroup.join, f"127.0.0.1:{port}", 2, 0, 60)
        wrong_size, wrong_rank = (b"PHX2" + struct.pack("<QQ", *pair) for pair in ((3, 1), (2, 2)))
        for data in (b"GET / HTTP/1.1\r\n\r\n", wrong_size, wrong_rank):
            while True:
                try:
                    connection = socket.create_connection(("127.0.0.1", port))
                except ConnectionRefusedError:
                    time.sleep(0.01)
                    continue
                break
            # A connection that is closed with unread data is reset.
            with connection, contextlib.suppress(ConnectionResetError):
                connection.sendall(data)
                assert connection.recv(1) == b""
        second = pool.submit(ProcessGroup.join, f"127.0.0.1:{port}", 2, 1, 60)
        for process in (first.result(), second.result()):
            assert process.size == 2
            process.close()


def test_processes_that_do_not_connect_are_named() -> None:
    with pytest.raises(ValueError, match="processes 1, 2 of 3 did not connect"):
        ProcessGroup.join(f"127.0.0.1:{free_port()}", 3, 0, timeout=0.05)
    with pytest.raises(ValueError, match="cannot connect to the first process at 127"):
        ProcessGroup.join(f"127.0.0.1:{free_port()}", 3, 1, timeout=0.05)


def test_invalid_rank_or_address_is_rejected() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, got 2"):
        initialize("127.0.0.1:1", 2, 2)
    with pytest.raises(ValueError, match="must be HOST:PORT, got 'here'"):
        initialize("here", 2, 1)
