"""Chat templates, which render conversations with `transformers` and locate the assistant's turns."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from phalanx.data.tokenizers import (
    find_tokenizer_file,
    load_tokenizer_config,
    parse_special_tokens,
    short_hash,
)
from phalanx.extras import require_extra

Message: TypeAlias = Mapping[str, Any]
"""A message in a conversation, with `role`, `content` and any other keys that a template uses. A tool
call can be without `content`."""
Span: TypeAlias = tuple[int, int]
"""Range of characters in a text, as a pair of the start (inclusive) and the end (exclusive)."""

CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
BUILT_IN_TEMPLATES = {"chatml": CHATML}
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_TEXT_PARTS = re.compile(r"""\.text\b|\[['"]text['"]\]""")
_NULL_CONTENT = re.compile(r"""\bcontent\b(?:['"]\])?\s+is\s+(?:not\s+)?none\b""", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template. It is rendered with `transformers`."""

    source: str
    """Text of the template."""
    special_tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Special tokens that the template uses as variables, such as `bos_token`."""

    @property
    def marks_generation(self) -> bool:
        """True if the template marks the assistant's text with `{% generation %}`."""
        return _GENERATION.search(self.source) is not None

    @property
    def digest(self) -> str:
        """Hash of the template and its special tokens."""
        return short_hash(repr((self.source, sorted(self.special_tokens.items()))).encode())

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False, **variables: Any
    ) -> str:
        """Render a conversation as text.

        Args:
            messages: Messages of the conversation.
            add_generation_prompt: Add the text that precedes the assistant's next turn.
            **variables: `tools`, `documents`, and any other variables of the template.
        """
        return self._render(messages, add_generation_prompt, False, variables)[0]

    def render_with_spans(
        self, messages: Sequence[Message], turns: Sequence[int], **variables: Any
    ) -> tuple[str, list[Span]]:
        """Render a conversation as text, and find the character ranges of the selected assistant turns.

        If the template has `{% generation %}` tags, they determine the ranges. Otherwise, for each turn,
        the conversation is rendered up to the start of the turn and up to its end. The lengths of these two
        texts are the start and the end of the range.

        Args:
            messages: Messages of the conversation.
            turns: Indices of the assistant messages whose ranges are returned.
            **variables: Variables of the template.
        """
        if self.marks_generation:
            text, spans = self._render(messages, False, True, variables)
            assistant = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
            if list(turns) == assistant:
                return text, spans
            if len(spans) == len(assistant):
                return text, [span for index, span in zip(assistant, spans, strict=True) if index in turns]
        text = self.render(messages, **variables)
        spans = []
        for turn in turns:
            before = self.render(messages[:turn], add_generation_prompt=True, **variables)
            until = self.render(messages[: turn + 1], **variables)
            if not text.startswith(until):
                raise ValueError(
                    f"the chat template renders message {turn} differently if others follow it, so its "
                    f"position is unknown; compute the loss on the last turn only (loss_tokens='last_turn')"
                )
            if not until.startswith(before):
                # The turns do not begin with the generation prompt, so they are located without it.
                before = self.render(messages[:turn], **variables)
            if not until.startswith(before):
                raise ValueError(f"the position of message {turn} in the chat template's text is unknown")
            spans.append((len(before), len(until)))
        return text, spans

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        return_spans: bool,
        variables: Mapping[str, Any],
    ) -> tuple[str, list[Span]]:
        with require_extra("a chat template", "hf", "jinja2", "transformers"):
            import jinja2.exceptions
            from transformers.utils.chat_template_utils import render_jinja_template
        # Templates of multimodal models accept contents that are lists of parts.
        accepts_parts = _TEXT_PARTS.search(self.source) is not None
        # A template that tests for a null content needs one. Others print it as "None" or reject it.
        accepts_null = _NULL_CONTENT.search(self.source) is not None
        conversation = [_prepare_message(message, accepts_parts, accepts_null) for message in messages]
        try:
            rendered: Any = render_jinja_template(
                conversations=[conversation],
                chat_template=self.source,
                add_generation_prompt=add_generation_prompt,
                return_assistant_tokens_mask=return_spans,
                **{**self.special_tokens, **variables},
            )
        except jinja2.exceptions.TemplateSyntaxError as error:
            raise ValueError(f"the chat template is not valid Jinja: {error}") from error
        except (jinja2.exceptions.TemplateError, TypeError) as error:
            raise ValueError(f"the chat template rejects these messages: {error}") from error
        texts, spans = rendered
        return texts[0], [(int(begin), int(end)) for begin, end in spans[0]] if return_spans else []


def _prepare_message(message: Message, accepts_parts: bool, accepts_null: bool) -> dict[str, Any]:
    content = message.get("content")
    if content is None:
        rest = {name: value for name, value in message.items() if name != "content"}
        return rest | {"content": None} if accepts_null else rest
    if accepts_parts or isinstance(content, str):
        return dict(message)
    return {**message, "content": "".join(part["text"] for part in content)}


def load_chat_template(
    tokenizer: str | os.PathLike[str], template: str | os.PathLike[str] | None = None
) -> ChatTemplate:
    """Load a chat template, together with the special tokens of a tokenizer.

    Args:
        tokenizer: Folder, path of a `tokenizer.json`, or name on the Hugging Face Hub.
        template: Name of a built-in template (`chatml`) or path of a Jinja file. Defaults to the tokenizer's
            own template.
    """
    config = load_tokenizer_config(tokenizer)
    special = parse_special_tokens(config)
    if template is not None:
        if str(template) in BUILT_IN_TEMPLATES:
            return ChatTemplate(BUILT_IN_TEMPLATES[str(template)], special)
        if not Path(template).is_file():
            raise FileNotFoundError(
                f"there is no chat template {template}; use a Jinja file or {', '.join(BUILT_IN_TEMPLATES)}"
            )
        return ChatTemplate(Path(template).read_text(encoding="utf-8"), special)
    source = config.get("chat_template")
    # A local file has precedence over the config. From the Hub, it is downloaded only if it is needed.
    if source is None or Path(tokenizer).exists():
        file = find_tokenizer_file(tokenizer, "chat_template.jinja")
        source = source if file is None else file.read_text(encoding="utf-8")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default") or next(iter(named.values()), None)
    if not isinstance(source, str):
        raise ValueError(
            f"the tokenizer {os.fspath(tokenizer)} has no chat template; choose one: 'chatml' or a Jinja file"
        )
    return ChatTemplate(source, special)
