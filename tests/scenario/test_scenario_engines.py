from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.cli.profile import profile as command
from pearl.core.engine import DecodeCost, EngineProfile, PrefillCost, Saturation, SaturationForm
from pearl.errors import InputError, ScenarioError, UsageError
from pearl.scenario.engines import builtin_profiles, load_profile, read_profile
from pearl.scenario.fit import ModelShape, fit_profile, fit_relative
from pearl.scenario.fit_files import FittedProfile, fit_table, write_profile
from pearl.scenario.profile_text import profile_text
from pearl.scenario.step_times import DecodePoint, PrefillPoint, StepTimes, read_step_times

TABLES = Path(__file__).parents[2].parent / "shared" / "data" / "step-times"
GPUS = ("H100", "H200")
NAMES = [f"qwen3-{size}-{gpu.lower()}" for size in ("8b", "30b-a3b", "32b") for gpu in GPUS]
DENSE_MEAN, MOE_MEAN = 0.03, 0.05
needs_tables = pytest.mark.skipif(not TABLES.is_dir(), reason="the step-time tables are not here")


def _table(gpu: str) -> Path:
    return TABLES / f"oracle_{gpu.lower()}_sxm.json"


def test_the_built_in_profiles_are_these():
    assert sorted(builtin_profiles()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_fit_meets_its_target(name: str):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.fit is not None
    limit = MOE_MEAN if "a3b" in name else DENSE_MEAN
    assert 0 < profile.fit.prefill_mean <= limit
    assert 0 < profile.fit.decode_mean <= limit
    assert profile.fit.prefill_mean <= profile.fit.prefill_max
    assert profile.fit.decode_mean <= profile.fit.decode_max
    assert (profile.decode.saturation is not None) == ("a3b" in name)
    assert 0 < profile.kv_colocated_tokens < profile.kv_decode_tokens


@needs_tables
@pytest.mark.parametrize("gpu", GPUS)
def test_fitting_the_tables_again_gives_the_stored_profiles(gpu: str):
    for item in fit_table(_table(gpu), gpu=gpu):
        stored, fitted = load_profile(item.profile.name), item.profile
        assert _numbers(stored.prefill) == pytest.approx(_numbers(fitted.prefill), rel=1e-4)
        assert _numbers(stored.decode) == pytest.approx(_numbers(fitted.decode), rel=1e-4)
        assert stored.kv_decode_tokens == pytest.approx(fitted.kv_decode_tokens, abs=1)
        assert stored.kv_colocated_tokens == pytest.approx(fitted.kv_colocated_tokens, abs=1)
        assert stored.fit is not None
        assert fitted.fit is not None
        for part in ("prefill_mean", "prefill_max", "decode_mean", "decode_max"):
            assert getattr(stored.fit, part) == pytest.approx(getattr(fitted.fit, part), abs=2e-5)
        assert (stored.fit.points, stored.fit.source) == (fitted.fit.points, fitted.fit.source)


@needs_tables
@pytest.mark.parametrize("gpu", GPUS)
def test_the_stored_error_is_that_of_the_stored_formulas(gpu: str):
    for model, table in read_step_times(_table(gpu)).items():
        profile = load_profile(f"{model.rsplit('/')[-1]}-{gpu}".lower())
        errors = [abs(profile.decode.seconds(p.batch, p.context_tokens) / p.seconds - 1) for p in table.decode]
        assert profile.fit is not None
        assert sum(errors) / len(errors) == pytest.approx(profile.fit.decode_mean, abs=2e-5)
        assert max(errors) == pytest.approx(profile.fit.decode_max, abs=2e-5)
        errors = [abs(profile.prefill.seconds(p.new_tokens, p.cached_tokens) / p.seconds - 1) for p in table.prefill]
        assert sum(errors) / len(errors) == pytest.approx(profile.fit.prefill_mean, abs=2e-5)


def _numbers(cost: PrefillCost | DecodeCost) -> dict[str, float]:
    values = asdict(cost)
    values |= values.pop("saturation", None) or {}
    return {key: value for key, value in values.items() if isinstance(value, (int, float))}


SHAPE = ModelShape(layers=2, kv_heads=2, head_size=64)


def _synthetic(prefill: PrefillCost, decode: DecodeCost, *, kv_bytes: int = SHAPE.kv_bytes_per_token) -> StepTimes:
    gib = 2.0**30
    return StepTimes(
        model="m",
        source="made.json",
        prefill=tuple(
            PrefillPoint(
                new_tokens=n, cached_tokens=c, seconds=prefill.seconds(n, c), memory_gib=1 + n * (kv_bytes + 500) / gib
            )
            for n in (128, 512, 2048, 8192)
            for c in (0, 4096)
        ),
        decode=tuple(
            DecodePoint(
                batch=b, context_tokens=b * c, seconds=decode.seconds(b, b * c), memory_gib=1 + b * c * kv_bytes / gib
            )
            for b in (1, 2, 4, 8, 16, 32, 64)
            for c in (512, 4096, 16384)
        ),
    )


def _fitted(table: StepTimes, shape: ModelShape) -> EngineProfile:
    return fit_profile(table, name="m", gpu="X", shape=shape, memory_bytes=16 * 2.0**30)


@settings(max_examples=10, deadline=None)
@given(
    p=st.tuples(st.floats(1e-3, 5e-2), st.floats(1e-6, 1e-4), st.floats(1e-10, 1e-8)),
    c=st.tuples(st.floats(1e-3, 3e-2), st.floats(1e-6, 1e-3), st.floats(1e-9, 1e-6)),
)
def test_exact_step_times_are_fitted_exactly(p: tuple[float, float, float], c: tuple[float, float, float]):
    prefill = PrefillCost(p0_s=p[0], p1_s=p[1], p2_s=p[2])
    decode = DecodeCost(c0_s=c[0], c1_s=c[1], c2_s=c[2])
    fit = _fitted(_synthetic(prefill, decode), SHAPE).fit
    assert fit is not None
    assert fit.prefill_max < 1e-4
    assert fit.decode_max < 1e-4


@pytest.mark.parametrize(
    "saturation",
    [
        Saturation(amplitude_s=0.012, form=SaturationForm.EXPERTS, experts=64, top_k=4),
        Saturation(amplitude_s=0.002, form=SaturationForm.SQRT),
    ],
)
def test_the_saturating_form_that_fits_better_is_kept(saturation: Saturation):
    decode = DecodeCost(c0_s=0.004, c1_s=1e-5, c2_s=2e-8, saturation=saturation)
    table = _synthetic(PrefillCost(p0_s=0.01, p1_s=1e-5, p2_s=1e-9), decode)
    found = _fitted(table, replace(SHAPE, experts=64, top_k=4)).decode.saturation
    assert found is not None
    assert found.form is saturation.form
    assert found.amplitude_s == pytest.approx(saturation.amplitude_s, rel=1e-3)


def test_kv_capacity_is_what_weights_and_activations_leave():
    table = _synthetic(PrefillCost(p0_s=0.01, p1_s=1e-5, p2_s=1e-9), DecodeCost(c0_s=0.005, c1_s=1e-5, c2_s=1e-8))
    profile = _fitted(table, SHAPE)
    free = 0.9 * 16 * 2**30 - 2**30
    assert profile.kv_decode_tokens == pytest.approx(free / SHAPE.kv_bytes_per_token, abs=2)
    assert profile.kv_colocated_tokens == pytest.approx((free - 8192 * 500) / SHAPE.kv_bytes_per_token, abs=2)


def test_a_shape_that_the_memory_contradicts_is_refused():
    cost = PrefillCost(p0_s=0.01, p1_s=1e-5, p2_s=1e-9), DecodeCost(c0_s=0.005, c1_s=1e-5, c2_s=1e-8)
    with pytest.raises(InputError, match=r"grows by 2048 bytes per token of context; expected 1024"):
        _fitted(_synthetic(*cost, kv_bytes=2048), SHAPE)
    with pytest.raises(InputError, match="leaves no room for a KV cache on X"):
        fit_profile(_synthetic(*cost), name="m", gpu="X", shape=SHAPE, memory_bytes=2.0**30)


def test_coefficients_are_not_negative_even_where_that_would_fit_better():
    assert fit_relative([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]], [4.0, 3.0, 1.0])[1] == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_reads_back_as_it_was_written(name: str, tmp_path: Path):
    profile = load_profile(name)
    path = tmp_path / "again.yaml"
    path.write_text(profile_text(profile, description='with "quotes"', derivation={"a": "b"}), encoding="utf-8")
    assert read_profile(path) == profile


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(
        ScenarioError, match=r"unknown engine profile 'qwen3-8b-h20' \(did you mean 'qwen3-8b-h200'\?\)"
    ):
        load_profile("qwen3-8b-h20")


