"Calibration: scikit-learn and the module of statistics as oracles, properties of temperature, threshold and drift monitor, damaged input."
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import expit, logit
from scipy.stats import binomtest, entropy
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, f1_score, log_loss, precision_recall_fscore_support

from medagent.evaluation.statistics import bootstrap_ci
from medagent.reward.terms import entailment
from medagent.settings import MedAgentError
from medagent.verifier.calibration import (GRID, Calibrated, Drift, apply_temperature, brier, by_source, ece, ece_noise, fit_temperature, kl, reliability,
                                           reliability_figure, search_threshold, threshold_figure)
from medagent.verifier.nli import FunctionVerifier

probability = st.floats(0, 1)
pairs_of = st.lists(st.tuples(st.integers(0, 20).map(lambda i: i/20) | probability, st.booleans()), min_size=2, max_size=60).filter(lambda r: len({y for _, y in r}) == 2)
temperature = st.floats(.05, 20)


def sample(n, seed=0, sharp=1.0):
    "Scores `sharp` times too sure, and labels."
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1.8, n)
    return expit(sharp*z), (rng.random(n) < expit(z)).astype(int)


def drifting(n, seed, sharp=1.0): return expit(sharp*np.random.default_rng(seed).normal(.2, 1.8, n))


# --- temperature

@given(st.lists(probability, max_size=30))
def test_temperature_one_changes_nothing(p): assert apply_temperature(p, 1).tolist() == p


@given(st.lists(probability, min_size=1, max_size=30), temperature)
def test_order_and_side_of_one_half_stay(p, t):
    p = np.sort(p)
    s = apply_temperature(p, t)
    assert ((s >= 0) & (s <= 1)).all() and (np.diff(s) >= -1e-12).all()
    assert (s[p >= .5] >= .5).all() and (s[p <= .5] <= .5).all() and (s[(p == 0) | (p == 1)] == p[(p == 0) | (p == 1)]).all()
    assert (abs(s - .5) <= abs(p - .5) + 1e-12).all() if t >= 1 else (abs(s - .5) >= abs(p - .5) - 1e-12).all()


@given(st.floats(1e-6, 1 - 1e-6), st.floats(.2, 5), st.floats(.2, 5))
def test_temperatures_multiply(p, a, b): assert apply_temperature(apply_temperature(p, a), b) == pytest.approx(apply_temperature(p, a*b), abs=1e-6)


@given(st.floats(.01, .99), st.floats(.05, .95), temperature)
def test_a_temperature_is_another_threshold(s, tau, t):
    moved = apply_temperature(tau, 1/t)
    if abs(s - moved) > 1e-9: assert (apply_temperature(s, t) > tau) == (s > moved)


@pytest.mark.parametrize('sharp', [.4, 1, 2.5, 5])
def test_the_temperature_of_a_distorted_verifier_is_found(sharp):
    found = fit_temperature(*sample(20_000, 3, sharp))
    assert found.value == pytest.approx(sharp, rel=.05) and found.bound == ''


@pytest.mark.parametrize('seed', range(4))
def test_the_minimum_against_a_scan(seed):
    p, y = sample(60, seed, 2)
    found = fit_temperature(p, y)
    z = logit(p)/np.geomspace(.05, 20, 2001)[:, None]
    scan = np.logaddexp(0, np.where(y, -z, z)).mean(1)
    assert found.nll <= scan.min() + 1e-9 and scan.min() < found.nll + 1e-4 and found.nll == pytest.approx(log_loss(y, apply_temperature(p, found.value)))
    assert found.nll_before == pytest.approx(log_loss(y, p))


def test_three_classes():
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (20_000, 3))
    y = (np.exp(z).cumsum(1)/np.exp(z).sum(1, keepdims=True) < rng.random((20_000, 1))).sum(1)
    found = fit_temperature(3*z, y, logits=True)
    assert found.value == pytest.approx(3, rel=.05)
    p = apply_temperature(3*z, found.value, logits=True)
    assert p.shape == z.shape and p.sum(1) == pytest.approx(1) and fit_temperature(p, y).value == pytest.approx(1, rel=.01)
    assert found.nll == pytest.approx(log_loss(y, p))


