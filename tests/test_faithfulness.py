"Faithfulness: properties of rows and summaries on random evidence blocks, and hand-computed outcomes."
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from medagent.evaluation.benchmarks import Item
from medagent.evaluation.faithfulness import METRICS, evaluate_rows, judge_trajectory, summarise
from medagent.evaluation.statistics import bootstrap_ci
from medagent.settings import MedAgentError
from medagent.trajectory import parse, render_observation

FACTS = ('Warfarin needs monitoring of the INR', 'Metformin is stopped below an eGFR of 30', 'Clozapine lowers the neutrophil count', 'Heparin can lower platelets')
OBSERVATIONS = {1: FACTS[:1], 2: (FACTS[1], FACTS[2]), 3: ()}  # heparin stands nowhere


class WordForWord:
    "Entailed is what a passage says literally; equivalent is what is the same."
    name = 'word for word'
    def __init__(self): self.asked = []
    def supports(self, claim, passages):
        self.asked.append(tuple(passages))
        return claim.rstrip('.') in passages
    def equivalent(self, reference, claim): return reference == claim.rstrip('.')


def item(id='q', reference=FACTS[:2]):
    return Item(id=id, question='What is monitored?', options=dict(A='INR', B='platelets'), gold='A', split='test', reference=tuple(reference))


def response(claims, id='q', answer='A'):
    "A response whose evidence block consists of (fact, citations)."
    lines = [part for n, passages in OBSERVATIONS.items() for part in ('[Action] kg_query("monitoring")', render_observation(n, passages))]
    said = ' '.join(FACTS[f] + ''.join(f' [#{c}]' for c in cited) + '.' for f, cited in claims)
    return parse('\n'.join(lines + ([f'[Evidence] {said}'] if claims else []) + ([f'[Answer] {answer}'] if answer else [])), id=id)


def one(claims, **how): return evaluate_rows([response(claims, **how)], [item()], WordForWord()).iloc[0]


def truly(fact, cited): return any(FACTS[fact] in OBSERVATIONS.get(c, ()) for c in cited)


a_claim = st.tuples(st.integers(0, 3), st.lists(st.sampled_from([1, 2, 3, 7]), max_size=3, unique=True))
evidence = st.lists(a_claim, max_size=6)


@settings(max_examples=40, deadline=None)
@given(evidence)
def test_counts_are_those_of_the_definition(claims):
    row = one(claims)
    assert row.claims == len(claims) == row.supported + row.uncited + row.unsupported
    assert row.fabricated == sum(not truly(f, cited) for f, cited in claims) and row.uncited == sum(not cited for _, cited in claims)
    assert row.reference_hit == sum(f < 2 for f, _ in claims) and row.reference_found == len({f for f, _ in claims if f < 2})
    assert row.asked_supported == any(f < 2 and truly(f, cited) for f, cited in claims)
    assert row.trivial == sum(f >= 2 and truly(f, cited) for f, cited in claims)


@settings(max_examples=30, deadline=None)
@given(evidence, st.randoms())
def test_order_of_claims_and_of_citations_does_not_matter(claims, rng):
    shuffled = [(f, rng.sample(cited, len(cited))) for f, cited in rng.sample(claims, len(claims))]
    assert one(shuffled).fillna(-1).to_dict() == one(claims).fillna(-1).to_dict()


@settings(max_examples=30, deadline=None)
@given(st.lists(evidence, min_size=1, max_size=5), st.randoms())
def test_order_of_trajectories_does_not_matter_and_rates_are_rates(blocks, rng):
    runs, items = [response(c, id=f'q{i}') for i, c in enumerate(blocks)], [item(f'q{i}') for i in range(len(blocks))]
    rows = evaluate_rows(runs, items, WordForWord())
    found = summarise(rows)
    order = rng.sample(range(len(runs)), len(runs))
    again = evaluate_rows([runs[i] for i in order], items[::-1], WordForWord())
    assert again.id.tolist() == [f'q{i}' for i in order]
    for name, value in summarise(again).items(): assert value == pytest.approx(found[name], nan_ok=True)
    total = sum(map(len, blocks))
    if not total: assert np.isnan(found['fabrication_rate'])
    else:
        assert 0 <= found['fabrication_rate'] <= 1
        assert found['fabrication_rate'] == pytest.approx(sum(not truly(f, c) for block in blocks for f, c in block)/total)
        assert found['fabrication_rate'] == pytest.approx(found['uncited'] + found['unsupported'])
    for name in METRICS.keys() - {'calls'}: assert np.isnan(found[name]) or 0 <= found[name] <= 1


@settings(max_examples=30, deadline=None)
@given(evidence, st.sampled_from([(0, [1]), (1, [2]), (2, [3, 2])]), a_claim)
def test_adding(claims, good, any_claim):
    before, with_good, with_any = one(claims), one([*claims, good]), one([*claims, any_claim])
    assert with_good.fabricated == before.fabricated and with_good.supported == before.supported + 1  # a supported claim never adds a fabricated one
    assert with_any.fabricated >= before.fabricated and with_any.reference_found >= before.reference_found
    more_cited = one([(f, sorted({*cited, 1, 2})) for f, cited in claims])
    assert more_cited.fabricated <= before.fabricated  # nor does a further citation


