"Benchmark items: validation, files, content hash, the guard against training on test questions."
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from medagent.evaluation.benchmarks import Item, content_hash, is_test, read_items, refuse_test, write_items
from medagent.settings import MedAgentError

GOUT = dict(id='gout-first-line', question='First-line treatment of gout flare?', gold='B', split='rl',
            options={'A': 'allopurinol', 'B': 'colchicine', 'C': 'febuxostat'}, reference=('Colchicine is first-line in gout flare.',))


@pytest.mark.parametrize('change, said', [
    (dict(gold='D'), "gold 'D' is none of the options"), (dict(gold='colchicine'), "none of the options"), (dict(gold=''), "'gold'"),
    (dict(options={'B': 'colchicine'}), 'at least two'), (dict(options={}), 'at least two'), (dict(options=['A', 'B']), 'at least two'),
    (dict(options={'A': 'allopurinol', 'B': ''}), "option 'B'"), (dict(options={'A': 'allopurinol', 'B': 7}), "option 'B'"),
    (dict(question='  '), "'question'"), (dict(split=''), "'split'"), (dict(reference='one text'), 'reference'), (dict(reference=(1,)), 'reference')])
def test_a_record_that_cannot_be_scored_is_refused_with_its_id(change, said):
    with pytest.raises(MedAgentError, match=said) as caught:
        Item(**GOUT | change)
    assert 'gout-first-line' in str(caught.value)


def test_an_id_is_needed():
    with pytest.raises(MedAgentError, match="'id'"):
        Item(**GOUT | dict(id=' '))


text = st.text('abcé α"\\\n{', min_size=1, max_size=12).map(lambda s: s + '.')
items = st.lists(st.builds(lambda i, question, options, split, reference: Item(i, question, dict(zip('ABCDE', options)), 'B', split, 'made up', tuple(reference), {'n': 1}),
                           text, text, st.lists(text, min_size=2, max_size=5), st.sampled_from(['sft', 'rl', 'test']), st.lists(text, max_size=3)),
                 max_size=6, unique_by=lambda item: item.id)


@settings(max_examples=30, deadline=None)
@given(items)
def test_files_give_back_what_was_written(tmp_path_factory, many):
    path = tmp_path_factory.mktemp('items')/'items.jsonl'
    assert read_items(write_items(many, path)) == many


@settings(max_examples=30, deadline=None)
@given(items, st.randoms())
def test_hash_ignores_order_of_items_only(many, rng):
    shuffled = list(many)
    rng.shuffle(shuffled)
    assert content_hash(shuffled) == content_hash(many)
    for i, item in enumerate(many):
        for change in (dict(question=item.question + '?'), dict(gold='A'), dict(split=item.split + 'x'), dict(reference=(*item.reference, 'x')),
                       dict(options=dict(reversed(item.options.items()))), dict(meta={'n': 2}), dict(source='other')):
            assert content_hash([*many[:i], replace(item, **change), *many[i + 1:]]) != content_hash(many)


@pytest.mark.parametrize('line, said', [
    ('{"id": "q2"', 'not a benchmark item'), ('[1, 2]', 'expected an object'), ('{"id": "q2", "gold": "A"}', 'missing'),
    (json.dumps(GOUT | dict(id='q2', qestion='x')), 'qestion'), (json.dumps(GOUT), "already used in line 1"), (json.dumps(GOUT | dict(id='q2', gold='Z')), "gold 'Z'")])
def test_bad_lines_are_named(tmp_path, line, said):
    path = tmp_path/'items.jsonl'
    path.write_text(json.dumps(GOUT) + '\n\n' + line + '\n')
    with pytest.raises(MedAgentError, match=said) as caught:
        read_items(path)
    assert 'items.jsonl:3' in str(caught.value)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(MedAgentError, match='nowhere.jsonl'):
        read_items(tmp_path/'nowhere.jsonl')
    (tmp_path/'latin.jsonl').write_bytes('{"id": "é"}'.encode('latin-1'))
    with pytest.raises(MedAgentError, match='UTF-8'):
        read_items(tmp_path/'latin.jsonl')


def test_repeated_ids_are_not_written(tmp_path):
    with pytest.raises(MedAgentError, match='gout-first-line'):
        write_items([Item(**GOUT)]*2, tmp_path/'items.jsonl')
    assert not (tmp_path/'items.jsonl').exists()


@pytest.mark.parametrize('split, test', [('test', True), ('TEST', True), (' test', True), ('test_4_options', True), ('rl', False), ('latest', False), ('train', False)])
def test_what_counts_as_a_test_split(split, test):
    assert is_test(Item(**GOUT | dict(split=split))) is test


def test_test_items_are_refused_by_name():
    train = [Item(**GOUT | dict(id=f'train-{i}')) for i in range(3)]
    refuse_test(train)
    refuse_test(iter([]))
    with pytest.raises(MedAgentError) as caught:
        refuse_test([*train, *(Item(**GOUT | dict(id=f'held-{i}', split='test')) for i in range(7))])
    assert 'held-0' in str(caught.value) and '7 test items' in str(caught.value) and 'train-' not in str(caught.value)
