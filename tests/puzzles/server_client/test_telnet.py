"""Telnet parsing: commands and text in any order and split into any packets."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from phalanx.puzzles.server_client.telnet import (
    IAC,
    KEEPALIVE,
    SB,
    SE,
    Negotiation,
    NegotiationVerb,
    TelnetParser,
)


def events(*packets: bytes) -> list[bytes | Negotiation]:
    """Return all events of the packets; adjacent texts are joined."""
    parser = TelnetParser()
    joined: list[bytes | Negotiation] = []
    for packet in packets:
        for event in parser.feed(packet):
            if isinstance(event, bytes) and joined and isinstance(joined[-1], bytes):
                joined[-1] += event
            else:
                joined.append(event)
    return joined


def test_command_is_parsed_between_texts() -> None:
    assert events(b"ab\xff\xfd\x22cd") == [b"ab", Negotiation(NegotiationVerb.DO, 34), b"cd"]


def test_command_split_across_packets_is_parsed() -> None:
    assert events(b"a\xff", b"\xfb", b"\x22b") == [b"a", Negotiation(NegotiationVerb.WILL, 34), b"b"]


def test_doubled_byte_255_is_text() -> None:
    assert events(b"a\xff\xffb") == [b"a\xffb"]
    assert events(b"a\xff", b"\xffb") == [b"a\xffb"]


def test_no_operation_command_produces_no_event() -> None:
    assert bytes.fromhex("fff1" * 5) == KEEPALIVE
    assert events(b"a" + KEEPALIVE + b"b") == [b"ab"]


def test_subnegotiation_with_doubled_byte_255_is_dropped() -> None:
    assert events(b"x\xff\xfa\x18\x00A\xff\xff\xf0B\xff\xf0y") == [b"xy"]


def test_unterminated_subnegotiation_raises_error() -> None:
    with pytest.raises(ValueError, match="has not ended after 4096 bytes"):
        events(b"\xff\xfa\x18" + b"a" * 5000)


texts = st.binary(min_size=1, max_size=6).map(lambda data: data.replace(b"\xff", b"\xff\xff"))
negotiations = st.builds(
    lambda verb, option: bytes([IAC, verb, option]), st.sampled_from(NegotiationVerb), st.integers(0, 255)
)
subnegotiations = texts.map(lambda data: bytes([IAC, SB]) + data + bytes([IAC, SE]))
others = st.integers(241, 249).map(lambda kind: bytes([IAC, kind]))
streams = st.lists(st.one_of(texts, negotiations, subnegotiations, others), max_size=12).map(b"".join)


@settings(deadline=None)
@given(streams, st.lists(st.integers(0, 80), max_size=10))
def test_events_do_not_depend_on_packet_boundaries(stream: bytes, cuts: list[int]) -> None:
    boundaries = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    packets = [stream[a:b] for a, b in itertools.pairwise(boundaries)]
    assert events(*packets) == events(stream)
    assert events(*(bytes([byte]) for byte in stream)) == events(stream)
