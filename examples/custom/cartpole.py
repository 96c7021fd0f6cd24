r"""CartPole-v1: balance a pole on a cart, with the dynamics of Gymnasium and gymnax.

phalanx train ppo --env examples/custom/cartpole.py:CartPole --out runs/cartpole \
    num_envs=16 num_steps=128 num_updates=200
phalanx eval runs/cartpole num_episodes=100
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from phalanx.core import Box, Discrete, Environment, EpisodeState

GRAVITY, CART_MASS, POLE_MASS = 9.8, 1.0, 0.1
HALF_LENGTH = 0.5
"""Half of the length of the pole, in meters."""
FORCE = 10.0
"""Force on the cart, in newtons."""
TIME_STEP = 0.02
MAX_POSITION, MAX_ANGLE = 2.4, math.radians(12)


class CartPoleState(EpisodeState):
    position: Array
    velocity: Array
    angle: Array
    """Angle of the pole in radians. 0 is upright, and positive angles are to the right."""
    angular_velocity: Array


class CartPole(Environment[CartPoleState, Array, Array]):
    """- Observation: position, velocity, angle and angular velocity, as four floats.
    - Action: 0 pushes the cart to the left, and 1 to the right.
    - Reward: 1 per step.
    - Termination: the cart is more than 2.4 m from the center, or the pole leans by more than 12 degrees;
      truncation after 500 steps.
    """

    max_episode_steps: int = 500
    observation_space: ClassVar = Box(-math.inf, math.inf, (4,), np.float32)
    action_space: ClassVar = Discrete(2)
    render_modes: ClassVar = ("svg",)

    def initial_state(self, key: Array) -> CartPoleState:
        return CartPoleState(*jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05))

    def transition(self, state: CartPoleState, action: Array) -> tuple[CartPoleState, float, Array]:
        sin, cos = jnp.sin(state.angle), jnp.cos(state.angle)
        mass, pole = CART_MASS + POLE_MASS, POLE_MASS * HALF_LENGTH
        force = jnp.where(action == 1, FORCE, -FORCE)
        push = (force + pole * state.angular_velocity**2 * sin) / mass
        inertia = HALF_LENGTH * (4 / 3 - POLE_MASS * cos**2 / mass)
        angular_acceleration = (GRAVITY * sin - cos * push) / inertia
        acceleration = push - pole * angular_acceleration * cos / mass
        # Euler's method: the positions change with the velocities before the step.
        state = CartPoleState(
            state.position + TIME_STEP * state.velocity,
            state.velocity + TIME_STEP * acceleration,
            state.angle + TIME_STEP * state.angular_velocity,
            state.angular_velocity + TIME_STEP * angular_acceleration,
        )
        fallen = (jnp.abs(state.position) > MAX_POSITION) | (jnp.abs(state.angle) > MAX_ANGLE)
        return state, 1.0, fallen

    def observe(self, state: CartPoleState) -> Array:
        return jnp.stack([state.position, state.velocity, state.angle, state.angular_velocity])

    def render(self, state: CartPoleState, mode: str = "svg") -> str:
        x, angle = 100 * float(state.position), float(state.angle)
        tip = x + 100 * math.sin(angle), 100 - 100 * math.cos(angle)
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-260 -20 520 150" width="520" height="150">'
            '<path d="M-240 110H240" stroke="gray"/>'
            f'<rect x="{x - 25:.1f}" y="90" width="50" height="20" fill="black"/>'
            f'<path d="M{x:.1f} 100L{tip[0]:.1f} {tip[1]:.1f}" stroke="peru" stroke-width="8"/></svg>'
        )
