"""Speed of the evaluation: python benchmarks/evaluation.py

Prints seconds (wall and CPU) and peak memory of a Fabrication Rate over 10,000 claims and of 10,000 resamples over 3 seeds x 1,000 and 3,000 questions."""
import resource
from time import perf_counter, process_time

import numpy as np
import pandas as pd

from medagent.evaluation.benchmarks import Item
from medagent.evaluation.faithfulness import METRICS, evaluate_rows, summarise
from medagent.evaluation.statistics import bootstrap_ci, paired_bootstrap
from medagent.trajectory import parse, render_observation

DRUGS = [f'Drug{i}ol' for i in range(500)]


class Literal:
    "Supported is what a passage says literally."
    name = 'literal'
    def supports(self, claim, passages): return claim in passages
    def equivalent(self, reference, claim): return reference == claim


def trajectory(i: int) -> tuple:
    "A question with four observations of five passages and five claims, one of them fabricated; and its item."
    rng = np.random.default_rng(i)
    facts = [f'Treatment with {d} calls for monitoring of marker {rng.integers(100)}.' for d in rng.choice(DRUGS, 20, replace=False)]
    lines = [x for n in range(4) for x in (f'[Action] guideline_search("monitoring {n}")', render_observation(n + 1, facts[5*n:5*n + 5]))]
    said = ' '.join(f'{facts[5*n][:-1]} [#{n + 1}].' for n in range(4)) + f' Treatment with {DRUGS[i % 500]} calls for caution [#1].'
    item = Item(id=f'q{i}', question='?', options=dict(A='yes', B='no'), gold='A', split='test', reference=(facts[0], facts[5]))
    return parse('\n'.join([*lines, f'[Evidence] {said}', '[Answer] A']), id=item.id), item


def system(seeds: int, questions: int, rate: float, rng: np.random.Generator) -> pd.DataFrame:
    "Rows of one system."
    n = seeds*questions
    claims = rng.integers(0, 5, n)
    return pd.DataFrame(dict(seed=np.repeat(np.arange(seeds), questions), id=np.tile([f'q{i}' for i in range(questions)], seeds),
                             correct=rng.random(n) < 0.7, claims=claims, fabricated=rng.binomial(claims, rate), seconds=rng.gamma(2, 4, n)))


def timed(what: str, work) -> object:
    "Run, print, return."
    start, cpu = perf_counter(), process_time()
    found = work()
    print(f'{what:70} {perf_counter() - start:7.2f} s  {process_time() - cpu:6.2f} s CPU   peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024:6.0f} MB', flush=True)
    return found


if __name__ == '__main__':
    pairs = [trajectory(i) for i in range(2000)]
    rows = timed('rows of 2,000 trajectories with 10,000 claims', lambda: evaluate_rows(*map(list, zip(*pairs)), Literal()))
    found = summarise(rows)
    assert found['n_claims'] == 10_000 and abs(found['fabrication_rate'] - 0.2) < 0.01
    rng = np.random.default_rng(0)
    for questions in (1000, 3000):
        for design in ('shared', 'own'):
            a, b = system(3, questions, 0.3, rng), system(3, questions, 0.2, rng)
            if design == 'own': a, b = (x.assign(id=x.seed.astype(str) + x.id) for x in (a, b))
            size = f'3 x {questions:,}, {design} questions'
            timed(f'Fabrication Rate with interval, {size}', lambda: bootstrap_ci(a, *METRICS['fabrication_rate']))
            timed(f'paired difference of Fabrication Rates, {size}', lambda: paired_bootstrap(a, b, *METRICS['fabrication_rate']))
            timed(f'paired difference of seconds (every row differs), {size}', lambda: paired_bootstrap(a, b, 'seconds'))
