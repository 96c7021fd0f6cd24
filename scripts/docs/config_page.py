"""Generate `docs/reference/config.md`: all settings of all public config models, and the presets.

Names, types, defaults, bounds and descriptions come from the Pydantic models.
"""

import enum
import importlib
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from phalanx.config import PRESET_FOLDER

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "ARC": {
        "phalanx.arc.config": (
            "ArcConfig",
            "EpisodeConfig",
            "DatasetConfig",
            "ActionConfig",
            "RewardConfig",
            "ObservationConfig",
        )
    },
    "Proofs": {
        "phalanx.proofs.config": (
            "ProofConfig",
            "QueryConfig",
            "ProofRewardConfig",
            "FamilyTreeConfig",
            "DepthCurriculumStage",
            "ProofEvaluationConfig",
        ),
        "phalanx.kg.kge.models": ("KGEModelConfig",),
        "phalanx.proofs.score_combination": ("HybridConfig",),
        "phalanx.kg.rules.mining": ("MiningConfig",),
        "phalanx.kg.path_network": ("PathNetworkConfig",),
    },
    "Token batches": {
        "phalanx.data.plans.batching_config": ("BatchingConfig",),
        "phalanx.data.packing": ("PackingConfig",),
        "phalanx.data.plans.buckets": ("BucketSpec",),
        "phalanx.data.plans.sharding": ("ShardingConfig",),
        "phalanx.data.plans.streaming_plan": ("StreamingPlanConfig",),
        "phalanx.data.plans.mixture": ("MixtureConfig", "MixtureMilestone"),
        "phalanx.data.tokenization": ("TokenizeConfig",),
    },
    "Streams": {
        "phalanx.data.replay_buffer": ("ReplayBufferConfig",),
        "phalanx.data.replay_planner": ("ReplayPlannerConfig",),
        "phalanx.puzzles.server_client.episodes": ("CollectConfig",),
        "phalanx.puzzles.server_client.episode_pool": ("ConnectionPoolConfig",),
        "phalanx.puzzles.server_client.client": ("PuzzleClientConfig",),
        "phalanx.compat.chuk_lazarus.data.batching.streaming.gym_stream": ("GymConfig",),
    },
    "Training": {
        "phalanx.arc.evaluation": ("ArcEvaluationConfig", "ArcEvalCommandConfig"),
        "phalanx.training.bc": ("BCConfig",),
        "phalanx.arc.networks": ("ArcNetworkConfig",),
        "phalanx.training.ppo": ("PPOConfig",),
        "phalanx.core.evaluation": ("EvaluationConfig", "EpisodeEvaluationConfig"),
        "phalanx.core.policy_from_spaces": ("DefaultNetworkConfig",),
        "phalanx.training.config": ("RunConfig", "PolicyRunConfig", "EnvConfig", "CheckpointConfig"),
        "phalanx.proofs.network": ("ProofNetworkConfig",),
        "phalanx.training.kge": ("KGEConfig", "KGEEvaluationConfig"),
        "phalanx.proofs.link_prediction": ("LinkPredictionConfig",),
        "phalanx.proofs.search.beam": ("BeamSearchConfig",),
        "phalanx.proofs.search.best_first": ("BestFirstConfig",),
        "phalanx.proofs.search.heuristics": ("HeuristicNetworkConfig",),
        "phalanx.training.search_heuristic": (
            "SearchHeuristicConfig",
            "HeuristicEvaluationConfig",
        ),
    },
    "Language model": {
        "phalanx.training.sft": ("SFTConfig", "SFTDataConfig"),
        "phalanx.training.grpo": ("GRPOConfig",),
        "phalanx.training.text_task_curriculum": ("TaskCurriculumConfig",),
        "phalanx.training.optimizer": ("OptimizerConfig",),
        "phalanx.lm.model": ("LanguageModelConfig",),
        "phalanx.lm.sampling": ("SamplingConfig",),
        "phalanx.lm.evaluation": ("TextEvalConfig",),
        "phalanx.text.names": ("TextEnvConfig",),
        "phalanx.puzzles.server_client.env": ("PuzzleServerEnvConfig",),
    },
    "Logging": {"phalanx.logging.config": ("LoggingConfig",)},
}
"""Config models by section of the page and module. A test reports models that are missing."""

_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"), ("min_length", "length ≥"))


def models() -> Iterator[tuple[str, str, type[BaseModel]]]:
    """Iterate over the section, module and class of every public config model."""
    for group, modules in GROUPS.items():
        for module, names in modules.items():
            for name in names:
                yield group, module, getattr(importlib.import_module(module), name)


