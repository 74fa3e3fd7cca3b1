"Entailment data: layouts of sets that are not here, hostile records, and every real file against counts made by hand."
import csv
import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from medagent.retrieval.sources import Report
from medagent.settings import MedAgentError
from medagent.verifier.finetune import TWO_CLASSES, Pair, read_pairs
from medagent.verifier.pairs import (LABELS, THREE_CLASSES, Example, as_pairs, mix, nearest, plain, read_citint, read_evidence_inference, read_examples,
                                     read_nli, read_scifact, read_sick, read_wice, split_of, unmarked)

SHARED = Path(__file__).parents[2]/'shared'/'data'
NLI = SHARED/'nli'
needs_shared = pytest.mark.skipif(not NLI.is_dir(), reason='the shared data folder is not here')


def put(path: Path, *lines: object) -> Path:
    "A file of lines; what is no text becomes JSON."
    path.write_text(''.join((line if isinstance(line, str) else json.dumps(line)) + '\n' for line in lines), encoding='utf-8', newline='')
    return path


def text(path: Path) -> str: return (gzip.open if path.suffix == '.gz' else open)(path, 'rt', encoding='utf-8', newline='').read()
def json_lines(path: Path) -> list[dict]: return [json.loads(line) for line in text(path).split('\n') if line]
def squeezed(value: str) -> str: return ' '.join(value.split())


def nli(label='entailment', premise='It rains a lot.', claim='It rains.', **more) -> dict:
    return dict(gold_label=label, sentence1=premise, sentence2=claim, sentence1_parse='(ROOT)', annotator_labels=[label], **more)


# --- MultiNLI, MedNLI, SciTail: their layouts, written by hand

MULTINLI_HEADER = ('gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse sentence1 sentence2 promptID pairID genre '
                   'label1 label2 label3 label4 label5').replace(' ', '\t')


def multinli_row(label: str, premise: str, claim: str, pair: str, genre='fiction', votes=1) -> str:
    return '\t'.join([label, '( a )', '( b )', '(ROOT a)', '(ROOT b)', premise, claim, pair[:-1], pair, genre, *[label]*votes, *['']*(5 - votes)])


def test_multinli_is_the_same_as_json_and_as_text(tmp_path):
    rows = [('entailment', 'He said "no" and left.', 'He left.', '11e'), ('-', 'He left.', 'He is sad.', '11n'), ('contradiction', 'He left.', 'He stayed.', '12c')]
    as_text = put(tmp_path/'multinli_1.0_dev_matched.txt', MULTINLI_HEADER, *[multinli_row(*r, votes=5) for r in rows])
    as_json = put(tmp_path/'multinli_1.0_dev_matched.jsonl', *[nli(r[0], r[1], r[2], pairID=r[3], promptID=r[3][:-1], genre='fiction') for r in rows])
    for path in (as_text, as_json):
        report = Report()
        assert list(read_nli(path, 'multinli', report=report)) == [
            Example('He said "no" and left.', 'He left.', 'entailment', 'multinli', 'dev', f'{path.name}:11e', 'fiction'),
            Example('He left.', 'He stayed.', 'contradiction', 'multinli', 'dev', f'{path.name}:12c', 'fiction')]
        assert report.skipped == {"no majority label ('-')": 1} and report.records == 3 and report.kept == 2


def test_multinli_rows_may_lack_the_last_votes(tmp_path):
    path = put(tmp_path/'multinli_1.0_train.txt', MULTINLI_HEADER, multinli_row('neutral', 'A.', 'B.', '1n').rstrip('\t'))
    assert [e.label for e in read_nli(path, 'multinli')] == ['neutral']


def test_unlabelled_test_sets_are_refused(tmp_path):
    path = put(tmp_path/'multinli_0.9_test_matched_unlabeled.jsonl', nli('hidden', pairID='1'), nli('hidden', pairID='2'))
    with pytest.raises(MedAgentError, match='none of its 2 records can be used .no label: 2'): list(read_nli(path, 'multinli'))


def test_mednli(tmp_path):
    path = put(tmp_path/'mli_test_v1.jsonl', nli('neutral', 'Labs were notable for Cr 1.7 .', 'Patient has CKD', pairID='23eb-1'))
    (e,) = read_nli(path, 'mednli')
    assert (e.source, e.split, e.label, e.id) == ('mednli', 'test', 'neutral', 'mli_test_v1.jsonl:23eb-1')
    with pytest.raises(MedAgentError, match='mli_test_v1.jsonl:23eb-1.*never trained on'): as_pairs([e])


