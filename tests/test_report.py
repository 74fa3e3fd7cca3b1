"The report room: hostile text stays text, tables have the values worked out by hand, figures show the tables."
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medagent.evaluation.benchmarks import Item
from medagent.evaluation.faithfulness import judge_trajectory
from medagent.report.audit import AuditRow, audit_html, audit_rows, audit_text, script_hash, show, visible
from medagent.report.figures import ablation_plot, arm_bars, figure_svg, reward_trajectories
from medagent.report.page import Section, report_html, write_report
from medagent.report.tables import (CONDITIONS, ablation_table, arms_of, cell, comparison_table, main_table, measure_table, outcome_table, per_seed_table,
                                    to_markdown)
from medagent.reward.recipes import recipe, score
from medagent.settings import MedAgentError
from medagent.trajectory import Call, StopReason, parse, render_observation
from medagent.verifier.nli import FunctionVerifier

# ---------------------------------------------------------------- examples

ITEM = Item(id='q1', question='What should be monitored during treatment with warfarin?', gold='B', split='test',
            options=dict(A='serum potassium', B='INR'), reference=('Treatment with warfarin calls for monitoring of INR.',))
CHECK, OTHER = 'During treatment with warfarin, check INR.', 'A typical adverse effect to expect with warfarin is bleeding.'

class Judge:
    "Supports a claim whose last word a passage contains."
    name = 'last word'

    def supports(self, claim: str, passages: list[str]) -> bool: return any(claim.rstrip('.').split()[-1] in p for p in passages)
    def equivalent(self, reference: str, claim: str) -> bool: return reference.rstrip('.') == claim.rstrip('.')

VERIFIER = FunctionVerifier(lambda premise, claim: .9 if premise == CHECK else .2, 'by hand')

def trajectory(evidence: str, passages: tuple[str, ...] = (OTHER, CHECK), think: str = 'I look.', query: str = 'warfarin monitoring', answer: str = 'INR'):
    "One search, then this evidence and answer."
    t = parse(f'[Think] {think}\n[Action] guideline_search("{query}")\n{render_observation(1, passages)}\n[Evidence] {evidence}\n[Answer] {answer}', id='q1')
    t.calls = [Call('guideline_search', query, ['p'] * len(passages), list(passages), similarity=.8)]
    return t

def rows_of(*trajectories, arm: str = 'SFT') -> list[AuditRow]:
    "Judged and scored audit rows."
    items = [ITEM] * len(trajectories)
    return audit_rows(trajectories, items, [judge_trajectory(t, i, Judge()) for t, i in zip(trajectories, items)], score(trajectories, items, recipe('medagent'), VERIFIER),
                      arm=arm, judge=Judge.name, recipe='medagent')

class Page(HTMLParser):
    "Tags with attributes, text by innermost class, scripts, headings."
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.text, self.scripts, self.styles, self._in = [], '', [], [], ''
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ('script', 'style'):
            self._in = tag
            getattr(self, tag + 's').append('')

    def handle_endtag(self, tag): self._in = ''

    def handle_data(self, data):
        if self._in: getattr(self, self._in + 's')[-1] += data
        else: self.text += data

    def of_class(self, name: str) -> list[dict]:
        "Attributes of the elements of a class."
        return [a for _, a in self.tags if name in (a.get('class') or '').split()]

# ---------------------------------------------------------------- hostile text

HOSTILE = ['<script>alert(1)</script>', '</style></script></title></textarea><img src=x onerror=alert(1)>', '" onmouseover="alert(1)" x="', "' onfocus='alert(1)",
           '<a href="javascript:alert(1)">x</a>', '--><!-- <svg onload=alert(1)>', ']]><iframe src="//x.example">', '{{ 7 * 7 }}{% raw %}', '&lt;script&gt;&#60;b&#62;',
           '<meta http-equiv=refresh content="0;url=//x.example">', '<base href="//x.example/">', 'x\u202egnorw\u2066', '\x1b[31m\x07\x00', 'W' * 10_000, '\ud800 lone']

