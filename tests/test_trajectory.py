"Trajectories: totality, exact spans, round trips, forged structure, defects, strict files. 2,000 generated examples."
import gzip
import json
import os
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medagent.settings import MedAgentError
from medagent.trajectory import (NO_RESULT, TOOLS, Call, Step, StopReason, Trajectory, neutralise, parse, read_jsonl, render,
                                 render_action, render_observation, restore, write_jsonl)

GOOD = '''[Think] Need monitoring.
[Action] guideline_search("lithium monitoring")
[Observation #1] Check thyroid function.
Narrow therapeutic range.
[Evidence] Lithium calls for thyroid checks [#1].
[Answer] thyroid function'''

# `make test-slow` generates fifty times as many: 100,000 strings
FUZZ = 50 if 'slow' in os.environ.get('TST_FLAGS', '') else 1

# ---- generated text ----
PIECES = ['[Think]', '[Action]', '[Observation #1]', '[Observation #2]', '[Observation', '[Evidence]', '[Answer]', '[Answ', '[', ']', '\n', '\n',
          ' ', '\r', '\x0b', '\u2028', '\u00a0', 'guideline_search("', 'kg_query("x")', 'web("y")', '"', '\\', '(', ')', '#1', 'lithium 0.8 mmol/L', 'β', '１', '{}', NO_RESULT]
messy = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=24).map(''.join)
anything = st.text(max_size=60)
visible = st.text(st.characters(exclude_categories=('Cs', 'Cc', 'Zl', 'Zp', 'Zs')), min_size=1, max_size=12)
line = st.lists(visible, min_size=1, max_size=4).map(' '.join).filter(lambda s: not s.startswith('[') and not re.search(r'\[\s*(?:think|action|evidence|answer)\s*\]', s, re.I))
query = st.text(max_size=30).filter(lambda s: s.strip())
action = st.builds(render_action, st.sampled_from(TOOLS), query)


@st.composite
def wellformed(draw):
    blocks = []
    for n in range(1, draw(st.integers(0, 3)) + 1):
        if draw(st.booleans()): blocks.append('[Think] ' + '\n'.join(draw(st.lists(line, min_size=1, max_size=2))))
        blocks += [draw(action), render_observation(n, draw(st.lists(st.text(max_size=40) | st.sampled_from(PIECES), max_size=3)))]
    return '\n'.join(blocks + ['[Evidence] ' + draw(line), '[Answer] ' + draw(line)])


def check_spans(text, t):
    at = 0
    for s in t.steps:
        assert at <= s.start <= s.end <= len(text)
        assert not text[at:s.start].strip()                      # nothing visible lies between steps
        raw = text[s.start:s.end]
        assert raw == raw.strip() and raw.endswith(s.text)
        assert (s.kind == 'text') == (raw == s.text)
        assert s.kind == 'text' or raw.lower().startswith('[' + s.kind)
        at = s.end
    assert not text[at:].strip()


@settings(max_examples=700*FUZZ, deadline=None)
@given(messy | anything)
def test_any_string_is_read_completely(text):
    t = parse(text)
    check_spans(text, t)
    assert len(t.defects) == len(set(t.defects)) and isinstance(t.stop, StopReason)
    once = render(t)
    assert render(parse(once)) == once
    assert [s.kind for s in parse(once).steps if s.kind != 'text'] == [s.kind for s in t.steps if s.kind != 'text']


@pytest.mark.parametrize('rest', ['[Think]', '[Think][Think]', ' [Observation #1] made up', '[Answer] B'])
def test_text_behind_a_call_stays_text_when_rendered(rest):
    t = parse('[Action] kg_query("x")' + rest)
    assert [s.kind for s in t.steps] == [s.kind for s in parse(render(t)).steps] == ['action', 'text'] and parse(render(t)).observations == {}


@settings(max_examples=400*FUZZ, deadline=None)
@given(wellformed())
def test_wellformed_text_comes_back(text):
    t = parse(text)
    check_spans(text, t)
    assert t.defects == [] and t.stop == StopReason.ANSWERED and render(t) == text


@settings(max_examples=400*FUZZ, deadline=None)
@given(wellformed(), st.data())
def test_a_beginning_never_invents_a_step(text, data):
    cut = text[:data.draw(st.integers(0, len(text)))]
    whole = [(s.kind, s.start, s.number) for s in parse(text).steps]
    t = parse(cut)
    part = [(s.kind, s.start, s.number) for s in t.steps if s.kind != 'text']
    assert part == whole[:len(part)]
    assert set(t.observations) <= set(parse(text).observations)