def test_scitail_in_its_four_formats(tmp_path):
    premise, claim = 'He called it a "force', 'Gravity is a force.'          # one quote, as the web has it
    files = [put(tmp_path/'scitail_1.0_train.tsv', f'{premise}\t{claim}\tentails', f'x "y" z\t{claim}\tneutral'),
             put(tmp_path/'scitail_1.0_structure_train.tsv', f'{premise}\t{claim}\tentails\tgravity<>is<>a force', f'x "y" z\t{claim}\tneutral\tgravity<>is<>a force'),
             put(tmp_path/'scitail_1.0_train.txt', nli('entailment', premise, claim), nli('neutral', 'x "y" z', claim)),
             put(tmp_path/'scitail_1.0_structure_train.jsonl', *[dict(gold_label=label, sentence1=p, sentence2=claim, answer='force', question='q', sentence2_structure='s')
                                                               for label, p in (('entails', premise), ('neutral', 'x "y" z'))])]
    for path in files:
        assert [e[:5] for e in read_nli(path, 'scitail')] == [(premise, claim, 'entailment', 'scitail', 'train'), ('x "y" z', claim, 'neutral', 'scitail', 'train')]
    assert len(list(read_nli(files, 'scitail'))) == 8


# --- records that are not as they should be

def test_bad_records_are_counted_and_named(tmp_path):
    path = tmp_path/'a_train.jsonl'
    lines = [nli(), 'no json', '[1]', nli('maybe'), nli(None), nli(['neutral']), nli(premise=' '), nli(claim=''), nli(claim=7), nli(premise='\ud800'), '[' * 100_000,
             nli('neutral', 'Rain  falls\u2028on\x85us.', 'We are wet.')]
    data = [(line if isinstance(line, str) else json.dumps(line)).encode() for line in lines]
    path.write_bytes(b'\xef\xbb\xbf' + b'\r\n'.join([data[0], b'\xff\xfe{', b'', *data[1:]]))
    report = Report()
    found = list(read_nli(path, 'snli', report=report))
    assert [(e.premise, e.id) for e in found] == [('It rains a lot.', 'a_train.jsonl:1'), ('Rain falls on us.', 'a_train.jsonl:14')]
    assert report.skipped == {'not UTF-8': 1, 'not a JSON record': 3, "unknown label 'maybe'": 1, 'no label': 1, '''unknown label "['neutral']"''': 1, 'no premise': 1,
                              'no claim': 2, 'not valid Unicode': 1}
    assert report.records == report.kept + sum(report.skipped.values()) == 13


def test_tabs_in_the_wrong_place(tmp_path):
    path = put(tmp_path/'b_train.tsv', 'a\tb\tentails', 'a\tb', 'a\tb\tneutral\tc\td', 'cut here\u2028and here\tb\tneutral')
    report = Report()
    assert len(list(read_nli(path, 'scitail', report=report))) == 2
    assert report.skipped == {'too few columns': 1, 'too many columns': 1}


def test_files_that_cannot_be_read(tmp_path):
    good, empty = put(tmp_path/'a_train.jsonl', nli()), put(tmp_path/'e_train.jsonl')
    cut = tmp_path/'c_train.jsonl.gz'
    cut.write_bytes(gzip.compress(b'\n'.join(json.dumps(nli(claim=f'It rains {i}.')).encode() for i in range(5000)))[:-4000])
    for paths, why in ((tmp_path, 'a folder'), (tmp_path/'none_train.jsonl', 'no such file'), ([], 'no files'), (put(tmp_path/'x.jsonl', nli()), 'does not tell the split')):
        with pytest.raises(MedAgentError, match=why): read_nli(paths, 'snli')
    with pytest.raises(MedAgentError, match='it is empty'): list(read_nli(empty, 'snli'))
    with pytest.raises(MedAgentError, match='damaged'): list(read_nli(cut, 'snli'))
    report = Report()
    found = list(read_nli([cut, empty, good], 'snli', report=report, go_on=True))
    assert found[-1].id == 'a_train.jsonl:1' and {Path(p).name for p in report.damaged} == {cut.name, empty.name}


def test_examples_are_streamed(tmp_path):
    path = put(tmp_path/'a_train.jsonl', *[nli() for _ in range(100)])
    report = Report()
    next(read_nli(path, 'snli', report=report))
    assert report.records == 1


