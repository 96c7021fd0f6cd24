"""Extraction of answers from the outputs of models."""

MAX_ANSWER_CHARS = 20_000
"""Maximum number of characters in a model's output. Longer outputs are rejected without parsing them."""


def extract_answer(text: str) -> str:
    """Extract the answer from a model's output.

    The answer is the content of the last pair of `<answer>` tags. Without such tags, it is all of the text. A
    code fence around the answer is removed.

    Raises:
        ValueError: If the answer is empty or the output has more than `MAX_ANSWER_CHARS` characters.

    >>> extract_answer("Row 1 lacks 4. <answer>1 2 4</answer>"), extract_answer(" 1 2 4\\n")
    ('1 2 4', '1 2 4')
    >>> extract_answer("```text\\n1 2 4\\n```")
    '1 2 4'
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise ValueError(f"an answer has at most {MAX_ANSWER_CHARS:,} characters, got {len(text):,}")
    if "</answer>" in text:
        before, _, _ = text.rpartition("</answer>")
        text = before.rpartition("<answer>")[2]
    answer = text.strip()
    if answer.startswith("```") and answer.endswith("```") and "\n" in answer:
        answer = answer.partition("\n")[2].removesuffix("```").strip()
    if not answer:
        raise ValueError("the answer is empty")
    return answer


def quote(text: str, max_chars: int = 40) -> str:
    """Quote a model's text for an error message.

    The text is shortened to at most `max_chars` characters, and non-ASCII characters are escaped.

    >>> quote("x" * 50)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"
    """
    return ascii(text if len(text) <= max_chars else f"{text[: max_chars - 3]}...")
