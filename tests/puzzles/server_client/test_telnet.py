"""Telnet parsing: commands and text in any order and split into any packets."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from phalanx.puzzles.server_client.telnet import DO_LINEMODE, IAC, KEEPALIVE, WILL_LINEMODE, TelnetParser


def parse(*packets: bytes) -> tuple[bytes, list[bytes]]:
    """Return the text and the negotiations in all packets."""
    parser = TelnetParser()
    texts, negotiations = zip(*map(parser.feed, packets), strict=True) if packets else ((), ())
    return b"".join(texts), list(itertools.chain.from_iterable(negotiations))


def test_negotiation_is_separated_from_text() -> None:
    assert parse(b"ab\xff\xfd\x22cd") == (b"abcd", [DO_LINEMODE])


def test_command_split_across_packets_is_parsed() -> None:
    assert parse(b"a\xff", b"\xfb", b"\x22b") == (b"ab", [WILL_LINEMODE])


def test_doubled_byte_255_is_text() -> None:
    assert parse(b"a\xff\xffb") == (b"a\xffb", [])
    assert parse(b"a\xff", b"\xffb") == (b"a\xffb", [])


def test_no_operation_command_is_dropped() -> None:
    assert bytes.fromhex("fff1" * 5) == KEEPALIVE
    assert parse(b"a" + KEEPALIVE + b"b") == (b"ab", [])


def test_subnegotiation_with_doubled_byte_255_is_dropped() -> None:
    assert parse(b"x\xff\xfa\x18\x00A\xff\xff\xf0B\xff\xf0y") == (b"xy", [])


def test_unterminated_subnegotiation_raises_error() -> None:
    with pytest.raises(ValueError, match="has not ended after 4096 bytes"):
        parse(b"\xff\xfa\x18" + b"a" * 5000)


texts = st.binary(min_size=1, max_size=6).map(lambda data: data.replace(b"\xff", b"\xff\xff"))
negotiations = st.builds(
    lambda verb, option: IAC + bytes([verb, option]), st.integers(251, 254), st.integers(0, 255)
)
subnegotiations = texts.map(lambda data: b"\xff\xfa" + data + b"\xff\xf0")
others = st.integers(241, 249).map(lambda kind: IAC + bytes([kind]))
streams = st.lists(st.one_of(texts, negotiations, subnegotiations, others), max_size=12).map(b"".join)


@settings(deadline=None)
@given(streams, st.lists(st.integers(0, 80), max_size=10))
def test_result_does_not_depend_on_packet_boundaries(stream: bytes, cuts: list[int]) -> None:
    boundaries = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    packets = [stream[a:b] for a, b in itertools.pairwise(boundaries)]
    assert parse(*packets) == parse(stream)
    assert parse(*(bytes([byte]) for byte in stream)) == parse(stream)
