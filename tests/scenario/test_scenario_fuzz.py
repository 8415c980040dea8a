from tests.scenario.fuzz import check, fuzz


def test_every_mutant_loads_or_names_its_faults():
    verdicts = list(fuzz(150, seed=1))
    assert 0 < sum(v.loaded for v in verdicts) < 150


def test_the_fuzzer_repeats_itself():
    assert [v.text for v in fuzz(5, seed=3)] == [v.text for v in fuzz(5, seed=3)]


def test_huge_counts_are_refused_before_they_are_made():
    pool = "{zone: reserved, nodes: 65536, gpus_per_node: 1024}"
    text = (
        "apiVersion: pearl.dev/v1alpha1\nkind: Scenario\nmetadata: {name: huge}\nspec:\n"
        f"  engine: qwen3-8b-h200\n  cluster: {{pools: [{', '.join([pool] * 50)}]}}\n"
        "  workload: {trajectories: 1, turns: 1, first_prompt_tokens: 1, new_prompt_tokens: 1, output_tokens: 1,"
        " environment: 0s, max_context_tokens: 100}\n"
    )
    verdict = check(text)
    assert not verdict.loaded
    assert verdict.seconds < 0.5
