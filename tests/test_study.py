"The starter study end to end at smoke size, and its behaviour when things go wrong."
import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
import yaml

from medagent.reward.recipes import recipe
from medagent.settings import MedAgentError, load_settings
from medagent.starter.study import ARMS, _begun, _finished, _tasks, aims, ask, load_policy, read_records, read_rewards, read_rows, run_stage, run_study, setting, starter_tokenizer, study_folder, study_preset
from medagent.starter.judge import FactJudge
from medagent.starter.lessons import verifier_pairs
from medagent.starter.world import build_world, draw_items
from medagent.training.grpo import train_grpo
from medagent.verifier.nli import Verifier

SILENT = lambda label, work: None


@pytest.fixture(scope='module')
def smoke():
    "One finished smoke study, the one the study notebook runs (tests/conftest.py gives both the same fresh outputs folder)."
    preset = study_preset('smoke')
    run_study(preset, [0])
    return preset


def rise(log: pd.DataFrame, n: int = 4) -> float:
    "Mean total reward of the last n steps minus that of the first n."
    return log.total.tail(n).mean() - log.total.head(n).mean()


def test_the_full_arm_learns_and_a_frozen_policy_does_not(smoke, tmp_path):
    learned = rise(read_rewards(smoke, [0]).query('arm == "medagent"'))
    s = setting(smoke, 0)
    items = draw_items(s.world, 'rl', smoke.grpo.steps*smoke.grpo.prompts, seed=0)
    frozen = train_grpo(s.folder/'sft', items, s.toolbox, recipe('medagent'), Verifier.from_folder(s.folder/'verifier'), tmp_path/'frozen', replace(smoke.grpo, lr=0.0), seed=0)
    assert learned > 0.15 and learned > rise(frozen) + 0.1, (learned, rise(frozen))


def test_every_arm_is_evaluated_on_the_same_questions_in_every_cell(smoke):
    rows = read_rows(smoke, [0])
    cells = rows.groupby(['arm', 'facts', 'decoding', 'condition']).id.apply(lambda x: tuple(sorted(x)))
    assert len(cells) == len(ARMS)*6 and cells.groupby(['facts', 'decoding', 'condition']).nunique().eq(1).all()
    assert rows.claims.ge(rows.fabricated).all() and len(aims(rows)) == 4


def test_a_finished_study_runs_nothing_again(smoke, monkeypatch):
    monkeypatch.setattr('medagent.starter.study.ProcessPoolExecutor', lambda *a, **k: pytest.fail('a stage was started'))
    assert run_study(smoke, [0]) == study_folder(smoke)


def test_arms_of_a_seed_share_questions_and_start(smoke):
    log = read_rewards(smoke, [0])
    first = log[log.step == 0].set_index('arm')
    assert first.loc['medagent', 'r_acc'] == first.loc['outcome_only', 'r_acc'] and first.loc['medagent', 'calls'] == first.loc['outcome_only', 'calls']


def test_ask_shows_claims_with_verdicts(smoke):
    text = ask(f'What should be monitored during treatment with {setting(smoke, 0).world.facts[0].subject}?', preset='smoke')
    assert 'verdict' in text.lower() or 'supported' in text.lower(), text
    with pytest.raises(MedAgentError, match='names no drug or condition'): ask('What is the capital of France?', preset='smoke')
    with pytest.raises(MedAgentError, match='medagent demo'): ask('lithium?', seed=99, preset='smoke')
    with pytest.raises(MedAgentError, match='sft, medagent, outcome_only'): ask('lithium?', arm='medagnet', preset='smoke')


def test_an_unknown_recipe_is_reported_before_anything_runs(smoke):
    with pytest.raises(MedAgentError, match='medagent'): run_study(smoke, [5], arms=('sft', 'medagnet'))
    assert not (study_folder(smoke)/'seed5').exists()


def test_shipped_weights_are_refused_for_another_world_before_anything_runs(smoke):
    with pytest.raises(MedAgentError, match='seed 0'): run_study(smoke, [0, 1])
    assert not (study_folder(smoke)/'seed1').exists()


