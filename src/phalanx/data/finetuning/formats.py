"""Rows of fine-tuning data as texts with learned parts: conversations, prompts, texts, preference pairs.

Texts become tokens in `samples`; conversations become texts in `chat`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from phalanx.data.chat_template import ChatTemplate, Message, Span

Template: TypeAlias = Literal["auto", "chat", "prompt", "text", "preference", "tokens"]
Loss: TypeAlias = Literal["auto", "all", "completion", "assistant", "last"]

_MESSAGES = ("messages", "conversations", "conversation")
_PAIRS = (("prompt", "completion"), ("prompt", "response"), ("instruction", "output"), ("question", "answer"))
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}


@dataclasses.dataclass(frozen=True)
class Part:
    """One sample of a row: its text, what of it is learned, and the messages that it was made of."""

    name: str
    """What comes behind the row's id: nothing, or which of a pair it is."""
    text: str
    learned: list[Span]
    ends: bool
    """Whether the end of text belongs behind it unless the caller says otherwise."""
    messages: tuple[Message, ...] = ()
    first_learned: int = 0
    """The first message that may be learned."""


def template_of(row: Mapping[str, Any]) -> Template:
    """What a row is, by its columns."""
    if row.get("input_ids") is not None:
        return "tokens"
    if row.get("chosen") is not None and row.get("rejected") is not None:
        return "preference"
    if any(row.get(name) is not None for name in _MESSAGES):
        return "chat"
    if _pair(row) is not None:
        return "prompt"
    return "text"


def parts_of(row: Mapping[str, Any], template: Template, loss: Loss, chat: ChatTemplate | None) -> list[Part]:
    """The samples of a row: one, or the two of a preference pair; a ValueError says what is missing."""
    if template == "chat":
        messages = next((row[name] for name in _MESSAGES if row.get(name) is not None), None)
        if messages is None:
            raise ValueError(f"a conversation needs {' or '.join(_MESSAGES)}; the row has {_columns(row)}")
        return [chat_part(messages_of(messages), loss, chat, tools=row.get("tools"))]
    if template == "prompt":
        pair = _pair(row)
        if pair is None:
            wanted = ", or ".join(" and ".join(names) for names in _PAIRS)
            raise ValueError(f"the row needs {wanted}; it has {_columns(row)}")
        return [_completed(*pair, "", loss, chat)]
    if template == "preference":
        for name in ("chosen", "rejected"):
            if row.get(name) is None:
                raise ValueError(f"a preference pair needs chosen and rejected; the row has {_columns(row)}")
        prompt = row.get("prompt")
        return [
            _completed(_empty(row[name]) if prompt is None else prompt, row[name], f"/{name}", loss, chat)
            for name in ("chosen", "rejected")
        ]
    text = row.get("text")
    if not isinstance(text, str):
        raise ValueError(f"a text is expected in 'text'; the row has {_columns(row)}")
    if loss not in ("auto", "all"):
        raise ValueError(f"a text has no {loss} turns: take the loss on all of it")
    return [Part("", text, [(0, len(text))], ends=True)]


def chat_part(
    messages: Sequence[Message],
    loss: Loss,
    chat: ChatTemplate | None,
    *,
    name: str = "",
    first_learned: int = 0,
    tools: Any = None,
) -> Part:
    """A conversation of which the assistant's turns, from the first that may be learned on, are learned."""
    if chat is None:
        raise ValueError("conversations need a chat template")
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    turns = [place for place in turns if place >= first_learned]
    more = {"tools": tools} if tools else {}
    if loss == "all":
        text = chat.render(messages, **more)
        return Part(name, text, [(0, len(text))], False, tuple(messages), first_learned)
    if not turns:
        raise ValueError("there is no assistant's turn to take a loss on")
    text, spans = chat.render_with_turns(messages, turns[-1:] if loss == "last" else turns, **more)
    return Part(name, text, spans, False, tuple(messages), first_learned)


def messages_of(found: Any) -> list[Message]:
    """Messages with `role` and `content`, from either way of writing them."""
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise ValueError(f"expected a list of messages, got {found!r:.60}")
    return [_message(message, place) for place, message in enumerate(found)]


def _message(message: Any, place: int) -> Message:
    if not isinstance(message, Mapping):
        raise ValueError(f"message {place} must have role and content, got {message!r:.60}")
    role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    if isinstance(content, Sequence) and not isinstance(content, str):
        texts = [part["text"] for part in content if isinstance(part, Mapping) and part.get("text")]
        if len(texts) != len(content):
            raise ValueError(f"message {place} holds more than text, which cannot be packed")
        content = "".join(texts)
    if not isinstance(role, str) or not (isinstance(content, str) or message.get("tool_calls")):
        raise ValueError(f"message {place} must have role and content, got {dict(message)!r:.80}")
    rest = {name: value for name, value in message.items() if name not in ("from", "value")}
    return rest | {"role": _ROLES.get(role, role), "content": content}


def _pair(row: Mapping[str, Any]) -> tuple[Any, Any] | None:
    for prompt, completion in _PAIRS:
        if row.get(prompt) is not None and row.get(completion) is not None:
            asked = row[prompt]
            if prompt == "instruction" and row.get("input"):
                asked = f"{asked}\n\n{row['input']}"
            return asked, row[completion]
    return None


def _completed(prompt: Any, completion: Any, name: str, loss: Loss, chat: ChatTemplate | None) -> Part:
    """A prompt with its completion, as texts or both as messages."""
    if isinstance(prompt, str) and isinstance(completion, str):
        if loss in ("assistant", "last"):
            raise ValueError(f"texts have no {loss} turn: take the loss on the completion, or on all")
        whole = prompt + completion
        return Part(name, whole, [(0 if loss == "all" else len(prompt), len(whole))], ends=True)
    if isinstance(prompt, str) or isinstance(completion, str):
        raise ValueError("prompt and completion must both be texts, or both lists of messages")
    asked = messages_of(prompt) if prompt else []
    answered = messages_of(completion)
    # TRL writes the prompt into both answers; what they share is not learned.
    shared = next((n for n, (a, b) in enumerate(zip(asked, answered, strict=False)) if a != b), len(asked))
    messages = answered if asked and shared == len(asked) else [*asked, *answered]
    first = len(asked) if asked else len(messages) - 1
    return chat_part(messages, loss, chat, name=name, first_learned=first)


def _empty(completion: Any) -> Any:
    return "" if isinstance(completion, str) else []


def _columns(row: Mapping[str, Any]) -> str:
    return ", ".join(row) or "nothing"
