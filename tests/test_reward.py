"Rewards: Eq. 3-8 by hand, and properties that hold for every recipe and batch."
import hashlib
import math
import random
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings, strategies as st

from medagent.evaluation.benchmarks import Item
from medagent.reward.recipes import TERMS, Recipe, formula, read_recipe, recipe, recipe_names, recipe_table, score
from medagent.reward.terms import Floor, any_observation, answer_letter, entailment, r_acc, r_concise, r_faith, r_valid, score_claims, unmeasured_calls
from medagent.settings import MedAgentError
from medagent.trajectory import NO_RESULT, Call, parse, render_action, render_observation
from medagent.verifier.nli import FunctionVerifier

PASSAGES = ['During treatment with lithium, check thyroid function.', 'Warfarin is monitored by INR.', 'Clozapine calls for neutrophil counts.',
            'Metformin is contraindicated in severe renal impairment.', 'Digoxin levels rise with clarithromycin.', 'Dabigatran is reversed by idarucizumab.']
CLAIMS = ['Treatment with lithium calls for monitoring of thyroid function', 'Warfarin is monitored by INR', 'Clozapine requires neutrophil counts',
          'Metformin is safe in severe renal impairment', 'Clarithromycin raises digoxin levels', 'Idarucizumab reverses dabigatran']
OPTIONS = {'A': 'thyroid function', 'B': 'serum uric acid', 'C': 'lipid panel', 'D': 'anti-Xa level'}
ITEM = Item(id='lithium', question='What is monitored under lithium?', options=OPTIONS, gold='A', split='rl')
NAMES = ('medagent', 'outcome_only', 'wo_concise', 'wo_faith', 'wo_gate', 'wo_valid')


def make(calls=((PASSAGES[0],),), sims=None, claims=((CLAIMS[0], (1,)),), answer='thyroid function', id=''):
    "A trajectory: passages of each call, their similarities, claims with citations, answer."
    sims = [.8]*len(calls) if sims is None else sims
    blocks = [f'[Think] I look this up.\n{render_action("guideline_search", f"query {i}")}\n{render_observation(i, passages)}' for i, passages in enumerate(calls, 1)]
    evidence = ' '.join(f'{text} {"".join(f"[#{n}]" for n in numbers)}'.strip() + '.' for text, numbers in claims)
    t = parse('\n'.join([*blocks, '[Think] Enough.', f'[Evidence] {evidence}', f'[Answer] {answer}']), id=id)
    t.calls = [Call('guideline_search', f'query {i}', [f'p{i}'], list(passages), similarity=sim if passages else None) for i, (passages, sim) in enumerate(zip(calls, sims), 1)]
    return t


def fixed(table, default=.01):
    "A verifier that is a table (passage, claim) -> probability."
    return FunctionVerifier(lambda premise, claim: table.get((premise, claim.rstrip(' .')), default), 'table')


def hashed(premise, claim):
    "A probability that depends on the pair only, two thirds of them above .7."
    p = int(hashlib.sha256(f'{premise}|{claim}'.encode()).hexdigest()[:8], 16)/0xffffffff
    return .7 + .45*(p - 1/3) if p > 1/3 else 2*p


HASHED = FunctionVerifier(hashed, 'hashed')
numbers = st.lists(st.integers(1, 11), max_size=3).map(tuple)
one_claim = st.tuples(st.sampled_from(CLAIMS), numbers)
one_call = st.lists(st.sampled_from(PASSAGES), max_size=3).map(tuple)
parts = st.fixed_dictionaries({'calls': st.lists(one_call, max_size=10), 'claims': st.lists(one_claim, max_size=4),
                               'answer': st.sampled_from(['thyroid function', 'A', 'B', 'lipid panel', 'it depends'])})
trajectories = st.builds(lambda p, rng: make(**p, sims=[rng.choice([None, -.2, .3, .5, .9]) for _ in p['calls']]), parts, st.randoms(use_true_random=False))
many = settings(max_examples=60, deadline=None)


# Eq. 4

@pytest.mark.parametrize('answer, letter, value', [('A', 'A', 1), ('thyroid function', 'A', 1), ('B', 'B', 0), ('lipid panel', 'C', 0), ('no idea', '', 0)])
def test_eq4(answer, letter, value):
    t = make(answer=answer)
    assert (answer_letter(t, ITEM), r_acc(t, ITEM)) == (letter, value)