def hostile_page(text: str) -> str:
    "The text wherever other people's text can stand."
    item = Item(id=text, question=text, options={'A': text, 'B': text + '2'}, gold='A', split='test', source=text, reference=(text,))
    t = trajectory(f'{text} [#1]. {text}. Thus {text} [#7].', passages=(text, text + ' again'), think=text, query=text.replace('"', ''), answer=text)
    t.id, t.question, t.calls[0].error, t.defects = text, text, text, [text]
    row = audit_rows([t], [item], None, None, arm=text)[0]
    row = replace(row, options={text: text}, gold=text, judge=text, verifier=text, recipe=text, terms=dict(total=1.0), gate=False, floor=text)
    cell_text = text.encode('utf-8', 'replace').decode()      # pandas cannot hold lone surrogates
    frame = pd.DataFrame({cell_text: [cell_text, None], 'y': [cell_text, '1.0']})
    return report_html(text, [Section(text, text, tables=[(text, frame)], audit=[row]), Section('two', audit=[])], lede=text, provenance={text: text, 'list': [text]})

BENIGN = Page(hostile_page('harmless'))

@pytest.mark.parametrize('text', HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_inert(text):
    page = Page(hostile_page(text))
    assert page.scripts == BENIGN.scripts and page.styles == BENIGN.styles and len(page.scripts) == len(page.styles) == 1
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in BENIGN.tags}
    assert not [name for _, attrs in page.tags for name in attrs if name.lower().startswith('on') or name in ('src', 'srcdoc', 'action', 'formaction')]
    assert {attrs['href'] for _, attrs in page.tags if 'href' in attrs} == {'#s1', '#s2'}
    assert {name for _, attrs in page.tags for name in attrs} <= {name for _, attrs in BENIGN.tags for name in attrs}
    assert {tuple(a.items()) for t, a in page.tags if t in ('meta', 'base', 'link')} == {tuple(a.items()) for t, a in BENIGN.tags if t == 'meta'}
    assert visible(text.split('"')[0])[:500] in page.text              # shown, not dropped
    assert not re.search('[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]', page.text)

@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_arm_and_passage_leaves_the_structure_alone(text):
    "Whatever an arm is called, the elements and their classes are those of a plain name."
    one = replace(rows_of(trajectory('Check INR [#1].'))[0], arm='plain')
    strip = lambda html: [(tag, attrs.get('class')) for tag, attrs in Page(html).tags]
    assert strip(audit_html([replace(one, arm=text)])) == strip(audit_html([one]))

def test_policy_allows_this_script_and_nothing_else():
    page = Page(report_html('t', [Section('s')]))
    policy = next(a['content'] for tag, a in page.tags if a.get('http-equiv') == 'Content-Security-Policy')
    rules = dict(rule.strip().split(' ', 1) for rule in policy.split(';'))
    assert rules == {'default-src': "'none'", 'style-src': "'unsafe-inline'", 'script-src': f"'{script_hash(page.scripts[0])}'", 'img-src': 'data:', 'base-uri': "'none'",
                     'form-action': "'none'"}
    assert [tag for tag, _ in page.tags].index('meta') < [tag for tag, _ in page.tags].index('style')
    # a known vector: the digest of the empty string
    assert script_hash('') == 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='

def test_terminal_text_has_no_control_characters():
    t = trajectory('INR \x1b[2J matters [#1].', passages=('a \x1b]0;title\x07 \u202eb',), think='\x9b31m', answer='INR')
    text = audit_text(audit_rows([t], [ITEM])[0])
    assert not re.search('[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]', text) and '‹U+001B›' in text