def test_every_stage_leaves_a_record_and_a_deleted_result_is_made_again(smoke, monkeypatch):
    records = read_records(smoke, [0])
    assert len(records) == 3 + 2 + 3 and records.code.str.len().gt(6).all() and records.seconds.ge(0).all()
    started = []
    monkeypatch.setattr('medagent.starter.study.stage_sft', lambda s, report: started.append('sft'))
    run_stage(setting(smoke, 0), SILENT, 'sft')
    folder = study_folder(smoke)/'seed0'/'sft'
    folder.rename(folder.with_name('away'))
    try: run_stage(setting(smoke, 0), SILENT, 'sft')
    finally: folder.with_name('away').rename(folder)
    assert started == ['sft']


@pytest.mark.parametrize('section, values, said', [('world', dict(coverage=dict(guideline=.5)), 'graph'), ('world', dict(coverage=dict(guideline=.5, graph=1.5, pubmed=.4)), 'coverage.graph'),
    ('grpo', dict(lr='1e-4'), '1.0e-4'), ('data', dict(k=1.5), 'k = 1.5'), ('teacher', dict(lazy=True), 'lazy'), ('data', dict(memory=1.2), 'memory = 1.2'), ('data', dict(memory=.6, recall=.6), 'together'),
    ('evaluate', dict(questions=0), 'questions = 0'), ('sft', dict(micro_batch=-8), 'micro_batch = -8'), ('grpo', dict(temperature=float('nan')), 'temperature = nan'), ('sft', dict(save_every=0), 'save_every')])
def test_values_of_the_wrong_kind_are_named_before_a_run(section, values, said):
    with pytest.raises(MedAgentError, match=said): study_preset('smoke', **{section: values})


@pytest.mark.parametrize('text', ['grpo: {steps: 3', '- a list', 'grpo: 5', ''])
def test_a_preset_that_is_no_preset_is_named(tmp_path, monkeypatch, text):
    (tmp_path/'presets').mkdir()
    (tmp_path/'presets'/'odd.yaml').write_text(text)
    monkeypatch.setenv('MEDAGENT_DATA_PATH', str(tmp_path))
    with pytest.raises(MedAgentError, match='odd'): study_preset('odd')


def test_every_world_of_the_conditions_study_is_a_world_of_its_own():
    worlds = yaml.safe_load((load_settings().data_path/'worlds.yaml').read_text(encoding='utf-8'))
    folders = {study_folder(study_preset('starter', **w['changes'])) for w in worlds.values()}
    assert len(folders) == len(worlds) > 4 and study_folder(study_preset('starter')) in folders and all(w['about'] for w in worlds.values())


def test_changed_facts_never_meet_old_results(tmp_path, monkeypatch):
    preset, here = study_preset('smoke'), study_folder(study_preset('smoke'))
    shutil.copytree(load_settings().data_path, tmp_path/'data')
    monkeypatch.setenv('MEDAGENT_DATA_PATH', str(tmp_path/'data'))
    assert study_folder(preset) == here
    for name in ('starter/drugs.tsv', 'starter/phrases.yaml', 'abbreviations.txt', 'starter/smoke/policy/model.safetensors'):
        file = tmp_path/'data'/name
        before = file.read_bytes()
        file.write_bytes(before + b'\n')
        assert study_folder(preset) != here, name
        file.write_bytes(before)
    (tmp_path/'data'/'recipes'/'mine.yaml').write_text('about: another\n')  # what the study does not read does not matter
    (tmp_path/'data'/'starter'/'drugs.tsv~').write_text('left by an editor')
    assert study_folder(preset) == here


def test_what_was_made_from_a_repeated_stage_is_repeated_too(smoke, monkeypatch):
    folder = study_folder(smoke)/'seed0'
    class Pool:
        def __init__(self, *args, **kwargs): raise KeyboardInterrupt
    kept = {f: f.read_text() for f in (folder/'stages').glob('*.json')}
    monkeypatch.setattr('medagent.starter.study.ProcessPoolExecutor', Pool)
    (folder/'medagent'/'policy').rename(folder/'away')
    try:
        with pytest.raises(KeyboardInterrupt): run_study(smoke, [0])
        assert {f.stem for f in kept} - {f.stem for f in (folder/'stages').glob('*.json')} == {'grpo-medagent', 'evaluate-medagent'}
    finally:
        (folder/'away').rename(folder/'medagent'/'policy')
        for f, text in kept.items(): f.write_text(text)