def test_each_cited_observation_is_judged_alone_and_only_where_there_is_something_to_judge():
    judge = WordForWord()
    verdicts = judge_trajectory(response([(2, [1, 2]), (0, [3]), (0, [7]), (0, [])]), item(), judge)
    assert judge.asked == [OBSERVATIONS[1], OBSERVATIONS[2]]  # nothing for the empty, the missing and no citation
    assert [v.status for v in verdicts] == ['supported', 'unsupported', 'unsupported', 'uncited']
    assert [v.supported_by for v in verdicts] == [(2,), (), (), ()]


def test_a_forged_observation_supports_nothing():
    forged = parse(f'[Think] I know it.\n[Observation #1] {FACTS[0]}\n[Evidence] {FACTS[0]} [#1].\n[Answer] A', id='q')
    assert [v.status for v in judge_trajectory(forged, item(), WordForWord())] == ['unsupported']


def test_the_judge_sees_the_passage_as_it_was_retrieved():
    judge, passage = WordForWord(), 'Warfarin [Evidence] needs monitoring of the INR [#2]'
    t = parse(f'[Action] kg_query("warfarin")\n{render_observation(1, [passage])}\n[Evidence] {FACTS[0]} [#1].\n[Answer] A', id='q')
    judge_trajectory(t, item(), judge)
    assert judge.asked == [(passage,)]


@pytest.mark.parametrize('answer, outcome, letter', [('A', 'answered', 'A'), ('platelets', 'answered', 'B'), ('A or B', 'unparsed', None), ('', 'no_answer', None)])
def test_outcomes(answer, outcome, letter):
    row = one([(0, [1])], answer=answer)
    assert (row.outcome, row.letter, row.correct, row.answered) == (outcome, letter, letter == 'A', outcome == 'answered')
    assert row.claims == row.supported == 1  # its claims count all the same


def test_a_cut_off_response_keeps_its_claims():
    row = evaluate_rows([parse(f'[Evidence] {FACTS[0]}.', id='q')], [item()], WordForWord()).iloc[0]
    assert (row.outcome, row.stop, row.claims, row.fabricated, row.correct) == ('no_answer', 'no_answer', 1, 1, False)


def test_without_reference_claims_nothing_is_scored_against_them():
    rows = evaluate_rows([response([(0, [1])])], [item(reference=())], WordForWord())
    assert rows.loc[0, ['ec_precision', 'ec_recall', 'ec_f1', 'asked_supported', 'trivial']].isna().all() and rows.loc[0, 'supported'] == 1
    found = summarise(rows)
    assert np.isnan([found[k] for k in ('ec_f1', 'ec_f1_micro', 'asked_supported', 'trivial')]).all() and found['fabrication_rate'] == 0


def test_questions_weigh_alike_in_completeness_and_claims_in_fabrication():
    runs = [response([(0, [1]), (1, [2])], id='a'), response([(3, [])]*8, id='b')]
    found = summarise(evaluate_rows(runs, [item('a'), item('b')], WordForWord()))
    assert (found['ec_precision'], found['ec_recall'], found['ec_f1'], found['fabrication_rate']) == (0.5, 0.5, 0.5, 0.8)
    assert found['ec_f1_micro'] == pytest.approx(2*0.2*0.5/0.7)  # pooled precision 2/10, recall 2/4


def test_the_interval_is_an_interval_of_the_same_number():
    runs = [response(c, id=f'q{i}') for i, c in enumerate([[(0, [1]), (3, [1])], [], [(2, [2]), (1, [])], [(1, [2])]])]
    rows = evaluate_rows(runs, [item('q0'), item('q1'), item('q2', reference=()), item('q3')], WordForWord())
    found = summarise(rows)
    assert found['trivial'] == 0 and found['asked_supported'] == 2/3  # q2 has no reference: out of both
    for name, metric in METRICS.items(): assert bootstrap_ci(rows, *metric, cluster=None, n=5).estimate == pytest.approx(found[name])


def test_lost_questions_strangers_and_doubles_are_refused():
    run = response([], id='a')
    for runs, items, said in [([run], [item('a'), item('b')], "1 questions have no trajectory, for example 'b'"), ([run], [item('b')], "for example 'a'"),
                              ([run], [item('a'), item('a', reference=())], "two different items have the id 'a'")]:
        with pytest.raises(MedAgentError, match=said): evaluate_rows(runs, items, WordForWord())
    assert len(evaluate_rows([run, run], [item('a'), item('a')], WordForWord())) == 2  # a question sampled twice


@pytest.mark.parametrize('answer', ['No', None, 1, 0.9])
def test_only_a_bool_is_a_verdict(answer):
    judge = WordForWord()
    judge.equivalent = lambda reference, claim: answer
    with pytest.raises(MedAgentError, match='expected True or False'): judge_trajectory(response([(0, [1])]), item(), judge)


def test_a_failing_judge_is_not_a_no():
    judge = WordForWord()
    def supports(claim, passages): raise TimeoutError('no answer')
    judge.supports = supports
    with pytest.raises(TimeoutError): evaluate_rows([response([(0, [1])])], [item()], judge)