@pytest.mark.slow
@pytest.mark.skipif(shutil.which('chromium') is None, reason='needs chromium')
def test_browser_runs_our_script_only(tmp_path):
    "In a browser, under the policy: the filter bar appears, no hostile script changes the title."
    attack = '</script><script>document.title="pwned"</script><img src=x onerror="document.title=\'pwned\'">'
    audit = rows_of(trajectory(f'{attack} INR [#1].'), arm='a') + rows_of(trajectory('INR.'), arm='b')
    path = write_report(tmp_path/'r.html', 'Safe', [Section('Claims', audit=audit)])
    dom = subprocess.run(['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', f'--user-data-dir={tmp_path/"u"}',
                          '--dump-dom', path.as_uri()], capture_output=True, text=True, timeout=120, check=True).stdout
    page = Page(dom)
    assert '<title>Safe</title>' in dom and '2 of 2 trajectories' in page.text and 'hidden' not in page.of_class('ma-filters')[0]

# ---------------------------------------------------------------- the audit

def test_statuses_scores_and_notes():
    t = trajectory('Treatment with warfarin calls for monitoring of INR [#1]. Warfarin acts on factor VII [#1]. Warfarin works. It prevents stroke [#4]. The evidence is insufficient.')
    row, = rows_of(t)
    assert [c.status for c in row.claims] == ['supported', 'unsupported', 'uncited', 'unsupported', 'aside']
    first, second, third, fourth, _ = row.claims
    assert first.scores == second.scores == {1: .9} and first.best == CHECK and first.supported_by == (1,)
    assert second.note == 'the verifier accepts this claim, the judge does not' and first.note == ''
    assert third.passages == {} and fourth.passages == {} and fourth.claim.citations == (4,)
    assert row.letter == 'B' and row.correct and row.gate is False and row.terms['r_faith'] == -.5
    html = Page(audit_html([row]))
    assert [len(html.of_class(s)) for s in ('supported', 'unsupported', 'uncited', 'aside')] == [1, 2, 1, 1]
    for words in ('✓ supported', '✗ unsupported', '○ uncited', 'observation #4: never made', 'cites no observation', 'closed (a claim cites nothing)'): assert words in html.text

def test_supported_beside_the_question_is_said():
    row, = rows_of(trajectory('A typical adverse effect to expect with warfarin is bleeding [#1].'))
    assert row.claims[0].status == 'supported' and 'supported, but conveys no reference claim' in audit_text(row)

def test_best_passage_stands_first():
    html = audit_html(rows_of(trajectory('INR [#1].')))
    quotes = re.findall(r'<blockquote>(.*?)</blockquote>', html)
    assert quotes == [CHECK, OTHER] and '1 more from this observation' in html

def test_nothing_is_claimed_without_a_judge():
    "No verdict is no verdict, even where the verifier is sure."
    t = trajectory('Check INR [#1]. Warfarin works.')
    assert [c.status for c in audit_rows([t], [ITEM], None, score([t], [ITEM], recipe('medagent'), VERIFIER))[0].claims] == ['unjudged', 'uncited']
    assert '? not judged' in repr(show(t, ITEM)) and 'gate' not in repr(show(t, ITEM)) and '<script' not in show(t, ITEM)._repr_html_()

def test_lists_that_do_not_belong_together_are_refused():
    t = trajectory('Check INR [#1].')
    with pytest.raises(MedAgentError, match='1 trajectories and 2 items'): audit_rows([t], [ITEM, ITEM])
    with pytest.raises(MedAgentError, match='1 claims and 2 verdicts'): audit_rows([t], [ITEM], [judge_trajectory(t, ITEM, Judge()) * 2])
    with pytest.raises(MedAgentError, match="beside item 'q2'"): audit_rows([t], [replace(ITEM, id='q2')])

def test_claims_of_two_evidence_blocks_stay_in_theirs():
    t = parse('[Evidence] Alpha is one. Beta is two.\n[Think] More.\n[Evidence] Gamma is three.\n[Answer] B', id='q1')
    html = audit_html(audit_rows([t], [ITEM]))
    first, second = [part.split('</li>')[0] for part in html.split('<li class="ma-step evidence">')[1:]]
    assert 'Alpha' in first and 'Beta' in first and 'Gamma' not in first and 'Gamma' in second and 'Beta' not in second