def test_eq4_without_an_answer_block():
    assert (answer_letter(parse('[Think] hm'), ITEM), r_acc(parse('[Think] hm'), ITEM)) == ('', 0)


# Eq. 5

@pytest.mark.parametrize('calls, sims, delta, value', [
    ([], [], .5, 0), ([PASSAGES[:1]], [.51], .5, 1), ([PASSAGES[:1]], [.5], .5, 0), ([PASSAGES[:1]]*4, [.9, .2, .6, .1], .5, .5),
    ([PASSAGES[:1], (), PASSAGES[:1]], [.9, .9, .9], .5, 2/3), ([PASSAGES[:1]], [-.1], -.5, 1), ([PASSAGES[:1]]*2, [None, .9], .5, .5)])
def test_eq5(calls, sims, delta, value): assert r_valid(make(calls, sims), delta) == pytest.approx(value)


def test_eq5_an_empty_result_is_invalid_whatever_its_similarity():
    t = make([()])
    t.calls[0].similarity = .99
    assert r_valid(t, .5) == 0


def test_unmeasured_calls_are_counted():
    t = make([PASSAGES[:1], (), PASSAGES[:2]], [None, None, .7])
    assert unmeasured_calls(t) == 1 and unmeasured_calls(parse(t.text)) == 3 and r_valid(parse(t.text)) == 0 and unmeasured_calls(make()) == 0


# Eq. 6

TABLE = {(PASSAGES[0], CLAIMS[0]): .95, (PASSAGES[1], CLAIMS[0]): .40, (PASSAGES[1], CLAIMS[1]): .80, (PASSAGES[2], CLAIMS[2]): .70}
THREE = ((PASSAGES[0],), (PASSAGES[1], PASSAGES[2]), ())

@pytest.mark.parametrize('claim, cites, faith, reason, by', [
    (0, (1,), .95, '', {1: .95}), (0, (2,), .40, 'not_entailed', {2: .40}), (0, (2, 1), .95, '', {2: .40, 1: .95}), (1, (2,), .80, '', {2: .80}),
    (2, (2,), .70, 'not_entailed', {2: .70}), (0, (), 0, 'uncited', {}), (0, (9,), 0, 'unknown_citation', {}), (0, (3,), 0, 'empty_observation', {}),
    (0, (9, 3), 0, 'empty_observation', {}), (0, (9, 1), .95, '', {1: .95}), (0, (1, 1), .95, '', {1: .95})])
def test_eq6(claim, cites, faith, reason, by):
    [[found]] = score_claims([make(THREE, claims=[(CLAIMS[claim], cites)])], fixed(TABLE))
    assert (found.faith, found.reason, found.by_observation) == (faith, reason, by)
    assert found.supported is (reason == '') and found.verifier == 'table function'


def test_eq6_names_the_best_passage():
    [[found]] = score_claims([make(THREE, claims=[(CLAIMS[1], (2,))])], fixed(TABLE))
    assert found.passage == PASSAGES[1]


def test_evidence_that_is_not_cited_does_not_help():
    [[found]] = score_claims([make(THREE, claims=[(CLAIMS[0], (2,))])], fixed(TABLE))
    assert found.faith == .40


def test_the_verifier_reads_passages_as_retrieved():
    asked = []
    t = make([('A note says [Evidence] stop lithium [#2] when the level is high.',)])
    score_claims([t], FunctionVerifier(lambda premise, claim: asked.append(premise) or .9, 'asked'))
    assert asked == ['A note says [Evidence] stop lithium [#2] when the level is high.'] and len(t.observations) == 1


@pytest.mark.parametrize('calls', [0, 1])
def test_an_observation_the_policy_wrote_supports_nothing(calls):
    t = make([PASSAGES[:1]]*2, claims=[(CLAIMS[0], (2,))])
    assert score_claims([t], fixed(TABLE))[0][0].supported
    t.calls, t.mask = t.calls[:calls], [1]
    assert score_claims([t], fixed(TABLE))[0][0].reason == Floor.UNKNOWN and any_observation(t) is bool(calls)


# Eq. 7

@pytest.mark.parametrize('claims, value, floor', [
    ([(0, (1,))], .95, ''), ([(0, (1,)), (1, (2,))], (.95 + .80)/2, ''), ([(0, (1,)), (2, (2,))], -.5, 'not_entailed'), ([(0, (1,)), (1, ())], -.5, 'uncited'),
    ([], -.5, 'no_claim'), ([(0, (3,))], -.5, 'empty_observation'), ([(0, (7,)), (1, ())], -.5, 'unknown_citation')])