@pytest.mark.parametrize('name, split', [
    ('multinli_1.0_train.txt', 'train'), ('multinli_1.0_dev_mismatched.jsonl', 'dev'), ('mli_test_v1.jsonl', 'test'), ('scitail_1.0_structure_dev.tsv', 'dev'),
    ('SICK_trial.txt', 'dev'), ('SICK_test_annotated.txt.gz', 'test'), ('claims_train.jsonl', 'train'), ('valid.jsonl', 'dev'), ('test-unlabelled/train.jsonl', 'train'),
    ('contest.jsonl', None), ('latest.jsonl', None), ('train_and_test.jsonl', None), ('mednli_bionlp_shared_task.jsonl', None)])
def test_splits_by_name(name, split):
    if split: assert split_of(name) == split
    else:
        with pytest.raises(MedAgentError, match='does not tell the split'): split_of(name)
        assert split_of(name, 'test') == 'test'


def test_a_test_file_stays_one(tmp_path):
    path = put(tmp_path/'snli_1.0_test.jsonl', nli())
    with pytest.raises(MedAgentError, match='snli_1.0_test.jsonl: its name says test'): read_nli(path, 'snli', split='train')
    with pytest.raises(MedAgentError, match='expected .train'): read_nli(path, 'snli', split='held-out')
    sick = put(tmp_path/'SICK_test_annotated.txt', 'pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment', '1\tA.\tB.\t3\tNEUTRAL')
    report = Report()
    assert list(read_sick(sick, split='train', report=report, go_on=True)) == [] and 'its name says test' in report.damaged[str(sick)]


# --- sets with evidence

def test_scifact_shapes(tmp_path):
    corpus = put(tmp_path/'corpus.jsonl', dict(doc_id=1, abstract=['A b.', 'C d.']), dict(doc_id=2, abstract=[]), dict(doc_id=3, abstract='text'), 'broken')
    def claim(id, evidence, cited=(1,), text='A.'): return dict(id=id, claim=text, evidence=evidence, cited_doc_ids=list(cited))
    def says(*labels, sentences=(0,)): return {'1': [dict(sentences=list(sentences), label=label) for label in labels]}
    path = put(tmp_path/'claims_dev.jsonl', claim(1, says('SUPPORT', 'CONTRADICT')), claim(2, says('SUPPORT', sentences=[2])), claim(3, says('SUPPORT', sentences=['0'])),
               claim(4, {'1': 'SUPPORT'}), claim(5, []), claim(6, {}, ()), claim(7, {}, [2, 3]), claim(8, says('SUPPORTS')), claim(9, {}, text=None),
               dict(id=10, claim='no evidence field'), claim(11, says('SUPPORT', sentences=[1])), claim(12, says('CONTRADICT'), [1, 1]))
    report = Report()
    assert [(e.id, e.label, e.premise) for e in read_scifact(path, corpus, report=report)] == [
        ('claims_dev.jsonl:11:1', 'entailment', 'A b. C d.'), ('claims_dev.jsonl:12:1', 'contradiction', 'A b. C d.')]
    assert report.skipped == {'rationales disagree': 1, 'rationale outside the document': 2, 'evidence of another shape': 2, 'cites no document': 1, 'empty document': 1,
                              'document not in the corpus': 1, "unknown label 'SUPPORTS'": 1, 'no claim': 1, 'no label': 1}
    assert report.noted == {'unreadable document': 2}
    with pytest.raises(MedAgentError, match='abstract'): read_scifact(path, corpus, premise='title')
    with pytest.raises(MedAgentError, match='holds no documents'): list(read_scifact(path, path, go_on=True))


def test_a_neutral_premise_is_as_long_as_the_rationale_before(tmp_path):
    corpus = put(tmp_path/'corpus.jsonl', dict(doc_id=1, abstract=['Mice ran.', 'Rats swam far.', 'Dogs slept.', 'Rats ate.']))
    path = put(tmp_path/'claims_train.jsonl', dict(id=1, claim='Rats ate.', evidence={}, cited_doc_ids=[1]),
               dict(id=2, claim='Mice ran and dogs slept.', evidence={'1': [dict(sentences=[0, 2], label='SUPPORT'), dict(sentences=[0, 2], label='SUPPORT')]}, cited_doc_ids=[1]),
               dict(id=3, claim='Rats ate.', evidence={}, cited_doc_ids=[1]))
    assert [e.premise for e in read_scifact(path, corpus, premise='rationale')] == ['Rats ate.', 'Mice ran. Dogs slept.', 'Rats swam far. Rats ate.']


@pytest.mark.parametrize('marked, clean', [
    ('Drugs work [<|cit|>].', 'Drugs work.'), ('Drugs work (<|cit|>; <|multi_cit|>, 12).', 'Drugs work.'), ('As shown (Table <|multi_cit|>).', 'As shown (Table ).'),
    ('<|cit|> Further work (n = 4) [12] helps.', 'Further work (n = 4) [12] helps.'), ('Nested (a [<|cit|>], b) text.', 'Nested (a, b) text.'), ('p < 0.01 | q', 'p < 0.01 | q')])