def test_arms_of_earlier_runs_are_repeated_after_a_stage_below_them(smoke, monkeypatch):
    "A run of one arm that repeats SFT leaves no record of another arm that was made from the old SFT."
    folder = study_folder(smoke)/'seed0'
    class Pool:
        def __init__(self, *args, **kwargs): raise KeyboardInterrupt
    kept = {f: f.read_text() for f in (folder/'stages').glob('*.json')}
    monkeypatch.setattr('medagent.starter.study.ProcessPoolExecutor', Pool)
    (folder/'sft').rename(folder/'away')
    try:
        with pytest.raises(KeyboardInterrupt): run_study(smoke, [0], arms=('medagent',))
        assert {f.stem for f in (folder/'stages').glob('*.json')} == {'base', 'verifier'}
        with pytest.raises(MedAgentError, match='medagent demo'): ask('lithium?', preset='smoke')
    finally:
        (folder/'away').rename(folder/'sft')
        for f, text in kept.items(): f.write_text(text)


def test_checkpoints_are_continued_from_the_same_start_only(tmp_path):
    work = _begun(tmp_path/'work', 'sft of yesterday')
    (work/'checkpoint-5').mkdir()
    assert (_begun(work, 'sft of yesterday')/'checkpoint-5').exists()
    assert not (_begun(work, 'sft of today')/'checkpoint-5').exists()
    (work/'origin.txt').unlink()
    (work/'checkpoint-5').mkdir()
    assert not (_begun(work, 'sft of today')/'checkpoint-5').exists()


@pytest.mark.parametrize('arm', ['verifier', 'stages', '../sft'])
def test_an_arm_cannot_take_the_folder_of_a_stage(smoke, tmp_path, monkeypatch, arm):
    shutil.copytree(load_settings().data_path, tmp_path/'data')
    monkeypatch.setenv('MEDAGENT_DATA_PATH', str(tmp_path/'data'))
    if '/' not in arm: shutil.copy(tmp_path/'data'/'recipes'/'medagent.yaml', tmp_path/'data'/'recipes'/f'{arm}.yaml')
    with pytest.raises(MedAgentError): run_study(smoke, [0], arms=('sft', arm))
    assert (study_folder(smoke)/'seed0'/'verifier').is_dir()


def test_a_changed_recipe_repeats_its_own_arm_only(smoke, tmp_path, monkeypatch):
    folder = study_folder(smoke)/'seed0'
    assert all(_finished(folder, *t[1:]) for t in _tasks([0], ARMS, False))
    shutil.copytree(load_settings().data_path, tmp_path/'data')
    monkeypatch.setenv('MEDAGENT_DATA_PATH', str(tmp_path/'data'))
    file = tmp_path/'data'/'recipes'/'medagent.yaml'
    file.write_text(file.read_text().replace('tau: 0.7', 'tau: 0.6'))
    assert recipe('medagent').tau == 0.6
    assert [t[1:] for t in _tasks([0], ARMS, False) if not _finished(folder, *t[1:])] == [('grpo', 'medagent'), ('evaluate', 'medagent')]


def test_a_term_is_the_same_token_wherever_it_stands():
    "At the start of a text, in a sentence, in a query, before a full stop: a policy copies it and a verifier matches it as one word."
    world = build_world(study_preset('smoke').world, 0)
    tok = starter_tokenizer(world)
    terms = sorted({f.subject for f in world.facts} | {f.value for f in world.facts})
    for t in terms:
        own, = tok.encode(f' {t}')
        for text in (f'{t} | monitoring', f'The drug class of {t} is', f'[Action] kg_query("{t} monitoring")', f' {t}.', f'[Answer] {t}'):
            assert own in tok.encode(text), (t, text)
        assert tok.decode(tok.encode(f'[Answer] {t}')) == f'[Answer] {t}'


