"""Loading configs from defaults, presets and overrides, and error messages."""

import jax
import pytest
from hypothesis import given, strategies as st
from pydantic import Field

from phalanx.arc.config import ArcConfig
from phalanx.config import Config, list_presets, list_settings, load_config, load_preset, save_config


class Engine(Config):
    """A section with constraints of every kind."""

    power: int = Field(default=5, ge=1, le=9)
    """How strong."""
    fuel: str = "hay"
    heat: float = Field(default=1.0, gt=0)


class Cart(Config):
    wheels: int = Field(default=2, ge=1)
    """How many."""
    engine: Engine = Engine(fuel="oats")
    spare: Engine | None = None
    loads: tuple[int, ...] = ()
    covered: bool = False


class Letter(Config):
    address: str
    stamps: int = 1


def test_defaults_are_used_without_preset_and_overrides():
    assert load_config(ArcConfig) == ArcConfig()


def test_overrides_apply_to_sections_and_the_last_one_wins():
    config = load_config(Cart, overrides=["engine.power=3", "wheels=4", "engine.power=7", "loads=[1, 2]"])
    assert config == Cart(wheels=4, engine=Engine(power=7, fuel="oats"), loads=(1, 2))


def test_overriding_one_key_keeps_the_other_defaults_of_a_section():
    assert load_config(Cart, overrides=["engine.power=3"]).engine.fuel == "oats"


def test_overrides_are_yaml():
    overrides = ["covered=yes", "engine.heat=1e-3", "engine.fuel='7'", "spare=null", "engine={power: 2}"]
    config = load_config(Cart, overrides=overrides)
    assert config == Cart(covered=True, engine=Engine(power=2, fuel="7", heat=0.001), spare=None)


def test_an_optional_section_can_be_filled_by_overrides():
    assert load_config(Cart, overrides=["spare.power=2"]).spare == Engine(power=2)


def test_settings_and_overrides_build_on_a_base(tmp_path):
    preset = tmp_path / "fast.yaml"
    preset.write_text("# @package cart\nengine:\n  power: 9\n")
    for base in (preset, str(preset), Cart(engine=Engine(power=9, fuel="oats"))):
        config = load_config(Cart, base, ["engine.heat=2"], settings={"engine": {"heat": 3}, "wheels": 3})
        assert config == Cart(wheels=3, engine=Engine(power=9, fuel="oats", heat=2.0))


def test_a_config_of_another_class_is_a_type_error():
    with pytest.raises(TypeError, match="config must be of type Cart, the name of a preset or a path, got E"):
        load_config(Cart, Engine())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.pwer=3", "unknown key 'engine.pwer'; did you mean 'engine.power'?"),
        ("power=3", "unknown key 'power'; did you mean 'engine.power'?"),
        ("cart.wheels=3", "unknown key 'cart.wheels'; did you mean 'wheels'?"),
        ("engin.zebra=3", "unknown key 'engin.zebra'; did you mean 'engine'?"),
        ("zebra=3", "unknown key 'zebra'; valid here: wheels, engine, spare, loads, covered"),
        ("wheels.size=3", "unknown key 'wheels.size'; 'wheels' is a setting, not a section"),
        ("engine.power=10", "engine.power must be between 1 and 9, got 10"),
        ("wheels=0", "wheels must be at least 1, got 0"),
        ("engine.heat=0", "engine.heat must be more than 0.0, got 0"),
        ("wheels=many", "wheels must be an integer, got 'many'"),
        ("wheels=2.5", "wheels must be an integer, got 2.5"),
        ("engine.heat=hot", "engine.heat must be a number, got 'hot'"),
        ("engine.fuel=7", "engine.fuel must be a string, got 7"),
        ("covered=perhaps", "covered must be true or false, got 'perhaps'"),
        ("loads=7", "loads must be a list, got 7"),
        ("loads=[1, x]", r"loads\[1\] must be an integer, got 'x'"),
        ("engine=7", "engine must be settings as `key: value`, got 7"),
        ("wheels", "an override has the form key.sub=value.*got 'wheels'"),
        ("=3", "an override has the form key.sub=value.*got '=3'"),
        ("loads=[1", r"cannot read override 'loads=\[1'"),
        ("engine={power: 2, power: 3}", "cannot read override .*the key 'power' occurs twice"),
    ],
)
def test_invalid_override_is_rejected(override, message):
    with pytest.raises(ValueError, match=message):
        load_config(Cart, overrides=[override])


def test_all_invalid_values_are_reported_together():
    with pytest.raises(ValueError, match=r"wheels must be at least 1, got 0\nengine\.power must be between"):
        load_config(Cart, overrides=["wheels=0", "engine.power=0"])


def test_error_contains_the_dotted_name_of_the_setting():
    with pytest.raises(ValueError, match=r"^dataset\.max_grid_height must be between 1 and 30, got 40$"):
        load_config(ArcConfig, overrides=["dataset.max_grid_height=40"])


def test_misspelled_choice_gets_a_suggestion():
    message = "backend must be 'auto', 'native' or 'xla', got 'natve'; did you mean 'native'?"
    with pytest.raises(ValueError, match=message):
        load_config(ArcConfig, overrides=["backend=natve"])


def test_missing_required_setting_is_reported():
    with pytest.raises(ValueError, match=r"^address is required$"):
        load_config(Letter)
    assert load_config(Letter, overrides=["address=here"]) == Letter(address="here")


