"""Telnet commands: told from text in any order, and whatever the packets are cut into."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from phalanx.puzzles.server.telnet import (
    IAC,
    KEEPALIVE,
    SB,
    SE,
    Negotiation,
    TelnetParser,
    Verb,
)


def events(*packets: bytes) -> list[bytes | Negotiation]:
    """All events of the packets, with texts that touch joined."""
    parser = TelnetParser()
    joined: list[bytes | Negotiation] = []
    for packet in packets:
        for event in parser.feed(packet):
            if isinstance(event, bytes) and joined and isinstance(joined[-1], bytes):
                joined[-1] += event
            else:
                joined.append(event)
    return joined


def test_a_command_stands_between_the_texts_around_it() -> None:
    assert events(b"ab\xff\xfd\x22cd") == [b"ab", Negotiation(Verb.DO, 34), b"cd"]


def test_a_command_cut_after_each_of_its_bytes_is_put_together() -> None:
    assert events(b"a\xff", b"\xfb", b"\x22b") == [b"a", Negotiation(Verb.WILL, 34), b"b"]


def test_the_byte_255_sent_twice_is_text() -> None:
    assert events(b"a\xff\xffb") == [b"a\xffb"]
    assert events(b"a\xff", b"\xffb") == [b"a\xffb"]


def test_no_operation_leaves_nothing() -> None:
    assert bytes.fromhex("fff1" * 5) == KEEPALIVE
    assert events(b"a" + KEEPALIVE + b"b") == [b"ab"]


def test_a_subnegotiation_is_dropped_up_to_its_end_and_not_to_a_doubled_byte() -> None:
    assert events(b"x\xff\xfa\x18\x00A\xff\xff\xf0B\xff\xf0y") == [b"xy"]


def test_a_subnegotiation_without_an_end_is_an_error_and_not_a_wait_for_ever() -> None:
    with pytest.raises(ValueError, match="has not ended after 4096 bytes"):
        events(b"\xff\xfa\x18" + b"a" * 5000)


texts = st.binary(min_size=1, max_size=6).map(lambda data: data.replace(b"\xff", b"\xff\xff"))
negotiations = st.builds(
    lambda verb, option: bytes([IAC, verb, option]), st.sampled_from(Verb), st.integers(0, 255)
)
subnegotiations = texts.map(lambda data: bytes([IAC, SB]) + data + bytes([IAC, SE]))
others = st.integers(241, 249).map(lambda kind: bytes([IAC, kind]))
streams = st.lists(st.one_of(texts, negotiations, subnegotiations, others), max_size=12).map(b"".join)


@settings(deadline=None)
@given(streams, st.lists(st.integers(0, 80), max_size=10))
def test_the_events_do_not_depend_on_where_the_packets_are_cut(stream: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    packets = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert events(*packets) == events(stream)
    assert events(*(bytes([byte]) for byte in stream)) == events(stream)