def test_citation_marks(marked, clean):
    assert unmarked(marked) == clean


HEAD = 'UserID,PromptID,PMCID,Valid Label,Valid Reasoning,Label,Annotations,Label Code,In Abstract,Evidence Start,Evidence End'


def evidence_inference(tmp_path, *rows: str, prompts=('1,5,pain,drug,placebo', '2,6,fever,drug,placebo'), report=None, **more) -> list[Example]:
    for name, ids in (('train', '5'), ('validation', '6'), ('test', '7')): put(tmp_path/f'{name}_article_ids.txt', ids)
    return list(read_evidence_inference(put(tmp_path/'annotations.csv', HEAD, *rows), put(tmp_path/'prompts.csv', 'PromptID,PMCID,Outcome,Intervention,Comparator', *prompts),
                                        tmp_path, report=report, **more))


def test_evidence_inference_votes_and_spans(tmp_path):
    report = Report()
    found = evidence_inference(tmp_path, '0,1,5,True,True,significantly decreased,"second, span",-1,UNK,90,99', '0,1,5,True,True,significantly decreased,first span,-1,UNK,10,19',
                               '3,1,5,True,False,significantly decreased,not a reason,-1,UNK,1,2', '4,1,5,False,True,significantly increased,not a vote,1,UNK,1,2',
                               '0,2,6,False,True,no significant difference,x,0,UNK,1,2', '0,9,6,True,True,no significant difference,x,0,UNK,1,2', 'short,row', report=report)
    assert [(e.premise, e.claim, e.label, e.split, e.kind) for e in found] == [
        ('first span second, span', 'With drug, pain was significantly lower than with placebo.', 'entailment', 'train', 'lower'),
        ('first span second, span', 'With drug, pain was significantly higher than with placebo.', 'contradiction', 'train', 'higher')]
    assert report.skipped == {'no valid label': 1, 'no such prompt': 1} and report.noted == {'row of another length in annotations.csv': 1}


def test_evidence_inference_labels_and_splits(tmp_path):
    rows = ['0,1,5,True,True,significantly increased,up,1,UNK,1,2', '0,2,6,True,True,no significant difference,same,0,UNK,1,2', '0,3,8,True,True,no significant difference,same,0,UNK,1,2']
    prompts = ('1,5,pain,drug,placebo', '2,6,fever,drug,placebo', '3,8,fever,drug,placebo')
    report = Report()
    assert {e.split for e in evidence_inference(tmp_path, *rows, prompts=prompts, report=report, split='dev')} == {'dev'}
    assert report.skipped == {'another split': 1, 'article in no split': 1}
    with pytest.raises(MedAgentError, match='another split: 2'): evidence_inference(tmp_path, *rows, prompts=prompts, split='test')
    with pytest.raises(MedAgentError, match='unknown label .invalid prompt'): evidence_inference(tmp_path, '0,1,5,True,True,invalid prompt,x,0,UNK,1,2')
    put(tmp_path/'other.csv', 'PromptID,PMCID', '1,5')
    with pytest.raises(MedAgentError, match="lacks the column 'Outcome'"): list(read_evidence_inference(tmp_path/'annotations.csv', tmp_path/'other.csv', tmp_path, go_on=True))
    put(tmp_path/'test_article_ids.txt', '5')
    with pytest.raises(MedAgentError, match='article 5 is also in train'): read_evidence_inference(tmp_path/'annotations.csv', tmp_path/'prompts.csv', tmp_path)


def test_false_statements_balance_the_true_ones(tmp_path):
    rng, labels = random.Random(0), ['no significant difference']*5 + ['significantly increased']*3 + ['significantly decreased']*2
    rows = [f'0,{i},5,True,True,{rng.choice(labels)},span {i},0,UNK,1,2' for i in range(300)]
    found = Counter((e.kind, e.label) for e in evidence_inference(tmp_path, *rows, prompts=[f'{i},5,pain {i},drug,placebo' for i in range(300)]))
    for kind in ('higher', 'lower', 'no difference'):                    # drawn at random, 'no difference' would be true in two of three
        assert 0.44 < found[kind, 'entailment']/(found[kind, 'entailment'] + found[kind, 'contradiction']) < 0.56


