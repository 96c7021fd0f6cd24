"""Drop-in replacement for `chuk_lazarus.data.batching.streaming.replay_buffer`."""

from phalanx.data.replay.config import EvictionPolicy as BufferEvictionPolicy, ReplayBufferConfig
from phalanx.data.replay.rows import BufferSnapshot
from phalanx.data.replay_buffer import ReplayBuffer

__all__ = ["BufferEvictionPolicy", "BufferSnapshot", "ReplayBuffer", "ReplayBufferConfig"]