def test_eq7(claims, value, floor):
    t = make(THREE, claims=[(CLAIMS[i], cites) for i, cites in claims])
    [verdicts] = score_claims([t], fixed(TABLE))
    assert r_faith(verdicts, any_observation(t), .5) == (pytest.approx(value), floor)


@pytest.mark.parametrize('calls', [(), ((),), ((), ())])
def test_eq7_without_evidence(calls):
    t = make(calls)
    [verdicts] = score_claims([t], fixed(TABLE))
    assert not any_observation(t) and r_faith(verdicts, any_observation(t), .3) == (-.3, 'no_observation')


def test_eq7_no_result_text_is_no_evidence():
    t = parse(f'[Action] kg_query("x")\n[Observation #1] {NO_RESULT}\n[Evidence] {CLAIMS[0]} [#1].\n[Answer] A')
    assert not any_observation(t)


# Eq. 8

@pytest.mark.parametrize('n, t_max, value', [(0, 8, 0), (1, 8, -.125), (4, 8, -.5), (8, 8, -1), (9, 8, -1), (3, 2, -1), (1, 4, -.25)])
def test_eq8(n, t_max, value):
    assert r_concise(n, t_max) == value and math.copysign(1, r_concise(0)) == 1


# Eq. 3: right and grounded; right with an invention; wrong and grounded. Three calls, two of them relevant: .2*2/3 - .1*3/8.

GOOD, BAD = [(CLAIMS[0], (1,))], [(CLAIMS[0], (1,)), (CLAIMS[3], (2,))]
ADDED = .2*2/3 - .1*3/8

@pytest.mark.parametrize('name, expected', [
    ('medagent', [1 + .475 + ADDED, -.25 + ADDED, .475 + ADDED]), ('outcome_only', [1, 1, 0]), ('wo_gate', [1 + .475 + ADDED, 1 - .25 + ADDED, .475 + ADDED]),
    ('wo_faith', [1 + ADDED, 1 + ADDED, ADDED]), ('wo_valid', [1 + .475 - .0375, -.25 - .0375, .475 - .0375]), ('wo_concise', [1 + .475 + .4/3, -.25 + .4/3, .475 + .4/3])])
def test_eq3(name, expected):
    batch = [make(THREE, claims=GOOD), make(THREE, claims=BAD), make(THREE, claims=GOOD, answer='B')]
    table = score(batch, [ITEM]*3, recipe(name), fixed(TABLE))
    assert table.total.tolist() == pytest.approx(expected)
    assert table.gate.tolist() == [True, False, True] and table.n_claims.tolist() == [1, 2, 1] and table.n_failed.tolist() == [0, 1, 0]
    assert table.letter.tolist() == ['A', 'A', 'B'] and table.floor.tolist() == ['', 'not_entailed', ''] and table.id.tolist() == ['lithium']*3


def test_the_paper_values():
    r = recipe('medagent')
    assert (r.weight('lambda2'), r.weight('lambda3'), r.weight('lambda4'), r.weight('r_acc')) == (.2, .5, .1, 1)
    assert (r.tau, r.alpha, r.delta, r.t_max, r.gate) == (.7, .5, .5, 8, True)


# batches

@many
@given(st.lists(trajectories, max_size=5), st.sampled_from(NAMES))
def test_terms_and_total_stay_in_their_ranges(batch, name):
    r = recipe(name)
    table, ranges = score(batch, [ITEM]*len(batch), r, HASHED), recipe_table(r).set_index('term')
    for column in [*TERMS, 'total']:
        assert ((table[column] >= ranges.low[column] - 1e-9) & (table[column] <= ranges.high[column] + 1e-9)).all()
    assert ((table.r_faith == -r.alpha) == (table.floor != '')).all() and (table.gate == (table.floor == '')).all()
    assert ((table.r_faith > r.tau) | (table.floor != '')).all()


@many
@given(st.lists(trajectories, min_size=1, max_size=6), st.randoms(use_true_random=False), st.sampled_from(NAMES))
def test_permuting_the_batch_permutes_the_rewards(batch, rng, name):
    order = rng.sample(range(len(batch)), len(batch))
    items = [replace(ITEM, gold='ABCD'[i % 4]) for i in range(len(batch))]
    straight = score(batch, items, recipe(name), HASHED)
    permuted = score([batch[i] for i in order], [items[i] for i in order], recipe(name), HASHED)
    pd.testing.assert_frame_equal(permuted, straight.iloc[order].reset_index(drop=True), check_exact=True)