def test_wice_shapes(tmp_path):
    def claim(label, sets, page=('Title.', 'It rained in May.', 'Nothing else.'), text='It rained in May.'): return dict(label=label, supporting_sentences=sets, claim=text, evidence=list(page))
    path = put(tmp_path/'train.jsonl', claim('supported', [[], [1, 2]]), claim('not_supported', [[]]), claim('partially_supported', [[2]]), claim('supported', [[]]),
               claim('supported', [[3]]), claim('supported', 'none'), claim('supported', [[0]], page=()), claim('likely', [[0]]), claim('', [[]]), 'x')
    report = Report()
    assert [(e.premise, e.label, e.kind) for e in read_wice(path, report=report)] == [
        ('It rained in May. Nothing else.', 'entailment', 'supported'), ('Title. It rained in May.', 'not_entailment', 'not_supported'), ('Nothing else.', 'not_entailment', 'partially_supported')]
    assert report.skipped == {'no supporting sentences': 1, 'supporting sentence outside the page': 1, 'evidence of another shape': 2, "unknown label 'likely'": 1, 'no label': 1, 'not a JSON record': 1}


def test_nearest_does_not_depend_on_the_order_of_a_set():
    assert nearest('a b c', ['a b', 'c a', 'b c', 'd'], 2) == nearest('c b a', ['a b', 'c a', 'b c', 'd'], 2)
    assert nearest('zinc', [], 2) == [] and nearest('zinc', ['x', 'y'], 5) == ['x', 'y']


def test_own_files(tmp_path):
    fields, labels = dict(premise='a', claim='b.0.c', label='gold', id='n', kind='from'), {0: 'entailment', 2: 'contradiction', '-1': 'neutral'}
    path = put(tmp_path/'own.jsonl', {'a': 'P.', 'b': [{'c': 'C.'}], 'gold': 0, 'n': 'x', 'from': 'notes'}, dict(a='P.', b=[dict(c='C.')], gold=1), dict(a='P.', gold=2))
    report = Report()
    assert list(read_examples(path, fields, labels, 'own', split='train', report=report)) == [Example('P.', 'C.', 'entailment', 'own', 'train', 'own.jsonl:x', 'notes')]
    assert report.skipped == {"unknown label '1'": 1, 'no claim': 1}
    with pytest.raises(MedAgentError, match="'claim' is unknown or missing"): read_examples(path, dict(premise='a', label='gold'), labels, 'own', 'train')
    with pytest.raises(MedAgentError, match="'yes' is no label"): read_examples(path, fields, {1: 'yes'}, 'own', 'train')


# --- pairs and mixes

def example(label='entailment', n=0, source='s', split='train', premise=None, claim=None) -> Example:
    return Example(premise or f'premise {n}', claim or f'claim {n}', label, source, split, f'{source}.jsonl:{n}')


def test_label_maps():
    mine = [example(label, i) for i, label in enumerate((*THREE_CLASSES, 'not_entailment'))]
    assert [p.label for p in as_pairs(mine)] == [1, 0, 0, 0]
    assert [p.label for p in as_pairs(mine, ('entailment', 'not_entailment'))] == [0, 1, 1, 1]
    assert [p.label for p in as_pairs(mine[:3], ('contradiction', 'neutral', 'entailment'))] == [2, 1, 0]
    assert as_pairs(mine[:1]) == [Pair('premise 0', 'claim 0', 1, 's')] and read_pairs(as_pairs(mine), TWO_CLASSES)
    with pytest.raises(MedAgentError, match='s.jsonl:3 is labelled .not_entailment.*leave the whole source out'): as_pairs(mine, THREE_CLASSES)
    for labels in (('yes', 'no'), ('entailment',), ('entailment', 'neutral'), (*THREE_CLASSES, 'not_entailment')):
        with pytest.raises(MedAgentError, match='expected not_entailment, entailment or'): as_pairs(mine, labels)
    assert {label for names in LABELS.values() for label in names.values()} == {*THREE_CLASSES, 'not_entailment'}


@pytest.mark.parametrize('split', ['test', 'Test', '', 'unknown'])
def test_only_known_training_splits_are_trained_on(split):
    mine = [example(), example('neutral', 1), example(n=2, split=split)]
    for make in (as_pairs, mix):
        with pytest.raises(MedAgentError, match='s.jsonl:2 belongs to the split'): make(mine)
    assert len(as_pairs(mine, for_training=False)) == 3


def many(source: str, **counts: int) -> list[Example]: return [example(label, f'{source} {label} {i}', source) for label, n in counts.items() for i in range(n)]