@needs_tables
def test_the_command_fits_prints_and_writes(tmp_path: Path):
    arguments = ["fit", str(_table("H200")), "--gpu", "H200", "--model", "Qwen/Qwen3-8B", "--out", str(tmp_path)]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert "qwen3-8b-h200" in result.output
    assert "2.34%" in result.output
    assert read_profile(tmp_path / "qwen3-8b-h200.yaml") == load_profile("qwen3-8b-h200")


def test_the_command_lists_and_shows():
    listed = CliRunner().invoke(command, ["list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in NAMES)
    shown = CliRunner().invoke(command, ["show", "qwen3-32b-h100"])
    assert shown.output == builtin_profiles()["qwen3-32b-h100"].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu": "H300"}, "the memory of GPU 'H300' is not known"),
        ({"gpu": "H200", "models": ["n"]}, "--model 'n' is not in"),
        ({"gpu": "H200"}, "the shape of model 'm' is not known"),
        ({"gpu": "H200", "shape": "36,8"}, "expected LAYERS,KV_HEADS,HEAD_SIZE"),
        ({"gpu": "H200", "shape": "36,8,128,4,8"}, "TOP_K 8 exceeds EXPERTS 4"),
        ({"gpu": "H200", "gpu_memory": "80"}, "needs a unit"),
    ],
)
def test_arguments_of_a_fit_that_do_not_hold_are_refused(tmp_path: Path, arguments: dict[str, object], message: str):
    path = tmp_path / "t.json"
    rows = {
        "pre": {str(n): [n, 1] for n in range(1, 5)},
        "pfx": {"1+1": 1},
        "dec": {f"{n}/1": [n, 1] for n in range(1, 5)},
    }
    path.write_text(json.dumps({"m": rows}), encoding="utf-8")
    with pytest.raises(UsageError) as error:
        fit_table(path, **arguments)
    assert message in str(error.value)


def test_an_interrupted_fit_leaves_the_profile_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    item = FittedProfile(profile=load_profile("qwen3-8b-h200"), derivation={})
    path = write_profile(item, tmp_path / "new" / "folder")
    path.write_text("old", encoding="utf-8")

    def interrupted(_self: Path, _target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_profile(item, path.parent)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_is_one_clear_error(tmp_path: Path):
    item = FittedProfile(profile=load_profile("qwen3-8b-h200"), derivation={})
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write to .*file.*: Not a directory \(check --out\)"):
        write_profile(item, tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "no tables"),
        ("{", "not JSON"),
        ('{"m": {"pre": {}}}', "not a step-time table"),
        ('{"m": {"pre": {"1": [-1, 1]}, "pfx": {}, "dec": {}}}', "is no step time"),
        ('{"m": {"pre": {"1": [1, 1]}, "pfx": {"1": 1}, "dec": {}}}', "is no prefill after cached"),
        ('{"m": {"pre": {"512": [1, 1]}, "pfx": {}, "dec": {}}}', "too few points"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str, message: str):
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_step_times(path)