def changed_settings(values, defaults):
    """Return the nested settings that differ from their defaults."""
    changed = {}
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(defaults[name], dict):
            value = changed_settings(value, defaults[name])
            if not value:
                continue
        elif value == defaults[name]:
            continue
        changed[name] = value
    return changed


@pytest.mark.parametrize("name", list_presets("arc"))
def test_presets_contain_only_differences_from_the_defaults(name):
    from phalanx.config import PRESET_FOLDER

    path = PRESET_FOLDER / "arc" / f"{name}.yaml"
    config = load_config(ArcConfig, name)
    listed = load_preset(ArcConfig, name)
    assert changed_settings(config.model_dump(mode="json"), ArcConfig().model_dump(mode="json")) == listed
    assert path.read_text().startswith("# @package arc\n")


def test_values_of_a_preset_are_used():
    assert load_config(ArcConfig, "mini").grid_shape == (5, 5)
    assert load_config(ArcConfig, "evaluation").episode.mode == "evaluation"
    assert load_config(ArcConfig, "mini", ["dataset.max_grid_width=7"]).grid_shape == (5, 7)


def test_unknown_preset_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"unknown preset 'minni' for arc; did you mean 'mini'\?"):
        load_config(ArcConfig, "minni")
    with pytest.raises(ValueError, match="unknown preset 'zzz' for arc; there are evaluation, full, mini"):
        load_config(ArcConfig, "zzz")
    with pytest.raises(ValueError, match="no presets for 'chess'; there are presets for arc"):
        list_presets("chess")


class MiniCart(Cart):
    preset_group = "arc"


def test_named_presets_need_a_preset_group():
    with pytest.raises(ValueError, match="Cart has no named presets, so 'mini' was not found"):
        load_config(Cart, "mini")
    with pytest.raises(ValueError, match=r"mini\.yaml: unknown key 'dataset\.max_grid_height'"):
        load_config(MiniCart, "mini")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine:\n  pwer: 3\n", r"cart\.yaml: unknown key 'engine\.pwer'; did you mean 'engine\.power'"),
        ("- 1\n- 2\n", r"cart\.yaml: expected settings as `key: value`, got \[1, 2\]"),
        ("engine: [1\n", r"cart\.yaml could not be read: while parsing"),
        ("wheels: 0\n", "wheels must be at least 1, got 0"),
    ],
)
def test_error_contains_the_path_of_an_invalid_preset_file(tmp_path, text, message):
    (tmp_path / "cart.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_config(Cart, str(tmp_path / "cart.yaml"))


def test_error_contains_the_path_of_a_missing_preset_file(tmp_path):
    with pytest.raises(ValueError, match=r"there is no config file .*gone\.yaml"):
        load_config(Cart, tmp_path / "gone.yaml")


def test_empty_preset_equals_the_defaults(tmp_path):
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load_config(Cart, tmp_path / "empty.yaml") == Cart()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "nested more than 32 levels deep"),
        ("engine: " + "{engine: " * 5_000, "nested more than 32 levels deep"),
        ("wheels: &a 3\nengine: {power: *a}\n", "anchors or tags"),
        ("wheels: !!python/object/apply:os.getcwd []\n", "anchors or tags"),
        ("#" * (2 << 20), "more than 1,048,576 bytes"),
    ],
    ids=["deep", "deep mappings", "anchors", "objects", "large"],
)
def test_untrusted_file_is_not_executed(tmp_path, text, message):
    """As `config.yaml` of a run, and a preset given by its path, may be."""
    (tmp_path / "cart.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_config(Cart, tmp_path / "cart.yaml")


carts = st.builds(
    Cart,
    wheels=st.integers(1, 9),
    engine=st.builds(
        Engine,
        power=st.integers(1, 9),
        fuel=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"])) | st.just("${x} \\ a: b"),
        heat=st.floats(1e-30, 1e30),
    ),
    spare=st.none() | st.builds(Engine),
    loads=st.lists(st.integers(), max_size=3).map(tuple),
    covered=st.booleans(),
)


@given(carts)
def test_a_saved_config_loads_as_itself(tmp_path_factory, cart):
    path = tmp_path_factory.mktemp("cart") / "cart.yaml"
    save_config(cart, path)
    assert load_config(Cart, path) == cart


def test_list_settings_includes_nested_sections():
    rows = {row.name: row for row in list_settings(Cart)}
    assert list(rows) == [
        "wheels",
        "engine.power",
        "engine.fuel",
        "engine.heat",
        "spare.power",
        "spare.fuel",
        "spare.heat",
        "loads",
        "covered",
    ]
    assert rows["engine.power"] == ("engine.power", "int", 5, "How strong.")
    assert rows["engine.fuel"].default == "oats"
    assert rows["loads"].type == "tuple[int, ...]"
    assert next(iter(list_settings(Letter))).default is ...


def test_list_settings_shows_choices_and_optional_types():
    rows = {row.name: row for row in list_settings(ArcConfig)}
    assert rows["backend"].type == "'auto' | 'native' | 'xla'"
    assert rows["action.allowed_operations"].type == "tuple[int, ...] | None"
    assert all(row.text for row in rows.values()), "every setting of a shipped config has a docstring"


def test_a_config_is_static_under_jit():
    assert jax.tree.leaves(Cart()) == []
    assert jax.jit(lambda cart, x: x * cart.wheels)(Cart(wheels=3), 2) == 6