def test_a_mix_is_balanced_and_reproducible():
    pool = many('a', entailment=50, neutral=10, contradiction=10) + many('b', entailment=5, not_entailment=100)
    one = mix(pool, per_source=30)
    assert Counter((e.source, e.label == 'entailment') for e in one.examples) == {('a', True): 15, ('a', False): 15, ('b', True): 5, ('b', False): 5}
    shuffled = pool[:]
    random.Random(3).shuffle(shuffled)
    assert mix(shuffled, per_source=30).examples == one.examples != mix(pool, per_source=30, seed=43).examples
    alone = mix(many('a', entailment=50, neutral=10, contradiction=10), per_source=30).examples
    assert sorted(alone) == sorted(e for e in one.examples if e.source == 'a')
    assert one.counts.read.sum() == len(pool) and one.counts.drop(columns='read').sum(axis=1).equals(one.counts.read)
    assert one.counts.loc[('b', 'train', 'not_entailment')].to_dict() == dict(read=100, duplicate=0, conflicting=0, leaked=0, left=95, drawn=5)


def test_quotas():
    pool = many('a', entailment=50, neutral=50) + many('b', entailment=10, contradiction=10)
    def drawn(**more): return dict(Counter(e.source for e in mix(pool, **more).examples))
    assert drawn() == {'a': 100, 'b': 20} and drawn(per_source=dict(a=7, b=99)) == {'a': 6, 'b': 20}
    assert drawn(weights=dict(a=2, b=1)) == {'a': 40, 'b': 20} and drawn(weights=dict(a=1, b=4)) == {'a': 4, 'b': 20}
    for more, why in ((dict(per_source=dict(a=4)), 'b: named or read'), (dict(weights=dict(a=1, b=1, c=1)), 'c: named or read'), (dict(per_source=0), 'above 0'),
                      (dict(per_source=2, weights=dict(a=1, b=1)), 'exclude each other'), (dict(per_source=1), 'expected at least 2'), (dict(weights=dict(a=1, b=float('nan'))), 'above 0')):
        with pytest.raises(MedAgentError, match=why): mix(pool, **more)
    with pytest.raises(MedAgentError, match='no examples came'): mix([])


def test_a_source_without_a_class_cannot_be_balanced():
    pool = many('scitail', entailment=4, neutral=6)
    assert len(mix(pool).examples) == 8 and len(mix(pool, labels=THREE_CLASSES, balance=False).examples) == 10
    with pytest.raises(MedAgentError, match='scitail: no example of contradiction'): mix(pool, labels=THREE_CLASSES)
    with pytest.raises(MedAgentError, match='leave the whole source out'): mix(many('wice', entailment=1, not_entailment=1), labels=THREE_CLASSES)


def test_repeats_conflicts_and_leaks_are_dropped_and_counted():
    pool = [example(n=1), example(n=1), example('neutral', 2), example('contradiction', 2), example(n=3), example('neutral', 3), example('neutral', 4, claim='Zinc helps.'),
            example(n=5), example('neutral', 6)]
    held_out = [example(n=9, split='dev', claim='ZINC  helps'), example(n=9, split='test', claim='claim 5!')]
    found = mix(pool, held_out=held_out, balance=False)
    assert sorted(e.id for e in found.examples) == ['s.jsonl:1', 's.jsonl:2', 's.jsonl:6']
    assert found.counts[['duplicate', 'conflicting', 'leaked', 'drawn']].sum().to_dict() == dict(duplicate=2, conflicting=2, leaked=2, drawn=3)
    three = mix(pool, held_out=held_out, balance=False, labels=THREE_CLASSES)
    assert three.counts.conflicting.sum() == 4 and sorted(e.id for e in three.examples) == ['s.jsonl:1', 's.jsonl:6']
    assert plain('  β1/Ketel (5 µg) ') == plain('Β1 ketel 5 μg')


# --- the real files

@needs_shared
@pytest.mark.parametrize('name, split', [('SICK_trial.txt', 'dev'), ('SICK_test_annotated.txt.gz', 'test')])
def test_real_sick(name, split):
    rows = list(csv.DictReader(text(NLI/name).splitlines(), delimiter='\t', quoting=csv.QUOTE_NONE))
    report = Report()
    found = list(read_sick(NLI/name, report=report))
    assert [(e.premise, e.claim, e.label.upper(), e.split, e.id) for e in found] == [
        (squeezed(r['sentence_A']), squeezed(r['sentence_B']), r['entailment_judgment'], split, f"{name}:{r['pair_ID']}") for r in rows]
    assert report.kept == report.records == len(rows) == {'dev': 500, 'test': 4927}[split]
    assert Counter(e.label for e in found) == {'dev': dict(neutral=282, entailment=144, contradiction=74), 'test': dict(neutral=2793, entailment=1414, contradiction=720)}[split]