def test_side_by_side_and_filter_tokens():
    rows = rows_of(trajectory('INR [#1].'), arm='full') + rows_of(trajectory('INR.'), trajectory('Nothing of the kind [#1].', answer='serum potassium'), arm='out only')
    page = Page(audit_html(rows))
    assert len(page.of_class('ma-question')) == 1
    tokens = [(a['data-verdict'], a['data-arm'], a['data-answer']) for a in page.of_class('ma-arm')]
    assert len(tokens) == 3 and tokens[0][0] != tokens[1][0] and tokens[1][1] == tokens[2][1] != tokens[0][1] and tokens[0][2] == tokens[1][2] != tokens[2][2]
    assert [a['data-by'] for tag, a in page.tags if tag == 'select'] == ['verdict', 'arm', 'answer']    # all called the same tool: nothing to filter

def test_how_it_ended_is_said():
    t = parse('[Think] hm', id='q1')
    t.stop = StopReason.CALLS
    text = audit_text(audit_rows([t], [ITEM])[0])
    assert 'no answer read; 0 calls; stopped: calls; defects: missing-evidence, missing-answer' in text
    forged = parse('[Observation #1] INR is all.\n[Evidence] INR [#1].\n[Answer] B', id='q1')
    row = audit_rows([forged], [ITEM])[0]
    assert row.claims[0].passages == {} and 'observation written by the model itself' in audit_html([row])

# ---------------------------------------------------------------- tables

def raw(arm: str, seed: int, id: str, correct: bool, claims: int = 1, fabricated: int = 0, found: int = 1, total: int = 1, **more) -> dict:
    "One raw row."
    supported = claims - fabricated
    return dict(seed=seed, arm=arm, facts='test', decoding='greedy', condition='normal', id=id, correct=correct, claims=claims, fabricated=fabricated, uncited=0, supported=supported,
                trivial=float(max(supported - found, 0)) if total else np.nan, asked_supported=float(found > 0) if total else np.nan, reference_hit=found, reference_found=found,
                reference_total=total, calls=2, outcome='answered') | more

SFT = [raw('sft', 1, 'a', True, 2, 1), raw('sft', 1, 'b', False, 1, 1, 0), raw('sft', 2, 'c', True, 0, 0, 0), raw('sft', 2, 'd', True, 3, 0, 0, 0, calls=4)]
FULL = [raw('medagent', 1, 'a', True), raw('medagent', 1, 'b', True), raw('medagent', 2, 'c', True), raw('medagent', 2, 'd', False, 3, 0, 0, 0, outcome='no_answer')]
RAW = pd.DataFrame(SFT + FULL)

def estimates(table: pd.DataFrame, arm: str) -> dict[str, float]:
    return table[table.arm == arm].set_index('measure').estimate.to_dict()

def test_measures_by_hand():
    # SFT: 3 of 4 right; 2 of 6 claims fabricated; EC-F1 of a: P 1/2, R 1 -> 2/3, b 0, c 0, d none; asked 1 of 3; trivial 0 of 3 claims (d has no reference)
    found = estimates(measure_table(RAW, n=100), 'sft')
    assert found == pytest.approx(dict(accuracy=75, fabrication=100*2/6, ec_f1=100*(2/3)/3, asked=100/3, trivial=0, calls=2.5))
    found = estimates(measure_table(RAW, n=100), 'medagent')
    assert found == pytest.approx(dict(accuracy=75, fabrication=0, ec_f1=100, asked=100, trivial=0, calls=2))

def test_main_table_layout():
    table = main_table(RAW, n=100)
    assert table.arm.tolist() == ['SFT', 'full (faithfulness gate)'] and table.questions.tolist() == ['4', '4'] and table.seeds.tolist() == ['2', '2']
    assert all(re.fullmatch(r'\d+\.\d \[\d+\.\d, \d+\.\d\]', text) for text in table['accuracy, %'])
    assert table['calls per question'].tolist()[0].startswith('2.50 [')

