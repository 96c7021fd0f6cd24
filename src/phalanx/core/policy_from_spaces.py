"""Default policy network, whose encoders and heads follow from the spaces of an environment."""

import functools
import math
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from pydantic import Field

from phalanx.config import Config
from phalanx.core.spaces import Box, Composite, Discrete, Space, get_field
from phalanx.nn.distributions import DiagonalGaussian, Factored, Key, MaskedCategorical
from phalanx.nn.layers import Conv3x3, Dense

_MASK = "action_mask"
_MAX_CELLS = 256
"""Images are pooled until they have at most this many cells."""
_MAX_COLORS = 64
"""An integer grid with at most this many values is embedded. Otherwise, its values are treated as numbers."""


class DefaultNetworkConfig(Config):
    """Settings of the network that is created from an environment's spaces."""

    hidden_dim: int = Field(default=64, ge=1)
    """Width of the hidden layers."""
    num_layers: int = Field(default=2, ge=1)
    """Number of hidden layers of the policy and of the value function, after the encoders."""
    embedding_dim: int = Field(default=16, ge=1)
    """Size of the embeddings of discrete values, and number of channels of convolutions."""


class _VectorEncoder(eqx.Module):
    """Flattens an array and scales it to [-1, 1] if its bounds are finite."""

    space: Box = eqx.field(static=True)

    @property
    def size(self) -> int:
        return math.prod(self.space.shape)

    def __call__(self, value: Array) -> Float[Array, " features"]:
        return scale_to_bounds(self.space, value).reshape(-1)


class _EmbeddingEncoder(eqx.Module):
    """Embeds a discrete value."""

    table: Float[Array, "choices features"]

    @property
    def size(self) -> int:
        return self.table.shape[1]

    def __call__(self, value: Array) -> Float[Array, " features"]:
        return self.table[value]


class _ImageEncoder(eqx.Module):
    """Two convolutions and a dense layer, for images and for grids of integers, whose values are embedded."""

    table: Float[Array, "values channels"] | None
    first: Conv3x3
    second: Conv3x3
    dense: Dense
    space: Box = eqx.field(static=True)

    def __init__(self, space: Box, config: DefaultNetworkConfig, key: Key) -> None:
        keys = jax.random.split(key, 4)
        channels = config.embedding_dim
        self.space, self.table = space, None
        inputs = space.shape[2] if len(space.shape) == 3 else 1
        if is_embedded(space):
            self.table = jax.random.normal(keys[0], (int(space.high - space.low) + 1, channels))
            inputs = channels
        self.first = Conv3x3(inputs, channels, key=keys[1])
        self.second = Conv3x3(channels, channels, key=keys[2])
        image = jax.ShapeDtypeStruct((*space.shape[:2], channels), jnp.float32)
        cells = math.prod(jax.eval_shape(_pool_to_limit, image).shape)
        self.dense = Dense(cells, config.hidden_dim, key=keys[3], scale=math.sqrt(2))

    @property
    def size(self) -> int:
        return self.dense.bias.shape[0]

    def __call__(self, value: Array) -> Float[Array, " features"]:
        if self.table is None:
            image = scale_to_bounds(self.space, value).reshape(*self.space.shape[:2], -1)
        else:
            image = self.table[value.astype(jnp.int32) - int(self.space.low)]
        features = _pool_to_limit(jax.nn.relu(self.first(image)))
        return jax.nn.relu(self.dense(jax.nn.relu(self.second(features)).reshape(-1)))


def _pool_to_limit(image: Float[Array, "rows columns channels"]) -> Array:
    """Apply 2x2 max pooling until there are at most `_MAX_CELLS` cells. Odd rows and columns are padded."""
    while image.shape[0] * image.shape[1] > _MAX_CELLS:
        image = jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (2, 2, 1), (2, 2, 1), "SAME")
    return image


Encoder = _VectorEncoder | _EmbeddingEncoder | _ImageEncoder


class SpacesNetwork(eqx.Module):
    """Policy network for any environment whose spaces `policy_from_spaces` supports.

    Every part of the observation has an encoder. The policy and the value function are separate multilayer
    perceptrons on the concatenated features.
    """

    encoders: dict[str, Encoder]
    """Encoder of each field of the observation, or of the observation itself, whose name is empty."""
    policy: tuple[Dense, ...]
    value: tuple[Dense, ...]
    log_std: dict[str, Array]
    """Logarithm of the standard deviation of each continuous part of the action."""
    action_space: Space = eqx.field(static=True)

    def __call__(self, observation: PyTree) -> tuple[Any, Float[Array, ""]]:
        features = jnp.concatenate(
            [
                encode(get_field(observation, name) if name else observation)
                for name, encode in self.encoders.items()
            ]
        )
        outputs = _mlp(self.policy, features)
        mask = None
        if "" not in self.encoders:
            fields = observation if isinstance(observation, dict) else vars(observation)
            mask = fields.get(_MASK)
        return self._distribution(outputs, mask), _mlp(self.value, features)[0]

    def _distribution(self, outputs: Float[Array, " outputs"], mask: Array | None) -> Any:
        parts: dict[str, Any] = {}
        start = 0
        for number, (name, space) in enumerate(_parts(self.action_space)):
            size = _num_outputs(space)
            own = outputs[start : start + size]
            if isinstance(space, Discrete):
                parts[name] = MaskedCategorical(own, mask if number == 0 else None)
            else:
                assert isinstance(space, Box)
                mean, log_std = own.reshape(space.shape), self.log_std[name].reshape(space.shape)
                parts[name] = DiagonalGaussian(mean, log_std)
            start += size
        if isinstance(self.action_space, Composite):
            return Factored(dict(sorted(parts.items())), self.action_space.constructor)
        return parts[""]