def scifact(split: str, **more) -> list[Example]: return list(read_scifact(NLI/'scifact'/f'claims_{split}.jsonl', NLI/'scifact'/'corpus.jsonl.gz', **more))


@needs_shared
@pytest.mark.parametrize('split, counts', [('train', dict(entailment=370, contradiction=194, neutral=355)), ('dev', dict(entailment=138, contradiction=71, neutral=130))])
def test_real_scifact(split, counts):
    abstracts = {str(d['doc_id']): squeezed(' '.join(d['abstract'])) for d in json_lines(NLI/'scifact'/'corpus.jsonl.gz')}
    ours = dict(SUPPORT='entailment', CONTRADICT='contradiction')
    expected = Counter()
    for c in json_lines(NLI/'scifact'/f'claims_{split}.jsonl'):
        for doc in {str(d) for d in c['cited_doc_ids']} | c['evidence'].keys():
            label = ours[c['evidence'][doc][0]['label']] if doc in c['evidence'] else 'neutral'
            expected[f"claims_{split}.jsonl:{c['id']}:{doc}", squeezed(c['claim']), abstracts[doc], label] += 1
    report = Report()
    found = scifact(split, report=report)
    assert Counter((e.id, e.claim, e.premise, e.label) for e in found) == expected and Counter(e.label for e in found) == counts
    assert report.records == report.kept == len(found) and not report.noted


@needs_shared
def test_real_scifact_rationales():
    corpus = {str(d['doc_id']): d['abstract'] for d in json_lines(NLI/'scifact'/'corpus.jsonl.gz')}
    expected = Counter((squeezed(c['claim']), squeezed(' '.join(corpus[doc][i] for i in r['sentences'])))
                       for c in json_lines(NLI/'scifact'/'claims_train.jsonl') for doc, rationales in c['evidence'].items() for r in rationales)
    found = scifact('train', premise='rationale')
    assert Counter((e.claim, e.premise) for e in found if e.label != 'neutral') == expected and expected.total() == 957
    assert Counter(e.label for e in found) == dict(entailment=616, contradiction=341, neutral=355)
    assert next(e.premise for e in found if e.claim == '1 in 5 million in UK have abnormal PrP positivity.').startswith('RESULTS Of the 32,441 appendix samples 16 were positive')
    words = {label: sum(len(e.premise.split()) for e in found if e.label == label)/sum(e.label == label for e in found) for label in THREE_CLASSES}
    assert max(words.values()) < 1.25*min(words.values())               # the length of a premise does not tell


@needs_shared
def test_real_scifact_test_has_no_labels():
    with pytest.raises(MedAgentError, match='claims_test.jsonl: none of its 300 records can be used .no label: 300'): scifact('test')
    with pytest.raises(MedAgentError, match='its name says test'): read_scifact(NLI/'scifact'/'claims_test.jsonl', NLI/'scifact'/'corpus.jsonl.gz', split='train')


@needs_shared
def test_real_citint():
    claims = json_lines(NLI/'citint'/'claims_dev.jsonl.gz')
    report = Report()
    found = list(read_citint(NLI/'citint'/'claims_dev.jsonl.gz', NLI/'citint'/'corpus.jsonl.gz', report=report))
    ours = dict(SUPPORT='entailment', REFUTE='not_entailment')
    assert [e.label for e in found] == [ours[next(iter(c['evidence'].values()))[0]['label']] if c['evidence'] else 'neutral' for c in claims]
    assert Counter(e.label for e in found) == dict(entailment=191, not_entailment=101, neutral=24) and report.kept == report.records == 316
    assert sum('<|' in c['claim'] for c in claims) > 300 and not any('<|' in e.claim for e in found)
    assert found[0].claim == 'It has been proposed that COVID-19 leads to deterioration of hepatic function, leading to AD and ACLF in cirrhotic patients.'
    assert found[0].id == 'claims_dev.jsonl.gz:0:31000' and {e.split for e in found} == {'dev'}
    corpus = {d['doc_id']: d['abstract'] for d in json_lines(NLI/'citint'/'corpus.jsonl.gz')}
    assert [e.premise for e in found] == [squeezed(' '.join(corpus[c['cited_doc_ids'][0]])) for c in claims]