def test_a_confident_wrong_score_costs_finitely():
    p, y = sample(200, 1)
    p[0], y[0], p[1], y[1] = 0, 1, 1, 0
    assert 1 < fit_temperature(p, y).value < 20


@pytest.mark.parametrize('scores, labels, message', [
    ([.5]*20, [1]*20, 'all 20 labels are 1'), ([.5]*5, [0, 1, 0, 1, 0], '5 pairs are too few'), ([], [], 'got \\(0,\\)'), ([.5, np.nan]*10, [0, 1]*10, 'score 1 is nan'),
    ([.5, 1.5]*10, [0, 1]*10, 'score 1 is 1.5'), ([.5]*20, [0, 1]*9, 'one for each of the 20'), ([.5]*20, ['0', '1']*10, 'booleans'), ([.5]*20, [0, np.nan]*10, 'label 1 is nan'),
    (['high']*20, [0, 1]*10, 'array of numbers'), ([[.5]]*20, [0, 1]*10, 'at least two classes'), ([[.5, .6]]*20, [0, 1]*10, 'add up to 1')])
def test_what_cannot_be_fitted_is_named(scores, labels, message):
    with pytest.raises(MedAgentError, match=message): fit_temperature(scores, labels)


@pytest.mark.parametrize('bounds', [(0, 2), (2, 3), (.1, .5), (.1, np.inf)])
def test_bounds_have_one_between_them(bounds):
    with pytest.raises(MedAgentError, match='bounds'): fit_temperature(*sample(50), bounds=bounds)


@pytest.mark.parametrize('t', [0, -1, np.nan, np.inf])
def test_a_temperature_is_positive(t):
    with pytest.raises(MedAgentError, match='above 0'): apply_temperature([.5], t)


# --- reliability

@settings(max_examples=40, deadline=None)
@given(pairs_of, st.integers(1, 12))
def test_curve_and_brier_agree_with_scikit_learn(rows, bins):
    compare(*map(np.array, zip(*rows)), bins, 'width')