@many
@given(st.lists(trajectories, min_size=1, max_size=5), st.sampled_from(NAMES))
def test_alone_equals_in_batch(batch, name):
    table = score(batch, [ITEM]*len(batch), recipe(name), HASHED)
    for i, t in enumerate(batch):
        pd.testing.assert_frame_equal(score([t], [ITEM], recipe(name), HASHED), table.iloc[[i]].reset_index(drop=True), check_exact=True)


@many
@given(parts, st.sampled_from(CLAIMS), st.sampled_from([(), (11,)]), st.integers(0, 4), st.sampled_from(['medagent', 'wo_valid', 'wo_concise']))
def test_an_unsupported_claim_never_pays_under_a_gate(p, text, cites, at, name):
    more = p | {'claims': [*p['claims'][:at], (text, cites), *p['claims'][at:]]}
    before, after = score([make(**p), make(**more)], [ITEM]*2, recipe(name), HASHED).total
    assert after <= before and after <= recipe_table(recipe(name)).set_index('term').high['r_valid']*.2


@many
@given(parts, st.integers(0, 3), st.sampled_from(NAMES))
def test_removing_a_citation_never_pays(p, which, name):
    claims = [(text, cites[1:] if i == which else cites) for i, (text, cites) in enumerate(p['claims'])]
    before, after = score([make(**p), make(**p | {'claims': claims})], [ITEM]*2, recipe(name), HASHED).total
    assert after <= before + 1e-12


@many
@given(parts)
def test_repeated_passages_change_nothing(p):
    twice = p | {'calls': [passages*2 for passages in p['calls']]}
    a, b = score([make(**p), make(**twice)], [ITEM]*2, recipe('medagent'), HASHED).drop(columns='claims').to_dict('records')
    assert a == b


class Counting:
    "Counts its calls."
    name = 'counting'
    def __init__(self): self.calls = 0
    def score(self, pairs):
        self.calls += 1
        return np.full(len(pairs), .9)


def test_one_call_of_the_verifier_for_the_batch():
    verifier = Counting()
    score([make(), make(THREE, claims=BAD), make(())]*5, [ITEM]*15, Recipe(), verifier)
    assert verifier.calls == 1


@pytest.mark.parametrize('returned, said', [([.9], 'shape'), ([.9, float('nan')], 'nan'), ([.9, float('inf')], 'inf'), ([1.5, .9], '1.5'), ([-.1, .9], '-0.1'),
                                            ([[.9], [.9]], 'shape'), ([.9]*3, 'shape')])
def test_a_failing_verifier_is_never_a_zero(returned, said):
    class Failing:
        name = 'failing'
        def score(self, pairs): return np.array(returned)
    with pytest.raises(MedAgentError, match=f'failing returned.*{said}'):
        score([make(), make()], [ITEM]*2, recipe('outcome_only'), Failing())
    assert entailment(Failing(), []).shape == (0,)


def test_rows_belong_to_their_items():
    with pytest.raises(MedAgentError, match='2 trajectories and 1 items'):
        score([make(), make()], [ITEM], Recipe(), HASHED)
    with pytest.raises(MedAgentError, match="row 1: trajectory 'warfarin' stands beside item 'lithium'"):
        score([make(id='lithium'), make(id='warfarin')], [ITEM]*2, Recipe(), HASHED)
    assert score([make(id='lithium'), make()], [ITEM]*2, Recipe(), HASHED).id.tolist() == ['lithium']*2


def test_columns_and_an_empty_batch():
    columns = ['id', 'r_acc', 'r_valid', 'r_faith', 'r_concise', 'gate', 'total', 'n_claims', 'n_failed', 'floor', 'letter', 'unmeasured', 'claims']
    assert list(score([make()], [ITEM], Recipe(), HASHED)) == list(score([], [], Recipe(), HASHED)) == columns
    assert score([make()]*3, [ITEM]*3, Recipe(), HASHED).index.tolist() == [0, 1, 2]


