"""Handlers: where a logger writes to."""