@needs_shared
def test_real_evidence_inference():
    folder = NLI/'evidence_inference'
    def table(name): return list(csv.DictReader(gzip.open(folder/name, 'rt', encoding='utf-8', newline='')))
    articles = {id: split for split, name in (('train', 'train'), ('dev', 'validation'), ('test', 'test')) for id in (folder/f'{name}_article_ids.txt').read_text().split()}
    prompts, by_prompt = {p['PromptID']: p for p in table('prompts_merged.csv.gz')}, {}
    for a in table('v2_annotations.csv.gz'): by_prompt.setdefault(a['PromptID'], []).append(a)
    def valid(rows): return [a for a in rows if a['Valid Label'] == 'True']
    disagree = [p for p, rows in by_prompt.items() if len({a['Label Code'] for a in valid(rows)}) > 1]
    no_label = [p for p, rows in by_prompt.items() if not valid(rows)]
    no_reason = [p for p, rows in by_prompt.items() if p not in disagree and valid(rows) and not any(a['Valid Reasoning'] == 'True' for a in valid(rows))]
    report = Report()
    found = list(read_evidence_inference(folder/'v2_annotations.csv.gz', folder/'prompts_merged.csv.gz', folder, report=report))
    assert report.skipped == {'annotators disagree': len(disagree), 'no valid label': len(no_label), 'no valid evidence': len(no_reason)} == {
        'annotators disagree': 18, 'no valid label': 39, 'no valid evidence': 6}
    assert report.records == len(by_prompt) == 2444 and report.kept == 2381 and not report.noted
    assert Counter((e.split, e.label) for e in found) == {('train', 'entailment'): 2800, ('train', 'contradiction'): 2800, ('dev', 'entailment'): 342,
                                                          ('dev', 'contradiction'): 342, ('test', 'entailment'): 363, ('test', 'contradiction'): 363}
    kinds = Counter((e.kind, e.label) for e in found)
    assert all(0.45 < kinds[k, 'entailment']/(kinds[k, 'entailment'] + kinds[k, 'contradiction']) < 0.55 for k in ('higher', 'lower', 'no difference'))
    code = {'higher': '1', 'lower': '-1', 'no difference': '0'}
    for e in found:
        id = e.id.partition(':')[2]
        (reported,) = {a['Label Code'] for a in valid(by_prompt[id])}
        assert (code[e.kind] == reported) == (e.label == 'entailment') and articles[prompts[id]['PMCID']] == e.split
        spans = [squeezed(a['Annotations']) for a in valid(by_prompt[id]) if a['Valid Reasoning'] == 'True']
        assert any(e.premise.startswith(s) for s in spans) and any(e.premise.endswith(s) for s in spans)
        assert all(squeezed(prompts[id][k]).rstrip('. ') in e.claim for k in ('Outcome', 'Intervention', 'Comparator'))
    train = read_evidence_inference(folder/'v2_annotations.csv.gz', folder/'prompts_merged.csv.gz', folder, split='train')
    assert len(as_pairs(train, THREE_CLASSES)) == 5600


@needs_shared
def test_real_wice():
    path = NLI/'wice_claim_dev.jsonl.gz'
    rows = json_lines(path)
    report = Report()
    found = list(read_wice(path, report=report))
    assert [(e.claim, e.kind, e.id) for e in found] == [(squeezed(r['claim']), r['label'], f"{path.name}:{r['meta']['id']}") for r in rows]
    assert Counter(e.label for e in found) == dict(entailment=115, not_entailment=234) and Counter(e.kind for e in found) == dict(supported=115, partially_supported=191, not_supported=43)
    for e, r in zip(found, rows):
        chosen = [s for s in r['supporting_sentences'] if s]
        if chosen: assert e.premise == squeezed(' '.join(r['evidence'][i] for i in chosen[0]))
        else: assert e.label == 'not_entailment' and e.premise and e.premise.split()[0] in squeezed(' '.join(r['evidence']))
    assert report.kept == report.records == 349 and {e.split for e in found} == {'dev'}


@needs_shared
def test_real_mix_leaves_out_what_is_held_out():
    train, dev = scifact('train'), scifact('dev')
    claims = {plain(c['claim']) for c in json_lines(NLI/'scifact'/'claims_dev.jsonl')}
    found = mix(train, held_out=dev)
    leaked = [e for e in train if plain(e.claim) in claims]
    assert len({e.claim for e in leaked}) >= 2 and found.counts.leaked.sum() == len(leaked)
    assert not any(plain(e.claim) in claims for e in found.examples)
    assert Counter(p.label for p in as_pairs(found.examples)).most_common()[0][1]*2 == len(found.examples) > 700
    three = mix(train, held_out=dev, labels=THREE_CLASSES).examples
    assert len({*Counter(e.label for e in three).values()}) == 1 and len(three) > 570