def policy_from_spaces(
    observation_space: Space, action_space: Space, config: DefaultNetworkConfig, key: Key
) -> SpacesNetwork:
    """Create a policy network for an environment's observations and actions.

    Vectors are scaled by their bounds. Images and grids are encoded by convolutions, and discrete values by
    embeddings. A field `action_mask` is the mask of the legal actions and not an input. Actions can be
    `Discrete`, a `Box` of floats, or a `Composite` of these.

    Raises:
        ValueError: If a space is not supported.
    """
    encoder_key, policy_key, value_key = jax.random.split(key, 3)
    # Sorted, because JAX sorts the keys of dictionaries.
    fields = sorted(
        ((name, space) for name, space in _parts(observation_space) if name != _MASK),
        key=operator.itemgetter(0),
    )
    if not fields:
        raise ValueError(f"the observation space {observation_space} has no inputs for a network; {_HINT}")
    keys = jax.random.split(encoder_key, len(fields))
    encoders = {name: _encoder(name, space, config, k) for (name, space), k in zip(fields, keys, strict=True)}
    features = sum(encoder.size for encoder in encoders.values())
    parts = _parts(action_space)
    for name, space in parts:
        if not isinstance(space, Discrete) and not _is_continuous(space):
            raise ValueError(f"there is no default network for {_name('action', name)}: {space}; {_HINT}")
    outputs = sum(_num_outputs(space) for _, space in parts)
    log_std = {name: jnp.zeros(_num_outputs(space)) for name, space in parts if _is_continuous(space)}
    policy = _create_mlp(features, outputs, config, policy_key, scale=0.01)
    value = _create_mlp(features, 1, config, value_key, scale=1.0)
    return SpacesNetwork(encoders, policy, value, log_std, action_space)


_HINT = "pass a network, such as --network file.py:Name, or set EnvSpec.network"


def _encoder(name: str, space: Space, config: DefaultNetworkConfig, key: Key) -> Encoder:
    if isinstance(space, Discrete):
        return _EmbeddingEncoder(jax.random.normal(key, (space.n, config.embedding_dim)))
    if isinstance(space, Box) and len(space.shape) < 2:
        return _VectorEncoder(space)
    if isinstance(space, Box) and len(space.shape) < 4:
        return _ImageEncoder(space, config, key)
    raise ValueError(f"there is no default network for {_name('observation', name)}: {space}; {_HINT}")


def _create_mlp(
    inputs: int, outputs: int, config: DefaultNetworkConfig, key: Key, scale: float
) -> tuple[Dense, ...]:
    *hidden_keys, last = jax.random.split(key, config.num_layers + 1)
    sizes = [inputs] + [config.hidden_dim] * config.num_layers
    hidden = [
        Dense(size, config.hidden_dim, key=k, scale=math.sqrt(2))
        for size, k in zip(sizes[:-1], hidden_keys, strict=True)
    ]
    return *hidden, Dense(sizes[-1], outputs, key=last, scale=scale)


def _mlp(layers: tuple[Dense, ...], x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
    *hidden, last = layers
    return last(functools.reduce(lambda x, layer: jnp.tanh(layer(x)), hidden, x))


def _parts(space: Space) -> list[tuple[str, Space]]:
    """Return the fields of a `Composite`, or the space itself with an empty name."""
    return list(space.fields) if isinstance(space, Composite) else [("", space)]


def _num_outputs(space: Space) -> int:
    return space.n if isinstance(space, Discrete) else math.prod(getattr(space, "shape", ()))


def _is_continuous(space: Space) -> bool:
    return isinstance(space, Box) and np.issubdtype(space.dtype, np.inexact)


def is_embedded(space: Box) -> bool:
    """Return whether the values of an image are discrete, so that the network embeds them."""
    is_integer = np.issubdtype(space.dtype, np.integer) or np.dtype(space.dtype) == np.bool_
    return len(space.shape) == 2 and is_integer and space.high - space.low < _MAX_COLORS


def scale_to_bounds(space: Box, value: Array) -> Float[Array, "*shape"]:
    """Scale a value to [-1, 1] if the bounds of its space are finite. Otherwise, convert it to floats."""
    number = jnp.asarray(value, jnp.float32)
    if not (math.isfinite(space.low) and math.isfinite(space.high)) or space.high <= space.low:
        return number
    middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    return (number - middle) / half


def _name(kind: str, field: str) -> str:
    return f"{kind}.{field}" if field else kind
