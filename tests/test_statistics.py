"Statistics: pairing by id, counted gaps, resampling designs against closed forms and a plain loop, invariances."
from math import comb, sqrt

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from medagent.evaluation.statistics import bootstrap_ci, holm, mcnemar, paired_bootstrap
from medagent.settings import MedAgentError


def frame(values, seed=0, **more):
    "One row a value, ids q0, q1, ..."
    return pd.DataFrame(dict(seed=seed, id=[f'q{i}' for i in range(len(values))], correct=values) | more)


rows_of = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12)


def claims(pairs, seed=0):
    "Rows with fabricated <= claims."
    return pd.DataFrame([dict(seed=seed, id=f'q{i}', fabricated=min(p), claims=max(p)) for i, p in enumerate(pairs)])


# --- pairing

@settings(max_examples=15, deadline=None)
@given(rows_of, rows_of, st.randoms())
def test_pairs_are_matched_by_id_and_gaps_are_counted(x, y, rng):
    a, b = claims(x), claims(y)
    d = paired_bootstrap(a, b, 'fabricated', 'claims', n=50)
    shared = min(len(x), len(y))
    assert (d.units, d.missing_a, d.missing_b) == (shared, max(0, len(y) - shared), max(0, len(x) - shared))
    order_a, order_b = list(range(len(a))), list(range(len(b)))
    rng.shuffle(order_a), rng.shuffle(order_b)
    assert repr(paired_bootstrap(a.iloc[order_a], b.iloc[order_b], 'fabricated', 'claims', n=50)) == repr(d)


def test_position_is_not_identity():
    a = frame([1, 1, 1, 0, 0, 0])
    b = a.iloc[::-1].reset_index(drop=True)  # same answers, other order
    d = paired_bootstrap(a, b, 'correct')
    assert (d.estimate, d.low, d.high, d.p) == (0, 0, 0, 1)


def test_the_same_id_in_another_seed_is_another_row():
    a, b = pd.concat([frame([1], seed=1), frame([0], seed=2)]), frame([1], seed=2)
    d = paired_bootstrap(a, b, 'correct', n=50)
    assert (d.a, d.b, d.units, d.missing_a, d.missing_b) == (0, 1, 1, 0, 1)


def test_a_missing_value_is_a_gap_and_not_a_zero():
    d = paired_bootstrap(frame([1, None, None]), frame([1, 1, None]), 'correct', n=50)
    assert (d.a, d.units, d.missing_a, d.missing_b, d.no_value) == (1, 1, 1, 0, 1)
    assert bootstrap_ci(frame([1, None, 0, None]), 'correct', n=50).estimate == 0.5


@settings(max_examples=15, deadline=None)
@given(rows_of, rows_of)
def test_swapping_the_systems_turns_the_sign(x, y):
    one, other = (paired_bootstrap(*pair, 'fabricated', 'claims', n=60) for pair in ((claims(x), claims(y)), (claims(y), claims(x))))
    assert np.isnan(one.estimate) == np.isnan(other.estimate)
    if not np.isnan(one.estimate): assert one.estimate == -other.estimate and 0 < one.p <= 1


# --- resampling

def two_stage_by_loop(blocks, n, rng):
    "The textbook: draw seeds, in each drawn seed draw rows, ratio of sums."
    out = []
    for _ in range(n):
        num = den = 0
        for s in rng.integers(0, len(blocks), len(blocks)):
            x = blocks[s][rng.integers(0, len(blocks[s]), len(blocks[s]))]
            num, den = num + x[:, 0].sum(), den + x[:, 1].sum()
        out.append(num/den)
    return np.array(out)


