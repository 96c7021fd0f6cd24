"""Chat templates: conversations as one text, with the places of the turns that are learned.

Templates are Jinja, as tokenizers of Hugging Face carry them. Which rows are conversations is in `formats`.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from phalanx.io.untrusted import read_json

Message: TypeAlias = Mapping[str, Any]
"""`role` and `content`, and whatever else a template uses."""
Span: TypeAlias = tuple[int, int]
"""Where in a text a part begins and ends, in characters."""

CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
BUILT_IN = {"chatml": CHATML}
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template of a whole conversation; `special_tokens` are the names that it may use."""

    source: str
    special_tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        # What was compiled cannot travel to other processes, and is soon compiled again.
        return ChatTemplate, (self.source, dict(self.special_tokens))

    @cached_property
    def _compiled(self) -> Any:
        try:
            import jinja2.ext
            import jinja2.sandbox
        except ImportError as error:
            raise ImportError(
                "to use chat templates, install jinja2: pip install 'phalanx[tokenizers]'"
            ) from error

        def refuse(message: str) -> None:
            raise jinja2.exceptions.TemplateError(message)

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
        environment.globals["raise_exception"] = refuse
        try:
            # What the model is to write is found by comparing texts, for any template.
            return environment.from_string(_GENERATION.sub("", self.source))
        except jinja2.exceptions.TemplateError as error:
            raise ValueError(f"the chat template is not valid Jinja: {error}") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False, **more: Any) -> str:
        """The text of a conversation, with what comes before the model's next turn if asked for."""
        import jinja2.exceptions

        try:
            return str(
                self._compiled.render(
                    messages=list(messages),
                    add_generation_prompt=add_generation_prompt,
                    **{**self.special_tokens, **more},
                )
            )
        except (jinja2.exceptions.TemplateError, TypeError) as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error

    def render_with_turns(
        self, messages: Sequence[Message], learned: Sequence[int], **more: Any
    ) -> tuple[str, list[Span]]:
        """The text, and where in it the learned messages' text is, with what ends their turns."""
        whole = self.render(messages, **more)
        spans = []
        for number in learned:
            before = self.render(messages[:number], add_generation_prompt=True, **more)
            until = self.render(messages[: number + 1], **more)
            if not whole.startswith(until):
                raise ValueError(
                    f"the chat template writes message {number} otherwise once others follow it, so that it "
                    f"cannot be told where it stands; take the loss on the last turn alone (loss='last')"
                )
            if not until.startswith(before):
                # A template whose turns do not begin as its generation prompt does: its own text is learned.
                before = self.render(messages[:number], **more)
            if not until.startswith(before):
                raise ValueError(f"it cannot be told where the chat template puts message {number}")
            spans.append((len(before), len(until)))
        return whole, spans


def load_chat_template(
    tokenizer: str | os.PathLike[str], template: str | os.PathLike[str] | None = None
) -> ChatTemplate:
    """The chat template that a tokenizer carries, or another one: a built-in's name or a Jinja file.

    A tokenizer is a folder, a `tokenizer.json` with its `tokenizer_config.json` beside it, or a Hugging Face
    name.
    """
    config = _tokenizer_config(tokenizer)
    special = {name: _token_text(config[name]) for name in _SPECIAL if config.get(name)}
    if template is not None:
        if str(template) in BUILT_IN:
            return ChatTemplate(BUILT_IN[str(template)], special)
        if not Path(template).is_file():
            raise FileNotFoundError(
                f"there is no chat template {template}; built in is {', '.join(BUILT_IN)}"
            )
        return ChatTemplate(Path(template).read_text(encoding="utf-8"), special)
    beside = _folder(tokenizer) / "chat_template.jinja"
    found = config.get("chat_template")
    if beside.is_file():
        found = beside.read_text(encoding="utf-8")
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("default") or next(iter(named.values()), None)
    if not isinstance(found, str):
        raise ValueError(
            f"the tokenizer {os.fspath(tokenizer)} carries no chat template; name one: 'chatml', or a file "
            f"of Jinja"
        )
    return ChatTemplate(found, special)


def _folder(tokenizer: str | os.PathLike[str]) -> Path:
    path = Path(tokenizer)
    return path if path.is_dir() else path.parent


def _tokenizer_config(tokenizer: str | os.PathLike[str]) -> dict[str, Any]:
    path = Path(tokenizer)
    if path.exists():
        beside = _folder(tokenizer) / "tokenizer_config.json"
        return _object(beside) if beside.is_file() else {}
    if os.fspath(tokenizer) == "bytes":
        return {}
    from phalanx.data.tokenizers import fetch

    return _object(fetch(os.fspath(tokenizer), "tokenizer_config.json"))


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object")
    return value


def _token_text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, Mapping) else str(token)