def page() -> str:
    """Return the Markdown of the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    known = {model for _, _, model in models()}
    yield "# Settings"
    yield ""
    yield (
        "This page lists all settings. Config objects are immutable. `load_config(ArcConfig, preset, "
        "overrides)` creates one from a preset and overrides; an unknown setting or an invalid value raises "
        "an error. On the command line and in overrides, the name of a nested setting contains dots, as in "
        "`optimizer.learning_rate=1e-3`. A type that is a link is a nested config."
    )
    yield from _preset_lines()
    shown = ""
    for group, module, model in models():
        if group != shown:
            yield from ("", f"## {group}")
            shown = group
        yield from ("", f"### {model.__name__}", "", f"`{module}`. {_paragraph(model.__doc__ or '')}", "")
        yield from _table(model, known)


def _preset_lines() -> Iterator[str]:
    yield from ("", "## Presets", "")
    yield (
        "A preset is a YAML file with settings that differ from the defaults. `phalanx train ALGORITHM "
        '--config PRESET` and `load_config(ArcConfig, "mini")` accept the name of a preset or the path of '
        "your own file."
    )
    yield from ("", "| group | preset | description |", "| --- | --- | --- |")
    for path in sorted(PRESET_FOLDER.rglob("*.yaml")):
        group = path.parent.relative_to(PRESET_FOLDER).as_posix()
        yield f"| `{group}` | `{path.stem}` | {_escaped(_head_comment(path.read_text(encoding='utf-8')))} |"


def _head_comment(text: str) -> str:
    """Return the comment at the top of a preset, without Hydra's header."""
    words = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            words.append(line.lstrip("# ").strip())
    return " ".join(words)


def _table(model: type[BaseModel], known: set[type[BaseModel]]) -> Iterator[str]:
    yield "| setting | default | description |"
    yield "| --- | --- | --- |"
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        bounds = _bounds(field)
        kind = _type(field.annotation, known) + (f", {bounds}" if bounds else "")
        description = _escaped(_paragraph(field.description or ""))
        yield f"| `{name}`<br>{kind} | {_default(field, section)} | {description} |"


def _section(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _type(annotation: Any, known: set[type[BaseModel]]) -> str:
    section = _section(annotation)
    if section in known:
        return f"[{section.__name__}](#{section.__name__.lower()})"
    # Markdown parsers do not agree on how to escape a pipe in inline code in a table.
    return " or ".join(f"`{name}`" for name in _type_names(annotation))


def _type_names(annotation: Any) -> list[str]:
    """Return the alternatives of a type, by name or value."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_names(arguments[0])
    if origin is Literal:
        return [repr(argument) for argument in arguments]
    if origin in (Union, types.UnionType):
        return [name for argument in arguments for name in _type_names(argument)]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [repr(member.value) for member in annotation]
    if annotation in (None, type(None)):
        return ["None"]
    if annotation is Ellipsis:
        return ["..."]
    if origin is not None:
        inner = (" or ".join(_type_names(argument)) for argument in arguments)
        return [f"{origin.__name__}[{', '.join(inner)}]"]
    return [annotation.__name__ if isinstance(annotation, type) else str(annotation)]


def _default(field: FieldInfo, section: type[BaseModel] | None) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if section is None:
        return f"`{_value(value)}`"
    # Show only values that differ from the defaults of the nested config.
    changed = [
        f"`{name}={_value(getattr(value, name))}`"
        for name, inner in section.model_fields.items()
        if inner.is_required() or getattr(value, name) != inner.get_default(call_default_factory=True)
    ]
    return f"defaults, with {', '.join(changed)}" if changed else "defaults"


def _value(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, tuple):
        inner = ", ".join(map(_value, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _bounds(field: FieldInfo) -> str:
    found = []
    for mark in field.metadata:
        for attribute, sign in _BOUNDS:
            bound = getattr(mark, attribute, None)
            if bound is not None:
                found.append(f"{sign} {_power(bound)}")
    return ", ".join(found)


def _power(bound: Any) -> str:
    """Format large powers of two as powers, such as 2<sup>31</sup>."""
    if isinstance(bound, int) and bound >= 2**20 and bound & (bound - 1) == 0:
        return f"2<sup>{bound.bit_length() - 1}</sup>"
    return f"{bound:,}" if isinstance(bound, int) else str(bound)


def _paragraph(text: str) -> str:
    """Return the first paragraph on one line."""
    return " ".join(text.strip().split("\n\n")[0].split())


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