@pytest.mark.parametrize('decimals', [False, True])  # few kinds of rows, or every row of its own kind
def test_nested_design_agrees_with_a_plain_loop(decimals):
    rng = np.random.default_rng(5)
    blocks = [np.column_stack([rng.binomial(2, p, m), np.full(m, 2)]).astype(float) for p, m in ((0.1, 40), (0.2, 60), (0.3, 50))]
    if decimals: blocks = [b + rng.random(b.shape)/10 for b in blocks]
    rows = pd.concat([pd.DataFrame(dict(seed=i, id=[f'{i}-{j}' for j in range(len(b))], num=b[:, 0], den=b[:, 1])) for i, b in enumerate(blocks)])
    ci = bootstrap_ci(rows, 'num', 'den', n=4000, level=0.8)
    low, high = np.quantile(two_stage_by_loop(blocks, 4000, rng), [0.1, 0.9])
    assert ci.design == 'nested' and abs(ci.low - low) < 0.01 and abs(ci.high - high) < 0.01
    assert abs(ci.estimate - sum(b[:, 0].sum() for b in blocks)/sum(b[:, 1].sum() for b in blocks)) < 1e-12


def test_one_seed_width_is_the_standard_error():
    answers = np.array([1]*240 + [0]*160)
    ci = bootstrap_ci(frame(answers), 'correct')
    assert ci.design == 'one seed'
    assert abs((ci.high - ci.low)/2 - 1.96*sqrt(0.6*0.4/400)) < 0.003


def test_shared_questions_are_not_counted_once_for_each_seed():
    answers = [1]*60 + [0]*40
    shared = pd.concat([frame(answers, seed=s) for s in range(3)])
    own = shared.assign(id=shared.seed.astype(str) + shared.id)
    wide, narrow = bootstrap_ci(shared, 'correct'), bootstrap_ci(own, 'correct')
    assert (wide.design, narrow.design) == ('crossed', 'nested')
    assert abs((wide.high - wide.low)/2 - 1.96*sqrt(0.24/100)) < 0.01      # three copies of 100 questions are 100 questions
    assert abs((narrow.high - narrow.low)/2 - 1.96*sqrt(0.24/300)) < 0.01  # seeds do not differ, so 300 questions


def test_crossed_pairs():
    a = pd.concat([frame([1]*30 + [0]*20, seed=s) for s in range(3)])
    b = pd.concat([frame([0]*10 + [1]*20 + [0]*20, seed=s) for s in range(3)])
    d = paired_bootstrap(a, b, 'correct')
    assert d.design == 'crossed' and abs(d.estimate - 0.2) < 1e-12 and d.units == 150
    assert abs((d.high - d.low)/2 - 1.96*sqrt(0.2*0.8/50)) < 0.015  # a difference of 1 on a fifth of 50 questions
    for one in d.by_cluster.values(): assert abs(one - 0.2) < 1e-12


@pytest.mark.parametrize('copies', [1, 40])  # both ways of counting draws
def test_common_kinds_of_rows_are_drawn_as_often_as_they_occur(copies):
    ci = bootstrap_ci(frame([1, 0, 0, 0, 0, 0, 0, 0]*copies), 'correct')
    if copies == 1: assert (ci.low, ci.high) == (0, 3/8)  # ones ~ Bin(8, 1/8): P(<=2) = 0.933, P(<=3) = 0.989
    else: assert abs((ci.high - ci.low)/2 - 1.96*sqrt(7/64/320)) < 0.004


def test_several_samples_of_a_question_stay_together():
    many = pd.concat([frame([1, 0, 1, 0])]*25)
    ci = bootstrap_ci(many, 'correct')
    assert (ci.units, ci.low, ci.high) == (4, 0, 1)  # four questions, not a hundred


@settings(max_examples=15, deadline=None)
@given(rows_of)
def test_interval_holds_the_estimate_and_stays_in_range(x):
    ci = bootstrap_ci(claims(x), 'fabricated', 'claims', n=100)
    if sum(max(p) for p in x) == 0: assert np.isnan([*ci]).all() and ci.undefined == 100
    else: assert 0 <= ci.low <= ci.high <= 1 and 0 <= ci.estimate <= 1
    assert repr(ci) == repr(bootstrap_ci(claims(x), 'fabricated', 'claims', n=100))
    assert repr(ci) == repr(bootstrap_ci(claims(x), lambda s: s['fabricated']/s['claims'], n=100))