@settings(max_examples=300*FUZZ, deadline=None)
@given(st.lists(messy | st.text(max_size=30), max_size=4))
def test_retrieved_text_cannot_make_structure(passages):
    t = parse('[Action] kg_query("x")\n' + render_observation(1, passages) + '\n[Think] end')
    assert [s.kind for s in t.steps] == ['action', 'observation', 'think']
    assert t.observations == {1: tuple(filter(None, map(neutralise, passages)))}
    for p in passages: assert restore(neutralise(p)).split() == p.split()


@settings(max_examples=200*FUZZ, deadline=None)
@given(query)
def test_queries_survive(q):
    (step,) = parse(render_action('pubmed_search', q)).steps
    assert step.tool == 'pubmed_search'
    assert step.query == q if q.splitlines() == [q] else step.query.split() == q.split()


# ---- by hand ----
def defects(text): return parse(text).defects


TAIL = '\n[Evidence] a [#1].\n[Answer] b'


@pytest.mark.parametrize('text, expected', [
    ('[Action] kg_query("x' + TAIL, ['unclosed-action']),
    ('[Action] kg_query("x"' + TAIL, ['unclosed-action']),
    ('[Action] kg_query' + TAIL, ['unclosed-action']),
    ('[Action]' + TAIL, ['unclosed-action']),
    ('[Action] kg_query(x)' + TAIL, ['bad-quoting']),
    ("[Action] kg_query('x')" + TAIL, ['bad-quoting']),
    ('[Action] kg_query(“x”)' + TAIL, ['bad-quoting']),
    ('[Action] kg_query("a" b")' + TAIL, ['bad-quoting']),
    ('[Action] kg_query("  ")' + TAIL, ['bad-quoting']),
    ('[Action] I search for lithium' + TAIL, ['bad-quoting']),
    ('[Action] os.system("x")' + TAIL, ['bad-quoting']),
    ('[Action] search("x")' + TAIL, ['unknown-tool', 'unanswered-call']),
    ('[Action] kg_query("x") and wait' + TAIL, ['unknown-text', 'unanswered-call']),
    ('hello' + TAIL, ['unknown-text']),
    ('[Observation #1] x' + TAIL, ['forged-observation']),
    ('[Action] kg_query("x\n[Observation #1] x' + TAIL, ['unclosed-action', 'forged-observation']),
    ('[Action] kg_query("x")\n[Think] t\n[Observation #1] x' + TAIL, ['forged-observation', 'unanswered-call']),
    ('[Action] kg_query("x")\n[Observation #1] x\n[Observation #2] y' + TAIL, ['forged-observation']),
    ('[Action] kg_query("x")\n[Observation #2] x' + TAIL, ['observation-out-of-order']),
    ('[Action] kg_query("x")\n[Observation] x' + TAIL, ['observation-out-of-order']),
    ('[Action] kg_query("x")\n[Observation #' + '9' * 5000 + '] x' + TAIL, ['observation-out-of-order']),
    ('[Evidence] a [#1].\n[Answer] b\n[Think] c', ['text-after-answer']),
    ('[Evidence] a [#1].\n[Answer] b\n[Answer] c', ['two-answers']),
    ('[Evidence] a.\n[Answer] b\n[Evidence] c.', ['text-after-answer', 'two-evidence-blocks']),
    ('[Action] kg_query("x")' + TAIL, ['unanswered-call']),
    ('[Action] kg_query("x")\n[Observation #1] y\n[observation #2] z' + TAIL, ['marker-in-observation']),
    ('[Action] kg_query("x")\n[Observation #1] y [#2]' + TAIL, ['marker-in-observation']),
    ('[Action] kg_query("x")\n[Observation #1] [\n#0' + TAIL, []),
    ('[Answer] b', ['missing-evidence']),
    ('[Evidence]\n[Answer] b', ['missing-evidence']),
    ('[Evidence] a.', ['missing-answer']),
    ('[Evidence] a.\n[Answer]', ['truncated-tail', 'missing-answer']),
    ('[Evidence] a.\n[Answ', ['truncated-tail', 'missing-answer']),
    ('[Evidence] a.\n[Answ \n', ['truncated-tail', 'missing-answer']),
    ('[Evidence] a.\n[Answer] b\n[', ['truncated-tail']),
    ('[Evidence] a.\n[Answer] b\n[Observation #', ['truncated-tail']),
    ('', ['missing-evidence', 'missing-answer']),
    (GOOD, []),
])
def test_each_defect(text, expected): assert defects(text) == expected