@pytest.mark.parametrize('ties', [0, 30, 60])
def test_bins_of_equal_mass_agree_with_scikit_learn(ties):
    p, y = sample(101, ties)                    # 100k/7 is never whole, so that no quantile of theirs is rounded past a score
    p[:ties], p[ties:ties + ties//3] = 0, 1
    compare(p, y, 7, 'mass')


def test_bins_of_equal_mass_are_equally_full():
    assert reliability(*sample(100), 10, 'mass').n.between(9, 11).all() and len(reliability(*sample(7), 10, 'mass')) <= 7


def compare(p, y, bins, equal):
    table = reliability(p, y, bins, equal)
    share, confidence = calibration_curve(y, p, n_bins=bins, strategy={'width': 'uniform', 'mass': 'quantile'}[equal])
    full = table[table.n > 0]
    assert full.share.to_numpy() == pytest.approx(share) and full.confidence.to_numpy() == pytest.approx(confidence)
    assert table.n.sum() == len(p) and len(table) <= bins and ((full.share_low <= full.share + 1e-9) & (full.share <= full.share_high + 1e-9)).all()
    assert ece(p, y, bins, equal) == pytest.approx(np.average(abs(share - confidence), weights=full.n))
    assert abs(p.mean() - y.mean()) - 1e-9 <= ece(p, y, bins, equal) <= 1
    known = [binomtest(int(round(s*n)), int(n)).proportion_ci(method='wilson') for s, n in zip(full.share, full.n)]
    assert full[['share_low', 'share_high']].to_numpy() == pytest.approx(np.array(known), abs=1e-9)
    assert brier(p, y) == pytest.approx(brier_score_loss(y, p))


def test_bins_are_closed_above():
    table = reliability([0, .1, .2, .20001, 1], [0]*5, 10)
    assert table.n.tolist() == [2, 1, 1, 0, 0, 0, 0, 0, 0, 1]
    assert reliability([.4]*3, [1, 0, 1], 5, 'mass').n.tolist() == [3]


def test_a_calibrated_verifier_has_little_error_and_as_much_as_chance_says():
    assert ece(*sample(100_000)) < .01 < .1 < ece(*sample(100_000, sharp=3))
    noise = ece_noise(sample(200)[0])
    rng = np.random.default_rng(5)
    p = sample(200)[0]
    assert noise == pytest.approx(np.mean([ece(p, rng.random(200) < p) for _ in range(300)]), rel=.1)
    assert noise == ece_noise(p) != ece_noise(p, seed=1)


@pytest.mark.parametrize('bins, equal', [(0, 'width'), (5, 'size')])
def test_bins_that_make_no_sense(bins, equal):
    with pytest.raises(MedAgentError, match='bins'): ece([.5], [1], bins, equal)


def test_by_source():
    p, y = sample(300, 2)
    rows = [(f's{i % 3}', int(t), s) for i, (s, t) in enumerate(zip(p, y))]
    table = by_source(rows, tau=.7).set_index('source')
    assert table.index.tolist() == ['s0', 's1', 's2', 'all'] and table.n.tolist() == [100, 100, 100, 300]
    for name, part in [*((f's{i}', slice(i, None, 3)) for i in range(3)), ('all', slice(None))]:
        said = p[part] > .7
        both = [f1_score(y[part] == c, said == c) for c in (0, 1)]
        assert table.macro_f1[name] == pytest.approx(np.mean(both)) and table.accuracy[name] == pytest.approx((said == y[part]).mean())
        assert table.ece[name] == ece(p[part], y[part]) and table.brier[name] == brier(p[part], y[part])
        assert table.majority[name] == pytest.approx(max(np.mean(y[part]), 1 - np.mean(y[part])))
    for bad in ([('a', 1)], [('a', 2, .5)], [('a', 1, 1.5)], []):
        with pytest.raises(MedAgentError): by_source(bad)


# --- the threshold

@settings(max_examples=40, deadline=None)
@given(pairs_of, st.sampled_from([.5, 1, 2]))
def test_precision_recall_and_f_agree_with_scikit_learn(rows, beta):
    p, y = map(np.array, zip(*rows))
    found = search_threshold(p, y, beta=beta, n=20)
    for row in found.table.itertuples():
        precision, recall, f, _ = precision_recall_fscore_support(~y, p <= row.tau, beta=beta, average='binary', zero_division=np.nan)
        assert row.recall == pytest.approx(recall) and row.precision == pytest.approx(precision, nan_ok=True)
        assert row.f == pytest.approx(0 if row.recall == 0 else f)
    best = found.table.f.max()
    assert found.tau == found.table.tau[found.table.f >= best - 1e-12].max()


@settings(max_examples=60, deadline=None)
@given(pairs_of, st.integers(1, 8), st.integers(0, 3))
def test_intervals_contain_what_they_are_of(rows, size, seed):
    p, y = map(np.array, zip(*rows))
    found = search_threshold(p, y, groups=[i//size for i in range(len(p))], n=400, seed=seed)
    assert found.low <= found.tau <= found.high and {found.low, found.high, found.tau} <= set(GRID)
    for name in ('precision', 'recall', 'f'):
        t = found.table.dropna(subset=name)
        assert (t[f'{name}_low'] <= t[name] + 1e-9).all() and (t[name] <= t[f'{name}_high'] + 1e-9).all()
        assert t[[f'{name}_low', f'{name}_high']].stack().between(0, 1).all()
    assert found.table.chosen.sum() == pytest.approx(1) and found.undefined < 400


def test_the_interval_of_the_threshold_contains_it():
    for seed in range(20):
        found = search_threshold(*sample(80, seed), groups=np.arange(80)//2, n=300)
        assert found.low <= found.tau <= found.high


@pytest.mark.parametrize('size', [1, 4])
def test_intervals_agree_with_the_module_of_statistics(size):
    p, y = sample(240, 7)
    group = np.arange(240)//size
    found = search_threshold(p, y, grid=[.6], groups=group, n=10_000).table.iloc[0]
    rows = pd.DataFrame(dict(id=group, tp=((p <= .6) & (y == 0)).astype(int), flagged=(p <= .6).astype(int), bad=(y == 0).astype(int)))
    for name, den in (('precision', 'flagged'), ('recall', 'bad')):
        known = bootstrap_ci(rows, 'tp', den, cluster=None)
        assert found[name] == pytest.approx(known.estimate)
        assert [found[f'{name}_low'], found[f'{name}_high']] == pytest.approx([known.low, known.high], abs=.006)


def test_pairs_of_one_premise_go_together():
    p, y = sample(60, 1)
    p, y = np.repeat(p, 5), np.repeat(y, 5)       # each pair five times: no more evidence than once
    alone, together = (search_threshold(p, y, groups=g, n=3000).table.iloc[4] for g in (None, np.repeat(np.arange(60), 5)))
    once = search_threshold(*sample(60, 1), n=3000).table.iloc[4]
    width = lambda t: t.recall_high - t.recall_low
    assert width(together) == pytest.approx(width(once), rel=.1) and width(together) > 1.7*width(alone)


def test_the_seed_decides_and_the_order_does_not():
    p, y = sample(100, 4)
    a, b = (search_threshold(p, y, n=100, seed=s) for s in (0, 1))
    assert a.table.equals(search_threshold(p, y, n=100).table) and not a.table.equals(b.table)
    order = np.random.default_rng(0).permutation(100)
    assert search_threshold(p[order], y[order], n=100).table[['flagged', 'precision', 'recall', 'f']].equals(a.table[['flagged', 'precision', 'recall', 'f']])


def test_optimism_is_what_fresh_pairs_show():
    gain = [(search_threshold(*sample(40, seed), grid=np.linspace(.05, .95, 19), n=100), seed) for seed in range(60)]
    p, y = sample(50_000, 999)
    def fresh(tau): return precision_recall_fscore_support(y == 0, p <= tau, average='binary')[2]
    true = np.mean([f.table.f.max() - fresh(f.tau) for f, _ in gain])
    assert true > .01 and np.mean([f.optimism['f'] for f, _ in gain]) == pytest.approx(true, rel=.6)


def test_resamples_without_an_unsupported_pair_are_counted():
    found = search_threshold([.2, .9, .9], [0, 1, 1], n=1000)
    assert found.undefined == pytest.approx(1000*(2/3)**3, rel=.2) and found.table.recall.eq(1).all()
    none = next(f for seed in range(50) if (f := search_threshold([.2, .9, .9], [0, 1, 1], n=1, seed=seed)).undefined)
    assert none.tau == .85 and np.isnan([none.low, none.high, *none.optimism.values()]).all()       # nothing is known, nothing is made up


@pytest.mark.filterwarnings('error')
def test_a_threshold_that_flags_nothing_has_no_precision():
    t = search_threshold([.9, .95, .97], [0, 1, 1], grid=[.1, .2], n=50)
    assert t.table.precision.isna().all() and t.table.f.eq(0).all() and t.tau == .2 and np.isnan(t.optimism['precision']) and t.optimism['f'] == 0


@pytest.mark.parametrize('more, message', [
    (dict(labels=[1, 1, 1]), 'all 3 pairs are entailed'), (dict(grid=[]), 'thresholds'), (dict(grid=[np.nan]), 'thresholds'), (dict(groups=['a']), 'got 1 and 0 missing'),
    (dict(groups=['a', 'b', np.nan]), '1 missing'), (dict(n=0), 'n >= 1'), (dict(level=1), 'level'), (dict(beta=0), 'beta'), (dict(scores=[.1, .2, np.nan]), 'score 2 is nan'),
    (dict(scores=.5), 'one dimension'), (dict(labels=[0, 1]), 'each of the 3')])
def test_arguments_of_the_search_are_checked(more, message):
    with pytest.raises(MedAgentError, match=message): search_threshold(**dict(scores=[.1, .2, .3], labels=[0, 1, 1]) | more)


def test_figures_show_what_they_are_given():
    p, y = sample(100)
    fig = reliability_figure({'one': reliability(p, y), 'two': reliability(p, y, 4, 'mass')})
    assert [t.get_text() for t in fig.axes[0].get_legend().get_texts()] == ['one (n=100)', 'two (n=100)']
    assert threshold_figure(search_threshold(p, y, n=50)).axes[0].get_xlabel() == 'threshold τ'
    with pytest.raises(MedAgentError): reliability_figure({str(i): reliability(p, y) for i in range(5)})


# --- the wrapped verifier

def test_a_calibrated_verifier_scores_names_and_nests():
    seen = []
    inner = FunctionVerifier(lambda p, c: seen.append((p, c)) or float(p), 'inner')
    outer = Calibrated(Calibrated(inner, 2), 1.5)
    assert outer.score([('0.8', 'c'), ('0', 'c')]).tolist() == pytest.approx([float(apply_temperature(.8, 3)), 0]) and len(seen) == 2
    assert outer.name == 'inner (T=2) (T=1.5)' and outer.revision == 'function-T2.0-T1.5'
    assert Calibrated(inner, 2.00001).revision != Calibrated(inner, 2).revision and Calibrated(inner, 1.0).revision == inner.revision
    assert outer.score([]).shape == (0,)
    assert entailment(Calibrated(inner, 2), [('0.8', 'c')]).tolist() == pytest.approx([2/3])           # as the reward asks it
    with pytest.raises(MedAgentError, match='score 0 is 7'): outer.score([('7', 'c')])


# --- drift

counts = st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(sum)


@given(counts, counts)
def test_kl_is_a_divergence(q, r):
    assert kl(q, r) >= 0 and kl(q, q) == 0
    smooth = [.99*np.array(c)/sum(c) + .0025 for c in (q, r)]
    assert kl(q, r) == pytest.approx(entropy(*smooth), abs=1e-12)


@pytest.mark.parametrize('q, r', [([1, 2], [1, 2, 3]), ([0, 0], [1, 1]), ([1, -1], [1, 1]), ([[1]], [[1]])])
def test_kl_needs_counts_over_the_same_bins(q, r):
    with pytest.raises(MedAgentError): kl(q, r)


def test_the_same_scores_have_not_drifted():
    scores = drifting(500, 0)
    row = Drift.start(scores).check(200, scores)
    assert (row['kl'], row['kl_raw'], row['kl_after'], row['action'], row['temperature'], row['lost'], row['gained']) == (0, 0, 0, 'none', 1, 0, 0)


def test_sharper_scores_are_brought_back():
    monitor = Drift.start(drifting(5000, 0))
    row = monitor.check(200, drifting(5000, 1, 3))
    assert row['action'] == 'rescaled' and row['temperature'] == pytest.approx(3, rel=.15) and row['kl_after'] < .02 < .1 < row['kl']
    s = drifting(5000, 1, 3)
    assert row['lost'] == ((s > .7) & (apply_temperature(s, row['temperature']) <= .7)).sum() > 0 == row['gained']
    assert row['passing'] == (s > .7).sum() and row['tau_raw'] == pytest.approx(expit(row['temperature']*logit(.7)))
    flat = monitor.check(400, drifting(5000, 2, .5))                # the other way: scores gain the gate
    assert flat['temperature'] == pytest.approx(.5, rel=.15) and flat['gained'] > 0 == flat['lost'] and flat['temperature_before'] == row['temperature']
    back = monitor.check(600, drifting(5000, 3))                    # as it was: back to about 1
    assert back['temperature'] == pytest.approx(1, rel=.1)


def test_a_shift_is_not_undone_by_a_temperature():
    rng = np.random.default_rng(0)
    monitor = Drift.start(expit(rng.normal(-1, 1, 3000)))
    row = monitor.check(200, expit(rng.normal(1, 1, 3000)))
    assert row['kl_after'] > .1 and row['action'] in ('no temperature helps', 'rescaled, still above')


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.floats(.3, 4), st.integers(150, 400)), min_size=1, max_size=6), st.integers(0, 5))
def test_a_resumed_monitor_equals_an_uninterrupted_one(tmp_path_factory, checks, cut):
    folder = tmp_path_factory.mktemp('drift')
    rules = dict(every=100, threshold=.05, tau=.6)
    def run(monitor, some):
        for i, (sharp, n) in some: monitor.check(100*i, drifting(n, i, sharp))
    whole, numbered = Drift.start(drifting(300, 99), folder/'a.jsonl', **rules), [*enumerate(checks)]
    run(whole, numbered)
    run(Drift.start(drifting(300, 99), folder/'b.jsonl', **rules), numbered[:cut])
    again = Drift.load(folder/'b.jsonl')
    run(again, numbered[cut:])
    assert (folder/'a.jsonl').read_text() == (folder/'b.jsonl').read_text() and again.rows == whole.rows and again.temperature == whole.temperature
    again.rewind(100*cut)
    run(again, numbered[cut + 1:])
    assert again.rows == whole.rows == Drift.load(folder/'b.jsonl').rows


def test_checks_follow_the_rules(tmp_path):
    scores = drifting(400, 0)
    monitor = Drift.start(scores, tmp_path/'log.jsonl', every=50, least=300)
    assert monitor.check(49, scores) is None and monitor.rows == [] and monitor.check(50, scores)['step'] == 50
    assert monitor.check(100, drifting(299, 1, 5))['action'] == 'too few scores' and monitor.temperature == 1
    with pytest.raises(MedAgentError, match='rewind'): monitor.check(100, scores)
    assert len((tmp_path/'log.jsonl').read_text().splitlines()) == 3
    watched = Drift.start(scores, rescale=False)
    assert watched.check(200, drifting(400, 1, 5))['action'] == 'watched' and watched.wrap(FunctionVerifier(lambda p, c: .9, 'f')).score([('a', 'b')]).tolist() == [.9]


def test_the_wrapped_verifier_follows_the_monitor():
    monitor = Drift.start(drifting(1000, 0))
    verifier = monitor.wrap(FunctionVerifier(lambda p, c: .9, 'f'))
    before = verifier.score([('a', 'b')])[0], verifier.name, verifier.revision
    monitor.check(200, drifting(1000, 1, 3))
    assert before == (.9, 'f', 'function') and verifier.score([('a', 'b')])[0] == apply_temperature(.9, monitor.temperature) < .8
    assert f'T={monitor.temperature:.3g}' in verifier.name and verifier.revision.endswith(repr(monitor.temperature))


@pytest.mark.parametrize('text', ['', 'no json\n', '[1, 2]\n', '{"reference": [1, 2]}\n', '{"reference": [1, 2], "smoothing": 0.5}\n', '{"reference": [0, 0], "smoothing": 0.01}\n',
                                  '{"reference": [1, 2], "smoothing": 0.01, "colour": 1}\n', '{"reference": [1, 2], "smoothing": 0.01}\n{"step": 2', '{"reference": [1, 2], "smoothing": 0.01}\n{"step": 2}\n'])
def test_a_damaged_log_is_refused(tmp_path, text):
    (tmp_path/'log.jsonl').write_text(text)
    with pytest.raises(MedAgentError): Drift.load(tmp_path/'log.jsonl')
    with pytest.raises(MedAgentError): Drift.start([.5]*3, tmp_path/'log.jsonl')
    assert (tmp_path/'log.jsonl').read_text() == text           # nothing is overwritten


@pytest.mark.parametrize('rules', [dict(every=0), dict(threshold=0), dict(tau=1), dict(least=0), dict(bins=1)])
def test_rules_are_checked(rules):
    with pytest.raises(MedAgentError): Drift.start([.5]*3, **rules)


def test_the_log_is_json_lines_with_the_rules_first(tmp_path):
    Drift.start(drifting(300, 0), tmp_path/'deep'/'log.jsonl').check(200, drifting(300, 1, 4))
    rules, row = map(json.loads, (tmp_path/'deep'/'log.jsonl').read_text().splitlines())
    assert sum(rules['reference']) == 300 and (rules['every'], rules['threshold'], rules['tau']) == (200, .1, .7)
    assert {'step', 'kl', 'noise', 'temperature', 'tau_raw', 'lost', 'gained', 'action'} <= row.keys() and row['action'] == 'rescaled'