def test_an_unknown_value_is_a_dash_and_not_zero():
    unknown = RAW.assign(asked_supported=np.nan)
    assert main_table(unknown, n=50)['asked fact claimed and supported, % of answers'].tolist() == ['–', '–']
    assert 'asked fact claimed and supported, % of answers' not in comparison_table(unknown, n=50).measure.tolist()

def test_comparison_by_hand():
    table = comparison_table(RAW, n=200).set_index('measure')
    assert set(table.comparison) == {'full (faithfulness gate) − SFT'}      # no outcome-only rows: no such pair
    assert table.difference['accuracy, %'].split()[0] == '+0.0' and table.difference['Fabrication Rate, % of claims'].split()[0] == '−33.3'
    assert table['paired questions']['accuracy, %'] == '4' and table['paired questions']['asked fact claimed and supported, % of answers'] == '3'
    with pytest.raises(MedAgentError, match='none of the pairs'): comparison_table(RAW, [('medagent', 'outcome_only')])

def test_comparison_follows_ids_not_positions():
    "Rows in another order give the same table."
    assert comparison_table(RAW.iloc[::-1], n=100).equals(comparison_table(RAW, n=100))

def test_ablation_by_hand():
    worse = {'replaced': [True, False, False, False], 'removed': [False] * 4}
    rows = pd.concat([RAW[RAW.arm == 'sft']] + [RAW[RAW.arm == 'sft'].assign(condition=c, correct=v) for c, v in worse.items()])
    line = ablation_table(rows, n=100).iloc[0]
    assert [line[f'{c}, %'].split()[0] for c in CONDITIONS] == ['75.0', '25.0', '0.0']
    assert [line[f'change when {c}, points'].split()[0] for c in CONDITIONS[1:]] == ['−50.0', '−75.0']
    with pytest.raises(MedAgentError, match="'replaced'"): ablation_table(RAW)

def test_per_seed_and_outcomes():
    table = per_seed_table(RAW)
    assert table['accuracy, %'].tolist() == ['50.0', '100.0', '100.0', '50.0'] and table.seed.tolist() == ['1', '2', '1', '2']
    assert table['Fabrication Rate, % of claims'].tolist() == ['66.7', '0.0', '0.0', '0.0']
    ends = outcome_table(RAW).set_index('arm')
    assert ends.loc['SFT'].tolist() == ['100.0', '0.0', '25.0', '0.0'] and ends.loc['full (faithfulness gate)', 'no answer, %'] == '25.0'

def test_cells_do_not_mix():
    mixed = pd.concat([RAW, RAW.assign(facts='rl', correct=False), RAW.assign(decoding='sampled', correct=False), RAW.assign(condition='removed', correct=False)])
    assert main_table(mixed, n=50).equals(main_table(RAW, n=50))
    assert main_table(mixed, 'rl', n=50)['accuracy, %'][0].startswith('0.0')
    with pytest.raises(MedAgentError, match='no rows for'): cell(RAW, 'rl')
    assert arms_of(pd.DataFrame(dict(arm=['mine', 'medagent', 'sft']))) == ['sft', 'medagent', 'mine']

# ---------------------------------------------------------------- markdown

def read_markdown(text: str) -> list[list[str]]:
    "The cells of a pipe table, unescaped."
    lines = [re.findall(r'((?:\\.|[^|\\])*)\|', line[1:]) for line in text.splitlines()]
    return [[re.sub(r'\\(.)', r'\1', c.strip()) for c in line] for i, line in enumerate(lines) if i != 1]