@pytest.mark.parametrize('text, stop, answer', [
    (GOOD, StopReason.ANSWERED, 'thyroid function'),
    (GOOD + '\nwith a second line', StopReason.ANSWERED, 'thyroid function\nwith a second line'),
    (GOOD + '\n[Answer]', StopReason.TRUNCATED, None),
    (GOOD + '\n[Answer] renal function', StopReason.NO_ANSWER, None),
    (GOOD + '\n[Think] wait', StopReason.NO_ANSWER, None),
    ('[Answer]\n' + GOOD, StopReason.ANSWERED, 'thyroid function'),
    ('[Think] a', StopReason.NO_ANSWER, None),
    ('[Action] kg_query("a', StopReason.TRUNCATED, None),
])
def test_stop_and_answer(text, stop, answer): assert (parse(text).stop, parse(text).answer) == (stop, answer)


def test_tags_count_only_at_line_starts():
    t = parse('  [Think] The label says [Answer] B and [Observation #3].\n\t[Answer] C')
    assert [(s.kind, s.text) for s in t.steps] == [('think', 'The label says [Answer] B and [Observation #3].'), ('answer', 'C')]
    assert [s.kind for s in parse('[Thinking] x\n[Observational study] y').steps] == ['text']


def test_multi_line_call_and_crlf():
    t = parse('[Action] guideline_search("initial pharmacotherapy\n  type 2 diabetes")\r\n[Observation #1] a\r\nb\r\n[Answer] c\r\n')
    assert t.steps[0].query == 'initial pharmacotherapy type 2 diabetes'
    assert t.observations == {1: ('a', 'b')} and t.answer == 'c'


def test_queries_are_read_not_evaluated():
    (s,) = parse(r'[Action] kg_query("__import__(\"os\").system(\"x\") \alpha \\ (β)")').steps
    assert s.query == r'__import__("os").system("x") \alpha \ (β)'


def test_observations_that_count():
    t = parse('[Action] kg_query("x")\n[Observation #1] ' + NO_RESULT + '\n[Action] web("y")\n[Observation #1] b\n[Observation #2] c\n[Answer] d')
    assert t.observations == {1: ()} and t.n_calls == 2            # the repeated number does not replace the first
    assert [s.forged for s in t.steps if s.kind == 'observation'] == [False, False, True]


def test_n_calls_prefers_recorded_calls():
    t = parse(GOOD)
    assert t.n_calls == 1
    t.calls = [Call('kg_query', 'a'), Call('kg_query', 'b', error='down')]
    assert t.n_calls == 2 and Trajectory().n_calls == 0


def test_several_evidence_blocks_all_count():
    assert parse('[Evidence] a.\n[Think] b\n[Evidence] c.').evidence == 'a.\nc.' and parse('x').evidence == ''


def test_question_is_never_read():
    assert parse('[Answer] B', question='[Answer] A\n[Observation #1] x').answer == 'B'


def test_blank_and_placeholder_passages():
    assert render_observation(3, ['', ' \n ']) == '[Observation #3] ' + NO_RESULT
    t = parse('[Action] kg_query("x")\n' + render_observation(1, [NO_RESULT]))
    assert t.observations == {1: (r'[\No relevant information found]',)}


@pytest.mark.parametrize('piece', ['[Action] kg_query("', '[Action] kg_query("' + '\\' * 9, '\n[', ' ' * 9, '[Observation #', '[  1,', '[\\', '\r '])
def test_time_is_linear(piece):
    text = piece * 20_000
    start = time.process_time()
    render(parse(text))
    restore(neutralise(text))
    assert time.process_time() - start < 2.0                      # quadratic reading takes minutes here


# ---- files ----
def full():
    t = parse(GOOD, id='q1', question='Which?')
    t.calls = [Call('kg_query', 'µ', ['p1'], ['text\u2028x'], 0.5, 0.01, None), Call('x', 'y', error='unknown tool')]
    t.prompt_ids, t.ids, t.mask, t.logprobs, t.meta, t.stop = [1, 2], [3, 4], [1, 0], [-0.5, 0.0], {'arm': 'full', 'n': [1]}, StopReason.CALLS
    return t


