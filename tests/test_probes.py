"Evidence ablation: what the conditions keep and break, and how drops are paired."
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from medagent.evaluation.benchmarks import Item
from medagent.evaluation.probes import OtherQuestions, ablation_drop, drops, evidence_ablation
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.tools import Toolbox
from medagent.settings import MedAgentError
from medagent.trajectory import NO_RESULT, parse, render_action, render_observation

DRUGS = [f'drug{i:02d}' for i in range(12)]


class Exact:
    "Finds the passages about the drug in the query; `n` of them, none for drug00."
    def __init__(self, kind, n): self.kind, self.n = kind, n
    def search(self, queries, k):
        return [[Hit(Passage(f'{self.kind}/{d}/{i}', f'{self.kind} {i} on {d}.', self.kind), 1.0) for d in DRUGS[1:] if d in q for i in range(self.n)][:k] for q in queries]


class Never:
    name = 'never'
    def supports(self, claim, passages): return False
    def equivalent(self, reference, claim): return False


def box(): return Toolbox(dict(guideline_search=Exact('g', 2), kg_query=Exact('k', 1)), encoder=None, k=2)


ITEMS = [Item(id=d, question=f'{d}?', options=dict(A='x', B='y'), gold='A', split='test') for d in DRUGS]


def run(tools, items=ITEMS, keep=True):
    "Asks both tools; right if an observation is about the drug."
    out = []
    for item in items:
        calls = tools.call([('guideline_search', f'{item.id} dose'), ('kg_query', item.id)])
        text = [x for n, c in enumerate(calls, 1) for x in (render_action(c.tool, c.query), render_observation(n, c.passages))]
        t = parse('\n'.join([*text, f"[Answer] {'A' if any(item.id in p for c in calls for p in c.passages) else 'B'}"]), id=item.id)
        if keep: t.calls = calls
        out.append(t)
    return out


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.permutations(range(len(DRUGS))))
def test_replaced_keeps_the_form_and_none_of_the_content(seed, order):
    normal = run(box())
    other = OtherQuestions(box(), seed, [normal[i] for i in order])
    swapped = run(other)
    for t, s in zip(normal, swapped, strict=True):
        assert [(step.kind, step.number, step.tool, step.query, len(step.passages)) for step in t.steps] == [(step.kind, step.number, step.tool, step.query, len(step.passages)) for step in s.steps]
        assert not any(t.id in p for c in s.calls for p in c.passages)
    assert [t.text for t in run(OtherQuestions(box(), seed, normal))] == [t.text for t in swapped]  # the order of the run does not matter


def test_a_request_nobody_made_is_answered_from_the_pool():
    call, = OtherQuestions(box(), 0, run(box())).call([('kg_query', 'drug03 in pregnancy')])
    assert len(call.passages) == 1 and 'drug03' not in call.passages[0]


def test_questions_that_share_a_query_are_all_excluded():
    normal = run(box())
    twin = parse(normal[3].text, id='twin')
    twin.calls = normal[3].calls + normal[4].calls  # the twin of drug03 also asked about drug04
    for seed in range(60):
        calls = OtherQuestions(box(), seed, [*normal, twin]).call([('kg_query', 'drug03')])
        assert not any(d in p for d in ('drug03', 'drug04') for p in calls[0].passages)


def test_conditions_side_by_side():
    rows = evidence_ablation(run, box(), ITEMS, Never(), seed=7)
    assert rows.groupby('condition', sort=False).correct.sum().to_dict() == dict(normal=11, replaced=0, removed=0)
    assert rows.groupby('condition').empty_observations.sum().to_dict() == dict(normal=2, replaced=2, removed=24)
    assert rows.seed.eq(7).all() and rows.groupby('condition').size().eq(12).all()
    table = ablation_drop(rows)
    assert table.index.tolist() == ['replaced', 'removed']
    assert table['drop'].tolist() == [11/12]*2 and table.normal.tolist() == [11/12]*2 and table.pairs.tolist() == [12, 12]


def test_removed_observations_hold_the_placeholder():
    seen = []
    evidence_ablation(lambda tools: seen.append(run(tools)) or seen[-1], box(), ITEMS, Never())
    assert all(s.text == NO_RESULT and s.number in (1, 2) for t in seen[2] for s in t.steps if s.kind == 'observation')


def test_without_evidence_or_with_too_little_there_is_no_ablation():
    with pytest.raises(MedAgentError, match='retrieved no passage'): evidence_ablation(lambda tools: run(tools, keep=False), box(), ITEMS, Never())
    with pytest.raises(MedAgentError, match='content of other questions'): evidence_ablation(lambda tools: run(tools, ITEMS[:2]), box(), ITEMS[:2], Never())


def test_a_lost_question_stops_the_probe():
    calls = []
    def loses(tools):
        calls.append(tools)
        return run(tools)[:-1] if len(calls) == 3 else run(tools)
    with pytest.raises(MedAgentError, match="no trajectory, for example 'drug11'"): evidence_ablation(loses, box(), ITEMS, Never())


def table(**conditions):
    return pd.concat([pd.DataFrame(dict(condition=c, seed=0, id=list(v), correct=list(v.values()))) for c, v in conditions.items()])


def test_drops_pair_by_id_average_samples_and_keep_gaps():
    rows = pd.concat([table(normal=dict(a=1, b=1, c=0), replaced=dict(c=1, a=0)), table(normal=dict(a=0))])
    found = drops(rows).set_index('id')['drop']
    assert found['a'] == 0.5 and found['c'] == -1 and pd.isna(found['b'])
    line = ablation_drop(rows).loc['replaced']
    assert (line.pairs, line.missing) == (2, 1) and line['drop'] == pytest.approx(1/3 - 1/2)  # rows of a and c: 1, 0, 0 against 0, 1


@pytest.mark.parametrize('rows, said', [(table(replaced=dict(a=1)), "expected 'normal'"), (table(normal=dict(a=1)), 'at least one other'),
                                        (table(normal=dict(a=1)).drop(columns='seed'), "no column 'seed'")])
def test_other_rows_are_refused(rows, said):
    with pytest.raises(MedAgentError, match=said): ablation_drop(rows)
