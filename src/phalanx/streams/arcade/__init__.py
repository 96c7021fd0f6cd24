"""The puzzle arcade: its telnet client, connection pool and episode streams."""
