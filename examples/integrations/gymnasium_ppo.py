"""Train PPO on ARC grids through Gymnasium, in one file, with action masks.

Each task is a 4x4 grid with one blue cell, which must be painted red, so the agent has to locate it. The
script takes about half a minute on two cores.

python examples/integrations/gymnasium_ppo.py
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical

import phalanx.integrations.gymnasium
from phalanx.arc import ArcTask, Operation

gym.register_envs(phalanx.integrations.gymnasium)

SIDE, BLUE, RED = 4, 1, 2
GAMMA = 0.9


def puzzles() -> list[ArcTask]:
    """Create one task for each position of the blue cell."""
    tasks = []
    for place in range(SIDE * SIDE):
        before, after = np.zeros((2, SIDE * SIDE), int)
        before[place], after[place] = BLUE, RED
        pair = {"input": before.reshape(SIDE, SIDE).tolist(), "output": after.reshape(SIDE, SIDE).tolist()}
        tasks.append(ArcTask.from_dict({"train": [pair], "test": []}, f"paint-{place}"))
    return tasks


def make_environment(num_envs: int) -> RecordEpisodeStatistics:
    """Create the environments, with four colors and at most eight steps per episode."""
    painting = tuple(int(getattr(Operation, f"FILL_{color}")) for color in range(4))
    envs = gym.make_vec(
        "phalanx/arc-v2",
        num_envs=num_envs,
        vectorization_mode="vector_entry_point",
        tasks=puzzles(),
        autoreset_mode="SameStep",
        max_episode_steps=8,
        dataset={"max_grid_height": SIDE, "max_grid_width": SIDE},
        action={"allowed_operations": painting},
    )
    return RecordEpisodeStatistics(envs, buffer_length=10_000)


class Agent(nn.Module):
    """Network over a one-hot grid, with one head per action field and one for the value."""

    def __init__(self, actions: gym.spaces.MultiDiscrete, width: int = 128) -> None:
        super().__init__()
        self.sizes = actions.nvec.tolist()
        self.body = nn.Sequential(
            nn.Linear(SIDE * SIDE * 10, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.heads, self.value = nn.Linear(width, sum(self.sizes)), nn.Linear(width, 1)

    def forward(
        self, grids: torch.Tensor, masks: torch.Tensor, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        planes = nn.functional.one_hot(grids.long().clamp(0), 10).float()
        features = self.body(planes.flatten(1))
        operation, *cell = self.heads(features).split(self.sizes, dim=1)
        operation = operation.masked_fill(masks == 0, float("-inf"))
        choices = [Categorical(logits=logits) for logits in (operation, *cell)]
        if actions is None:
            actions = torch.stack([choice.sample() for choice in choices], dim=1)
        log_probs = sum(choice.log_prob(actions[:, i]) for i, choice in enumerate(choices))
        entropy = -sum((choice.probs * choice.logits.clamp(-50)).sum(1) for choice in choices)
        return actions, log_probs, entropy, self.value(features).squeeze(1)


def tensors(seen: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert an observation to the input of the network."""
    return torch.from_numpy(seen["observation"]), torch.from_numpy(seen["action_mask"])


def value_of_cut(agent: Agent, infos: dict, truncated: np.ndarray) -> torch.Tensor:
    """Return the values of the last observations of the truncated episodes."""
    last = [infos["final_obs"][index] for index in np.flatnonzero(truncated)]
    return agent(*tensors({name: np.stack([one[name] for one in last]) for name in last[0]}))[3]


@torch.no_grad()
def play(
    envs: RecordEpisodeStatistics, agent: Agent, seen: dict[str, np.ndarray], num_steps: int
) -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Collect steps of all environments with their advantages, and return the last observation."""
    steps = []
    for _ in range(num_steps):
        grid, mask = tensors(seen)
        action, log_prob, _, value = agent(grid, mask)
        seen, paid, terminated, truncated, infos = envs.step(action.numpy())
        reward = torch.from_numpy(paid).float()
        if truncated.any():
            reward[torch.from_numpy(truncated)] += GAMMA * value_of_cut(agent, infos, truncated)
        going = torch.from_numpy(~(terminated | truncated)).float()
        steps.append((grid, mask, action, log_prob, value, reward, going))
    names = ("grid", "mask", "action", "log_prob", "value", "reward", "going")
    data = {name: torch.stack(column) for name, column in zip(names, zip(*steps, strict=True), strict=True)}
    data["advantage"] = advantages(data, agent(*tensors(seen))[3])
    data["target"] = data["advantage"] + data["value"]
    return {name: values.flatten(0, 1) for name, values in data.items()}, seen


def advantages(data: dict[str, torch.Tensor], following: torch.Tensor) -> torch.Tensor:
    """Compute generalized advantages. Rewards of truncated steps include the bootstrap value."""
    result, running = torch.zeros_like(data["reward"]), torch.zeros_like(following)
    for time in reversed(range(len(result))):
        going, value = data["going"][time], data["value"][time]
        error = data["reward"][time] + GAMMA * following * going - value
        running = error + GAMMA * 0.95 * going * running
        result[time], following = running, value
    return result


def learn(agent: Agent, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    """Take one gradient step on PPO's clipped objective."""
    _, log_prob, entropy, value = agent(batch["grid"], batch["mask"], batch["action"])
    ratio = (log_prob - batch["log_prob"]).exp()
    advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    loss = -gain + 0.5 * (value - batch["target"]).square().mean() - 0.01 * entropy.mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()


def train(updates: int, num_envs: int, num_steps: int, seed: int) -> list[float]:
    """Train, and return the mean return of the episodes that ended in each update."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    envs = make_environment(num_envs)
    agent = Agent(envs.single_action_space)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2e-3)
    seen, _ = envs.reset(seed=seed)
    returns = []
    for update in range(updates):
        envs.return_queue.clear()
        data, seen = play(envs, agent, seen, num_steps)
        for _ in range(4):
            for chosen in np.array_split(random.permutation(num_envs * num_steps), 4):
                learn(agent, optimizer, {name: values[chosen] for name, values in data.items()})
        returns.append(float(np.mean(envs.return_queue)))
        if update % 5 == 0 or update == updates - 1:
            print(f"update {update:3}: mean return {returns[-1]:5.2f}")
    envs.close()
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=35)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-steps", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="eight updates only, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # JAX has the other cores
    updates = 8 if arguments.quick else arguments.updates
    returns = train(updates, arguments.num_envs, arguments.num_steps, arguments.seed)
    print(f"mean return of the first update {returns[0]:.2f}, of the last {returns[-1]:.2f}")


if __name__ == "__main__":
    main()