def test_undefined_resamples_are_counted_and_speak_against_a_difference():
    a = pd.DataFrame(dict(seed=0, id=['x', 'y'], fabricated=[1, 0], claims=[1, 0]))
    b = pd.DataFrame(dict(seed=0, id=['x', 'y'], fabricated=[0, 0], claims=[1, 1]))
    d = paired_bootstrap(a, b, 'fabricated', 'claims')
    assert d.estimate == 1 and abs(d.undefined/10_000 - 0.25) < 0.02 and abs(d.p - 0.5) < 0.04  # (y, y) in a quarter: no rate of a


def test_missing_values_reach_a_function_metric():
    rows = frame([1, None, 0], claims=[1, 1, 1])
    assert np.isnan(bootstrap_ci(rows, lambda s: s['correct']/s['rows'], n=20).estimate)
    assert bootstrap_ci(rows, lambda s: s['claims']/s['rows'], n=20).estimate == 1


@pytest.mark.parametrize('call, said', [
    (lambda: bootstrap_ci(frame([]), 'correct'), 'no rows'),
    (lambda: bootstrap_ci(frame([1]), 'corect'), "no column 'corect'"),
    (lambda: bootstrap_ci(frame([None, None]), 'correct'), 'missing in all 2 rows'),
    (lambda: bootstrap_ci(frame(['yes']), 'correct'), 'must hold numbers'),
    (lambda: bootstrap_ci(frame([float('inf')]), 'correct'), 'infinite'),
    (lambda: bootstrap_ci(frame([1]).assign(id=None), 'correct'), 'no seed or no id'),
    (lambda: bootstrap_ci(frame([1]), 'correct', level=95), 'share between 0 and 1'),
    (lambda: bootstrap_ci(frame([1]), 'correct', n=0), 'must be positive'),
    (lambda: bootstrap_ci(frame([1]), len, 'correct'), 'own denominator'),
    (lambda: paired_bootstrap(frame([1]), frame([1], seed=3), 'correct'), 'occurs in both systems')])
def test_errors_say_what_is_wrong(call, said):
    with pytest.raises(MedAgentError, match=said): call()


# --- tests for single runs and families

@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=25), st.randoms())
def test_mcnemar_is_the_binomial_sum(pairs, rng):
    a, b = (pd.Series([p[i] for p in pairs], index=[f'q{k}' for k in range(len(pairs))], dtype=bool) for i in (0, 1))
    n_a, n_b = sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs)
    n = n_a + n_b
    expected = min(1, 2*sum(comb(n, i) for i in range(min(n_a, n_b) + 1))/2**n)
    shuffled = list(b.index)
    rng.shuffle(shuffled)
    found = mcnemar(a, b.loc[shuffled])
    assert (found.only_a, found.only_b, found.pairs) == (n_a, n_b, len(pairs)) and abs(found.p - expected) < 1e-12


@pytest.mark.parametrize('a, b, said', [
    ([True], [True, False], 'cannot be paired'), ([True], [None], 'true or false'), ([0.5], [1], 'true or false'),
    (pd.Series([True], ['x']), pd.Series([True], ['y']), 'one system only'),
    (pd.Series([True, True], ['x', 'x']), pd.Series([True, True], ['x', 'x']), 'more than once')])
def test_mcnemar_refuses_what_it_cannot_pair(a, b, said):
    with pytest.raises(MedAgentError, match=said): mcnemar(a, b)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=8), st.randoms())
def test_holm_never_helps_and_keeps_the_order(p, rng):
    adjusted = holm(p)
    assert all(p <= q <= min(1, len(adjusted)*p) + 1e-12 for p, q in zip(p, adjusted, strict=True))
    assert all(adjusted[i] <= adjusted[j] for i in range(len(p)) for j in range(len(p)) if p[i] <= p[j])
    if p: assert abs(adjusted[p.index(min(p))] - min(1, len(p)*min(p))) < 1e-12
    order = list(range(len(p)))
    rng.shuffle(order)
    assert holm([p[i] for i in order]) == [adjusted[i] for i in order]