def test_the_verifier_learns_from_hedged_sentences_with_one_word_changed():
    "The pairs hold the near misses that RL would otherwise find first."
    world = build_world(study_preset('smoke').world, 0)
    pairs = [p for p in verifier_pairs(world, 3000) if p.kind == 'restated otherwise']
    judge = FactJudge(world)
    assert len(pairs) > 100 and not any(p.label or judge.supports(p.hypothesis, [p.premise]) for p in pairs)
    read = [(judge.read(p.premise), judge.read(p.hypothesis)) for p in pairs]
    changed = [{name for name in ('subject', 'attribute', 'value', 'kind') if getattr(a, name) != getattr(b, name)} for a, b in read if a and b]
    assert {frozenset(c) for c in changed} == {frozenset({'subject'}), frozenset({'attribute'}), frozenset({'value'})}
    years = [[w for w in t.split() if w.endswith('0s')] for p in pairs for t in (p.premise, p.hypothesis)]
    assert years[::2] == years[1::2] and any(years)


def test_unknown_preset_keys_are_errors():
    with pytest.raises(MedAgentError, match='temprature'): study_preset('smoke', grpo=dict(temprature=1.0))
    with pytest.raises(MedAgentError, match='known'): study_preset('no-such-preset')


def test_changed_settings_never_meet_old_results():
    assert study_folder(study_preset('smoke')) != study_folder(study_preset('smoke', grpo=dict(lr=1e-5)))


def test_a_corrupt_checkpoint_is_named_with_what_to_do(smoke, tmp_path):
    broken = tmp_path/'policy'
    shutil.copytree(study_folder(smoke)/'seed0'/'sft', broken)
    weights = broken/'model.safetensors'
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(MedAgentError, match='delete it and run again'): load_policy(broken)
    with pytest.raises(MedAgentError, match='does not exist'): load_policy(tmp_path/'nowhere')


def test_a_missing_facts_file_is_named(tmp_path, monkeypatch):
    from medagent.starter.facts import load_facts
    with pytest.raises(MedAgentError, match='drugs.tsv'): load_facts(tmp_path)


def test_a_full_disk_while_saving_keeps_the_old_policy(smoke, tmp_path, monkeypatch):
    from medagent.training.sft import save_policy
    model, tokenizer = load_policy(study_folder(smoke)/'seed0'/'sft')
    folder = save_policy(model, tokenizer, tmp_path/'policy')
    before = (folder/'model.safetensors').read_bytes()
    monkeypatch.setattr(type(model), 'save_pretrained', lambda *a, **k: (_ for _ in ()).throw(OSError(28, 'No space left on device')))
    with pytest.raises(MedAgentError, match='No space left'): save_policy(model, tokenizer, folder)
    assert (folder/'model.safetensors').read_bytes() == before and not list(tmp_path.glob('*.tmp'))


def test_an_interrupted_arm_resumes_to_the_same_curve(smoke, tmp_path):
    "Stopped after its first checkpoint and started again, GRPO gives the log of an uninterrupted run."
    s, steps = setting(smoke, 0), 4
    preset = replace(smoke.grpo, steps=steps, save_every=2)
    items = draw_items(s.world, 'rl', steps*preset.prompts, seed=0)
    args = (items, s.toolbox, recipe('medagent'), Verifier.from_folder(s.folder/'verifier'))
    whole = train_grpo(s.folder/'sft', *args, tmp_path/'whole', preset, seed=3)

    class Stop(Exception): pass
    def stop(n: int) -> None:
        if n == 3: raise Stop
    with pytest.raises(Stop): train_grpo(s.folder/'sft', *args, tmp_path/'cut', preset, seed=3, progress=stop)
    assert not (tmp_path/'cut'/'policy').exists()
    resumed = train_grpo(s.folder/'sft', *args, tmp_path/'cut', preset, seed=3)
    pd.testing.assert_frame_equal(whole, resumed)