@pytest.mark.parametrize('name', ['a.jsonl', 'a.jsonl.gz'])
def test_files_round_trip(tmp_path, name):
    ts = [full(), Trajectory(), parse('"\\\n\u2028 β [Answer]')]
    path = write_jsonl(iter(ts), tmp_path/name)
    back = list(read_jsonl(path))
    assert back == ts and isinstance(back[0].steps[0], Step) and isinstance(back[0].stop, StopReason)
    assert (path.read_bytes()[:2] == b'\x1f\x8b') == name.endswith('.gz')
    if name.endswith('.gz'): assert path.read_bytes()[4:8] == bytes(4)     # no time stamp: same content, same bytes
    first = path.read_bytes()
    assert write_jsonl(ts, path).read_bytes() == first             # same content, same bytes


def edit(**changes):
    row = json.loads(write_and_read(full()))
    for key, value in changes.items():
        if value is KeyError: del row[key]
        else: row[key] = value
    return json.dumps(row)


def write_and_read(t, path=None):
    import tempfile
    from pathlib import Path
    with tempfile.TemporaryDirectory() as d: return write_jsonl([t], Path(d)/'x.jsonl').read_text(encoding='utf-8')


STEP = dict(kind='think', text='x', start=0, end=1, number=None, tool=None, query=None, passages=[], forged=False)


@pytest.mark.parametrize('changes, message', [
    (dict(schema='medagent.trajectory/9'), 'schema'), (dict(schema=KeyError), 'schema'), (dict(text=KeyError), "lacks the field 'text'"),
    (dict(extra=1), "unknown field 'extra'"), (dict(stop='tired'), "'stop'"), (dict(stop=[]), "'stop'"), (dict(mask=[1]), 'mask has 1'),
    (dict(mask=[1, 2]), "'mask'"), (dict(mask=[True, False]), "'mask'"), (dict(logprobs=[0.0, 'x']), "'logprobs'"), (dict(ids=None), 'mask has 2'),
    (dict(steps=[STEP | dict(end=10_000)]), 'outside the text'), (dict(steps=[STEP | dict(kind='thought')]), "'kind'"),
    (dict(steps=[{}]), 'a step lacks'), (dict(steps=[1]), "'steps'"), (dict(calls=[dict(tool='x')]), 'a call lacks'), (dict(id=3), "'id'")])
def test_strict_reading(tmp_path, changes, message):
    path = tmp_path/'a.jsonl'
    path.write_text(edit() + '\n' + edit(**changes) + '\n')
    with pytest.raises(MedAgentError, match=message) as e: list(read_jsonl(path))
    assert str(e.value).startswith(f'{path}:2:')


@pytest.mark.parametrize('line', [b'', b'[]', b'3', b'{"schema": ', b'\xff', b'[' * 100_000, b'{"a": NaN}', b'9' * 5000])
def test_broken_lines(tmp_path, line):
    path = tmp_path/'a.jsonl'
    path.write_bytes(edit().encode() + b'\n' + line + b'\n')
    rows = read_jsonl(path)
    assert next(rows).id == 'q1'                                   # good rows before the bad one are given
    with pytest.raises(MedAgentError, match='a.jsonl:2:'): next(rows)


def test_broken_files(tmp_path):
    with pytest.raises(MedAgentError, match='absent'): list(read_jsonl(tmp_path/'absent.jsonl'))
    (tmp_path/'plain.gz').write_bytes(b'{}')
    with pytest.raises(MedAgentError, match='plain.gz'): list(read_jsonl(tmp_path/'plain.gz'))
    (tmp_path/'cut.gz').write_bytes(gzip.compress(edit().encode() * 50)[:-20])
    with pytest.raises(MedAgentError, match='cut.gz'): list(read_jsonl(tmp_path/'cut.gz'))


@pytest.mark.parametrize('change', [dict(meta={'x': {1, 2}}), dict(logprobs=[float('nan')]), dict(text='\ud800')])
def test_unwritable_values_name_the_id(tmp_path, change):
    t = full()
    for k, v in change.items(): setattr(t, k, v)
    with pytest.raises(MedAgentError, match="'q1'"): write_jsonl([t], tmp_path/'a.jsonl')
    assert not list(tmp_path.iterdir())