def test_scoring_costs_little_beside_the_verifier():
    rng = random.Random(0)
    batch = [make([tuple(rng.sample(PASSAGES, 2)) for _ in range(2)], claims=[(rng.choice(CLAIMS), (1,)), (rng.choice(CLAIMS), (2,))]) for _ in range(100)]
    verifier, seconds = Counting(), []
    for _ in range(5):
        start = time.process_time()
        score(batch, [ITEM]*100, Recipe(), verifier)
        seconds.append(time.process_time() - start)
    assert min(seconds) < .1          # about 10 ms on one idle core


# recipes

def test_recipes_on_file():
    assert tuple(recipe_names()) == NAMES and all(recipe(n).name == n and recipe(n).about for n in NAMES)


@pytest.mark.parametrize('name, near', [('medagnet', 'medagent'), ('outcome-only', 'outcome_only'), ('WO_GATE', None), ('', None), ('../medagent', None)])
def test_unknown_recipes_list_the_known(name, near):
    with pytest.raises(MedAgentError, match='unknown recipe') as caught:
        recipe(name)
    assert all(known in str(caught.value) for known in NAMES) and (near is None or f"Did you mean '{near}'?" in str(caught.value))


BASE = dict(about='x', weights={'r_acc': 1}, gate=True, tau=.7, alpha=.5, delta=.5, t_max=8)

@pytest.mark.parametrize('change, said', [
    ({'tua': 1}, "unknown key 'tua'"), ({'name': 'x'}, "unknown key 'name'"), ({'weights': {'r_fait': 1}}, "Did you mean 'r_faith'"), ({'weights': [1]}, 'weights'),
    ({'weights': {'r_acc': True}}, 'r_acc'), ({'weights': {'r_acc': '1'}}, 'r_acc'), ({'weights': {'r_acc': -1}}, 'r_acc'), ({'weights': {'r_acc': math.nan}}, 'r_acc'),
    ({'weights': {'r_acc': math.inf}}, 'r_acc'), ({'weights': {1: 1}}, 'unknown term'), ({'gate': 1}, 'gate'), ({'tau': 1}, 'tau'), ({'tau': -.1}, 'tau'), ({'tau': None}, 'tau'),
    ({'alpha': 0}, 'alpha'), ({'delta': 2}, 'delta'), ({'t_max': 0}, 't_max'), ({'t_max': 2.5}, 't_max')])
def test_recipes_that_cannot_be_meant_are_refused_with_the_file(tmp_path, change, said):
    path = tmp_path/'mine.yaml'
    path.write_text(yaml.safe_dump(BASE | change))
    with pytest.raises(MedAgentError, match=said) as caught:
        recipe(str(path))
    assert 'mine.yaml' in str(caught.value)
    path.write_text(yaml.safe_dump(BASE))
    assert recipe(str(path)) == Recipe(name='mine', **BASE)


@pytest.mark.parametrize('text, said', [('', 'NoneType'), ('- 1', 'list'), ('a: [', 'cannot be read'), ('weights: !!python/object/apply:os.getcwd []', 'cannot be read'),
                                        ('about: x', 'are missing')])
def test_files_that_are_no_recipe(tmp_path, text, said):
    (tmp_path/'mine.yaml').write_text(text)
    with pytest.raises(MedAgentError, match=said):
        read_recipe(tmp_path/'mine.yaml')
    with pytest.raises(MedAgentError, match='gone.yaml'):
        read_recipe(tmp_path/'gone.yaml')


def test_a_changed_recipe_is_named_after_the_change():
    r = recipe('medagent', lambda3=.2, gate=False)
    assert (r.weight('r_faith'), r.weight('r_valid'), r.gate, r.name) == (.2, .2, False, 'medagent with lambda3=0.2, gate=False')
    assert recipe('medagent').weight('r_faith') == .5
    with pytest.raises(MedAgentError, match="unknown value 'tauu'. Did you mean 'tau'"):
        recipe('medagent', tauu=.6)


def test_formula_and_table():
    assert formula(recipe('medagent')).split('    ')[0] == 'medagent: R = r_acc * 1[r_faith > 0] + 0.2 r_valid + 0.5 r_faith + 0.1 r_concise' == str(recipe('medagent')).split('    ')[0]
    assert formula(recipe('outcome_only')).startswith('outcome_only: R = r_acc    ') and formula(recipe('wo_faith')).startswith('wo_faith: R = r_acc + 0.2 r_valid + 0.1 r_concise ')
    last = recipe_table(recipe('wo_faith')).iloc[-1]
    assert (last.low, last.high) == pytest.approx((-.1, 1.2))