@given(st.lists(st.lists(st.text(st.characters(codec='ascii', exclude_categories=['Cc']), max_size=8).map(str.strip), min_size=3, max_size=3), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_markdown_round(cells):
    frame = pd.DataFrame(cells, columns=['a|b', 'c\\', 'd'])
    assert read_markdown(to_markdown(frame)) == [['a|b', 'c\\', 'd'], *cells]

def test_markdown_alignment_and_missing():
    assert to_markdown(pd.DataFrame(dict(arm=['x'], share=['−3.0 [−5.0, 1.0]'], p=[None], n=[4]))) == '| arm | share | p | n |\n|---|---:|---:|---:|\n| x | −3.0 [−5.0, 1.0] | – | 4 |\n'

# ---------------------------------------------------------------- figures and page

LOG = pd.DataFrame([dict(arm=a, seed=s, step=i, r_acc=.5 + .01*i, r_faith=f*i - .1*s) for a, f in (('outcome_only', -.02), ('medagent', .05)) for s in (0, 1) for i in range(10)])

def test_reward_trajectories_panels_and_range():
    fig = reward_trajectories(LOG)
    assert [ax.get_title(loc='left') for ax in fig.axes] == ['(a) outcome-only', '(b) full (faithfulness gate)']
    low, high = fig.axes[0].get_ylim()
    assert low < -.28 and high >= 1 and fig.axes[1].get_ylim() == (low, high)       # nothing is cut off, panels compare
    strong = [line for line in fig.axes[1].lines if line.get_linewidth() == 2]
    assert strong[0].get_ydata()[0] == pytest.approx(.5) and strong[1].get_ydata()[0] == pytest.approx(-.05)    # mean of seeds 0 and -0.1
    assert 0 < strong[1].get_ydata()[-1] < .4                                         # smoothed lags behind the raw .4

def test_bars_and_dots():
    fig = arm_bars(RAW, n=100)
    assert [p.get_width() for p in fig.axes[1].patches] == pytest.approx([100*2/6, 0])
    dots = [line.get_xdata() for line in fig.axes[0].lines if line.get_marker() == 'o']
    assert [sorted(d) for d in dots] == [[50, 100], [50, 100]]

def test_ablation_plot_values():
    rows = pd.concat([RAW, RAW.assign(condition='replaced', correct=False), RAW.assign(condition='removed', correct=True)])
    line = next(l for l in ablation_plot(rows, n=50).axes[0].lines if l.get_marker() == 's')
    assert list(line.get_ydata()) == [75, 0, 100]

def test_svg_is_deterministic_and_its_ids_are_its_own():
    one, two, other = figure_svg(arm_bars(RAW, n=50)), figure_svg(arm_bars(RAW, n=50)), figure_svg(reward_trajectories(LOG))
    ids = lambda svg: re.findall(r'\bid="([^"]+)"', svg)
    assert one == two and not set(ids(one)) & set(ids(other)) and len(set(ids(one))) == len(ids(one))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', one)) <= set(ids(one)) and '<style' not in one and '<?xml' not in one

def test_page_is_self_contained(tmp_path):
    frame = main_table(RAW, n=50)
    path = write_report(tmp_path/'out'/'report.html', 'Study', [Section('Results', 'One.\n\nTwo.', tables=[('cap', frame)], figures=[('fig', arm_bars(RAW, n=50))])],
                        provenance=dict(seeds=[1, 2], command='medagent demo'))
    html = path.read_text(encoding='utf-8')
    page = Page(html)
    assert not re.search(r'(?:src|href)="(?!#)', html) and 'url(http' not in html and '@import' not in html
    assert sum(tag == 'svg' for tag, _ in page.tags) == 1 and sum(tag == 'tr' for tag, _ in page.tags) == 3
    for words in ('medagent demo', '1, 2', 'full (faithfulness gate)', 'cap', 'fig', 'Two.'): assert words in page.text

def test_unwritable_report_is_a_clear_error(tmp_path):
    (tmp_path/'r.html').mkdir()
    with pytest.raises(MedAgentError, match='cannot be written'): write_report(tmp_path/'r.html', 't', [])
