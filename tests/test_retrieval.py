"What the retrieval rooms promise beyond the lessons of their notebooks."
import gzip
import json
import string
import tempfile
import time
from dataclasses import replace
from fractions import Fraction
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medagent.retrieval.bm25 import BM25Index, update_bm25
from medagent.retrieval.dense import DenseIndex, LSAEncoder
from medagent.retrieval.graph import GraphIndex, Triple
from medagent.retrieval.hybrid import HybridIndex, rrf
from medagent.retrieval.passages import STOP, Corpus, Hit, Passage, analyze, content_words, words
from medagent.retrieval.tools import Toolbox, removed, replaced
from medagent.settings import MedAgentError
from medagent.trajectory import Call

SHARED = Path(__file__).parents[2]/'shared'/'data'/'retrieval'
DRUGS = ['amiodarone', 'lithium', 'metformin', 'warfarin', 'clozapine', 'digoxin', 'enoxaparin', 'phenytoin', 'lisinopril', 'tocilizumab']
ASKED = {'monitoring': ['thyroid function', 'INR', 'liver enzymes', 'absolute neutrophil count'], 'interaction': ['warfarin', 'NSAIDs', 'potassium supplements'],
         'adverse effect': ['pulmonary fibrosis', 'dry cough', 'agranulocytosis'], 'renal dosing': ['advised below 30 mL/min', 'not required']}


def facts() -> list[Triple]:
    "A small graph: every drug with one value of each attribute."
    return [Triple(d, a, vs[i % len(vs)], f'kg:{d}:{a}', f'{d.capitalize()}: {a}, {vs[i % len(vs)]}.') for i, d in enumerate(DRUGS) for a, vs in ASKED.items()]


def passages() -> list[Passage]:
    "The same facts in sentences, some of them twice word for word."
    forms = ['In adults taking {s}, the {a} is {o}.', 'Guidance for {s}: {a}, {o}.', 'For {s} the {a} was {o} in 0.5 mg and 1 mg groups.']
    made = [Passage(f'g:{t.passage_id}:{i}', f.format(s=t.subject, a=t.relation, o=t.object), 'guideline') for t in facts() for i, f in enumerate(forms)]
    return made + [replace(p, id=p.id + ':copy') for p in made[::7]]


@pytest.fixture(scope='module')
def encoder() -> LSAEncoder: return LSAEncoder.fit([p.text for p in passages()], dim=24)


@pytest.fixture(scope='module')
def engines(encoder) -> dict:
    lexical, dense = BM25Index(passages()), DenseIndex(passages(), encoder)
    return {'bm25': lexical, 'dense': dense, 'hybrid': HybridIndex([lexical, dense]), 'graph': GraphIndex(facts())}


QUERIES = [f'{a} of {d}' for d in DRUGS for a in ASKED] + ['', 'zolpidem', 'the of', 'warfarin', '0.5 mg', 'thyroid function in adults']

# ---------------------------------------------------------------- analyzer

anything = st.text(st.characters(), max_size=80)      # surrogates and unassigned code points included
medical = st.text(string.ascii_letters + string.digits + " -+*.,/%'()αβγμµ–°éö≥", max_size=60)


@given(anything | medical)
def test_analyzer_is_total_and_its_words_are_clean(text):
    found = analyze(text)
    assert set(words(text)) <= set(found)
    for w in found:
        assert w and not any(c.isspace() or c == '_' for c in w)
        assert w == w.lower()
        assert any(c.isalnum() for c in w)


@given(st.text(string.ascii_letters + string.digits + " -+*.,/%'()", max_size=60))
def test_analyzer_ignores_case(text): assert analyze(text.upper()) == analyze(text.lower())


@given(medical, medical)
def test_a_space_separates(a, b): assert analyze(f'{a} {b}') == analyze(a) + analyze(b)


@given(st.integers(0, 10**9), st.integers(0, 999))
def test_decimals_survive_and_thousands_close(whole, part):
    assert analyze(f'{whole}.{part} mg') == [f'{whole}.{part}', 'mg']
    assert analyze(f'dose {whole:,} IU') == ['dose', str(whole), 'iu']
    assert analyze(f'{whole}mg/day') == [str(whole), 'mg', 'day']


@pytest.mark.parametrize('text, expected', [
    ('IL‐6', 'il-6 il 6 il6'), ('IL\u20116', 'il-6 il 6 il6'),                  # both Unicode hyphens
    ('hydro\u00adxychloroquine', 'hydroxychloroquine'),                         # soft hyphen of a PDF
    ('０．５ mg', '0.5 mg'), ('5-HT₃', '5-ht3 5 ht3 5ht3'), ('kg/m²', 'kg m2'),
    ('toxicity—check', 'toxicity check'), ('drug, 2ug', 'drug 2 mcg'), ('Ménière', 'meniere'),
    ('anti-PD-1', 'anti-pd-1 anti pd 1 antipd1'), ('10-20-30', '10-20-30 10 20 30'),
    ('snake_case', 'snake case'), ('-6', '6'), ('a*', 'a'), ('1.5.', '1.5'), ('HER2+/ER-', 'her2+ her2 er'),
])
def test_analyzer_on_awkward_spellings(text, expected): assert ' '.join(analyze(text)) == expected


@pytest.mark.parametrize('unit', ['a-', '1,000,', 'a.', '1.', '9', 'a+', 'a*', "a's", '-', 'μ', 'x*1:'])
def test_analyzer_takes_linear_time(unit):
    start = time.process_time()
    analyze(unit * 100_000)
    assert time.process_time() - start < 10      # a quadratic pattern would take minutes


def test_stop_words_spare_medical_homographs():
    assert not STOP & {'a', 'all', 'it', 'who', 'no', 'not', 'us', 'b', 'c'}
    assert content_words('Which is the vitamin B12 level?') == ['vitamin', 'b12', 'level']

# ---------------------------------------------------------------- corpus


@given(st.lists(st.builds(Passage, id=st.text('abcdé', min_size=1), text=st.text('xyz µ"\n', min_size=1).map(lambda t: t + '.'), source=st.sampled_from(['guideline', 'pubmed']),
                          title=st.text('T ', max_size=3), meta=st.dictionaries(st.text('k', max_size=2), st.integers() | st.text('v', max_size=2))), max_size=8, unique_by=lambda p: p.id), st.randoms())
@settings(deadline=None)
def test_corpus_does_not_depend_on_order_and_survives_a_file(tmp_path_factory, some, random):
    corpus, shuffled = Corpus(some), list(some)
    random.shuffle(shuffled)
    assert Corpus(shuffled).hash == corpus.hash
    assert Corpus(shuffled).passages == corpus.passages
    again = Corpus.from_parquet(corpus.to_parquet(tmp_path_factory.mktemp('corpus')/'c.parquet'))
    assert again.passages == corpus.passages and again.hash == corpus.hash


def test_corpus_hash_is_that_of_sorted_json_lines():
    import hashlib
    lines = '["a", "x", "pubmed", "", {"year": 2019}]\n["b", "y", "graph", "T", {}]\n'
    corpus = Corpus([Passage('b', 'y', 'graph', 'T'), Passage('a', 'x', 'pubmed', meta={'year': 2019})])
    assert corpus.hash == hashlib.sha256(lines.encode()).hexdigest()[:16]


def test_a_parquet_file_that_is_no_corpus_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    pq.write_table(pa.table({'id': ['a'], 'text': ['x']}), tmp_path/'other.parquet')
    with pytest.raises(MedAgentError, match='expected the columns'): Corpus.from_parquet(tmp_path/'other.parquet')
    with pytest.raises(MedAgentError, match='missing.parquet'): Corpus.from_parquet(tmp_path/'missing.parquet')

# ---------------------------------------------------------------- engines


@pytest.mark.parametrize('name', ['bm25', 'dense', 'hybrid', 'graph'])
def test_alone_equals_batch(engines, name):
    together = engines[name].search(QUERIES, 5)
    assert [engines[name].search([q], 5)[0] for q in QUERIES] == together
    assert engines[name].search(QUERIES[::-1], 5) == together[::-1]
    assert any(together) and not all(together)


@pytest.mark.parametrize('name', ['bm25', 'dense', 'hybrid', 'graph'])
def test_fewer_hits_are_a_prefix_of_more(engines, name):
    for few, many in zip(engines[name].search(QUERIES, 3), engines[name].search(QUERIES, 40), strict=True): assert few == many[:3]


@given(query=anything | medical | st.sampled_from(['lithium AND (', 'words:*', '"a', "'; drop table edge; --", '[a TO z]', 'lithium^9', '\x00lithium', '\ud800 lithium', '%', '*:*', 'NOT lithium', '/li.*/']))
@settings(deadline=None)
@pytest.mark.parametrize('name', ['bm25', 'dense', 'hybrid', 'graph'])
def test_no_query_breaks_an_engine(engines, name, query):
    hits, = engines[name].search([query], 5)
    assert len(hits) <= 5 and len({h.passage.id for h in hits}) == len(hits)
    assert all(h.score > 0 for h in hits)
    if name in ('bm25', 'dense'): assert [(-h.score, h.passage.id) for h in hits] == sorted((-h.score, h.passage.id) for h in hits)
    if not content_words(query): assert not hits


@pytest.mark.parametrize('name', ['bm25', 'dense', 'hybrid', 'graph'])
def test_search_checks_its_arguments(engines, name):
    with pytest.raises(MedAgentError, match='list of queries'): engines[name].search('lithium', 5)
    with pytest.raises(MedAgentError, match='at least 1'): engines[name].search(['lithium'], 0)
    assert engines[name].search([], 5) == []


def test_building_order_does_not_matter(encoder):
    there, back = passages(), passages()[::-1]
    for build in (BM25Index, lambda ps: DenseIndex(ps, encoder)): assert build(there).search(QUERIES, 5) == build(back).search(QUERIES, 5)
    assert GraphIndex(facts()).search(QUERIES, 5) == GraphIndex(facts()[::-1]).search(QUERIES, 5)


def test_empty_and_single_passage_corpora(encoder):
    one = [Passage('p', 'Lithium needs monitoring.', 'guideline')]
    for build in (BM25Index, lambda ps: DenseIndex(ps, encoder)):
        assert build([]).search(['lithium'], 5) == [[]]
        assert [h.passage.id for h in build(one).search(['lithium'], 5)[0]] == ['p']
    assert GraphIndex([]).search(['lithium'], 5) == [[]]
    assert LSAEncoder.fit(['Lithium needs monitoring.']).dim == 1
    twice = [Passage('p', 'a b', 'x')] * 2
    for build in (BM25Index, lambda ps: DenseIndex(ps, encoder)):
        with pytest.raises(MedAgentError, match="'p' occurs twice"): build(twice)


def okapi(docs: list[list[str]], query: set[str], k1: float = 1.2, b: float = .75) -> np.ndarray:
    "The BM25 formula, written down once more."
    mean = sum(map(len, docs)) / len(docs)
    scores = np.zeros(len(docs))
    for w in query:
        counts = [d.count(w) for d in docs]
        n = sum(c > 0 for c in counts)
        for i, (c, d) in enumerate(zip(counts, docs, strict=True)): scores[i] += log(1 + (len(docs) - n + .5)/(n + .5)) * c * (k1 + 1)/(c + k1*(1 - b + b*len(d)/mean))
    return scores


def check_against_formula(texts: list[str], queries: list[str], k: int = 10) -> None:
    "Overlap of the ten best, and the score of the best within the error of a one-byte length."
    index, docs = BM25Index([Passage(f'{i:05}', t, 'x') for i, t in enumerate(texts)]), [analyze(t) for t in texts]
    overlap = []
    for q, hits in zip(queries, index.search(queries, k), strict=True):
        exact = okapi(docs, set(content_words(q)))
        best = {int(i) for i in sorted(range(len(docs)), key=lambda i: (-exact[i], i))[:k] if exact[i] > 0}
        overlap.append(len(best & {int(h.passage.id) for h in hits}) / len(best))
        for h in hits: assert h.score == pytest.approx(exact[int(h.passage.id)], rel=.06)
    assert np.mean(overlap) > .9


def test_bm25_agrees_with_the_formula():
    rng = np.random.default_rng(0)
    vocabulary = [f'w{i}' for i in range(300)]
    weight = 1/np.arange(3, 303)
    draw = lambda n: ' '.join(rng.choice(vocabulary, n, p=weight/weight.sum()))
    check_against_formula([draw(rng.integers(5, 200)) for _ in range(400)], [draw(6) for _ in range(30)])


@pytest.mark.skipif(not SHARED.is_dir(), reason='the shared data are not here')
def test_bm25_agrees_with_the_formula_on_real_articles():
    with gzip.open(SHARED/'pmc_oa_passages.jsonl.gz', 'rt') as f: texts = [json.loads(line)['text'] for line, _ in zip(f, range(600))]
    check_against_formula(texts, [' '.join(t.split()[5:13]) for t in texts[::30]])


def test_bm25_ties_when_the_engine_keeps_another_order(monkeypatch):
    from medagent.retrieval import bm25
    write = bm25._write
    def backwards(index, gone, ps):
        ps = list(ps)[::-1]
        for at in range(0, len(ps), 20): write(index, gone, ps[at:at + 20])      # several segments
    ties = [Passage(f'{i:03}', 'Lithium and thyroid function.', 'x') for i in range(90)] + [Passage('best', 'Lithium, lithium.', 'x')]
    straight = BM25Index(ties)
    monkeypatch.setattr(bm25, '_write', backwards)
    for k in (1, 2, 5, 50): assert [h.passage.id for h in BM25Index(ties).search(['lithium'], k)[0]] == (['best'] + [f'{i:03}' for i in range(90)])[:k]
    assert straight.search(['lithium'], 5) == BM25Index(ties).search(['lithium'], 5)


def oracle(ps: list[Passage], queries: list[str], k: int) -> list[list[tuple[str, float]]]:
    "bm25s on the words of our analyzer: exact scores, no rounding of lengths."
    bm25s = pytest.importorskip('bm25s')
    ps = sorted(ps, key=lambda p: p.id)
    exact = bm25s.BM25(method='lucene', k1=1.2, b=.75)
    exact.index([analyze(p.searchable) for p in ps], show_progress=False)
    found = []
    for q in queries:
        scores = exact.get_scores([w for w in dict.fromkeys(content_words(q)) if w in exact.vocab_dict]) if any(w in exact.vocab_dict for w in content_words(q)) else np.zeros(len(ps))
        found.append([(ps[i].id, float(scores[i])*2.2) for i in np.argsort(-scores, kind='stable')[:k] if scores[i] > 0])     # lucene's form leaves out the constant factor k1 + 1
    return found


def test_bm25_agrees_with_an_exact_engine():
    "Ranks as those of bm25s, except where the engine's one-byte lengths change a score by a few percent."
    texts = passages()
    if SHARED.exists():
        with gzip.open(SHARED/'pmc_oa_passages.jsonl.gz', 'rt') as f: texts = [Passage(r['id'], r['text'], 'pubmed', r['section']) for r in (json.loads(line) for line, _ in zip(f, range(3000)))]
    queries = [' '.join(p.text.split()[3:12]) for p in texts[::len(texts)//60]] + QUERIES
    ours, exact = BM25Index(texts).search(queries, 5), oracle(texts, queries, 20)
    shared = []
    for q, hits, truth in zip(queries, ours, exact, strict=True):
        assert len(hits) == min(5, len(truth)), q
        scores = dict(truth)
        for h in hits: assert h.passage.id in scores and abs(h.score/scores[h.passage.id] - 1) < .08, (q, h, scores.get(h.passage.id))
        if truth: shared.append(len({h.passage.id for h in hits} & {i for i, _ in truth[:5]})/len(hits))
    assert np.mean(shared) > .9, np.mean(shared)


words_of = st.lists(st.sampled_from('lithium warfarin inr thyroid 0.5 mg il-6 renal dose cyp2c19*2 of'.split()), min_size=1, max_size=8).map(' '.join)
some_corpus = st.dictionaries(st.sampled_from([f'p{i}' for i in range(12)]), words_of, min_size=1)


@settings(max_examples=25, deadline=None)
@given(some_corpus, some_corpus, some_corpus)
def test_an_updated_word_index_finds_what_a_fresh_one_finds(first, second, third):
    corpora = [Corpus(Passage(i, t, 'x') for i, t in c.items()) for c in (first, second, third)]
    with tempfile.TemporaryDirectory() as folder:
        BM25Index(corpora[0], folder)
        for before, now in zip(corpora, corpora[1:]):
            changes = update_bm25(folder, now)
            same = len({(p.id, p.text) for p in before} & {(p.id, p.text) for p in now})
            assert changes == dict(added=len(now) - same, removed=len(before) - same, kept=same)
            fresh, updated = BM25Index(now), BM25Index(now, folder)
            for q in ('lithium', 'warfarin inr', 'il6', '0.5', 'nothing'):
                assert {(h.passage.id, h.passage.text) for h in updated.search([q], 20)[0]} == {(h.passage.id, h.passage.text) for h in fresh.search([q], 20)[0]}
        with pytest.raises(MedAgentError, match='bring it up to date'): BM25Index(Corpus([Passage('q', 'lithium', 'x')]), folder)


def test_additions_score_as_in_a_fresh_index(tmp_path):
    ps = passages()
    BM25Index(ps[::2], tmp_path)
    update_bm25(tmp_path, ps)
    assert BM25Index(ps, tmp_path).search(QUERIES, 7) == BM25Index(ps).search(QUERIES, 7)


def test_an_interrupted_update_is_built_again(tmp_path, monkeypatch):
    from medagent.retrieval import bm25
    ps = passages()
    BM25Index(ps[::2], tmp_path)
    def cut(*_): raise KeyboardInterrupt
    monkeypatch.setattr(bm25, '_keep', cut)
    with pytest.raises(KeyboardInterrupt): update_bm25(tmp_path, ps)
    monkeypatch.undo()
    with pytest.raises(MedAgentError, match='cannot be opened'): update_bm25(tmp_path, ps)
    assert BM25Index(ps, tmp_path).search(QUERIES, 5) == BM25Index(ps).search(QUERIES, 5)


def test_bm25_folder(tmp_path):
    corpus = Corpus(passages())
    built = BM25Index(corpus, tmp_path/'index').search(QUERIES, 5)
    assert built == BM25Index(corpus).search(QUERIES, 5)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path/'index'/'tantivy').iterdir()}
    assert BM25Index(corpus, tmp_path/'index').search(QUERIES, 5) == built
    assert {p: p.stat().st_mtime_ns for p in (tmp_path/'index'/'tantivy').iterdir()} == before      # opened, not built again
    (tmp_path/'index'/'corpus_hash.txt').unlink()                                                  # as an interrupted build leaves it
    assert BM25Index(corpus, tmp_path/'index').search(QUERIES, 5) == built
    for p in (tmp_path/'index'/'tantivy').iterdir(): p.write_bytes(b'')
    with pytest.raises(MedAgentError, match='cannot be opened'): BM25Index(corpus, tmp_path/'index')
    (tmp_path/'file').write_text('')
    with pytest.raises(MedAgentError, match='cannot make an index folder'): BM25Index(corpus, tmp_path/'file')


def test_dense_is_exact_cosine(encoder):
    ps = sorted(passages(), key=lambda p: p.id)
    exact = encoder.encode(QUERIES).astype(float) @ encoder.encode([p.text for p in ps]).astype(float).T
    for row, hits in zip(exact, DenseIndex(ps, encoder, batch=7).search(QUERIES, 5), strict=True):
        best = sorted(((-round(s, 9), p.id) for s, p in zip(row, ps, strict=True) if round(s, 9) > 0))[:5]
        assert [h.passage.id for h in hits] == [i for _, i in best]
        assert [h.score for h in hits] == pytest.approx([-s for s, _ in best], abs=1e-6)


def test_encoder_is_seeded_and_unit_length(encoder):
    texts = [p.text for p in passages()]
    assert np.array_equal(LSAEncoder.fit(texts, dim=24).encode(texts), encoder.encode(texts))
    lengths = np.linalg.norm(encoder.encode(texts + ['zolpidem', '']), axis=1)
    assert lengths == pytest.approx([1.0]*len(texts) + [0, 0], abs=1e-5)
    assert encoder.encode([]).shape == (0, 24)


class Evil:
    "Leaves a file behind when it is unpickled."
    def __init__(self, path): self.path = path
    def __reduce__(self): return Path.touch, (self.path,)


def test_encoder_files_without_pickle(encoder, tmp_path):
    np.savez(tmp_path/'evil.npz', vocabulary=np.array([Evil(tmp_path/'ran')], dtype=object), idf=np.ones(1), directions=np.ones((1, 1)))
    with pytest.raises(MedAgentError, match='cannot be read as an encoder'): LSAEncoder.load(tmp_path/'evil.npz')
    assert not (tmp_path/'ran').exists()
    np.savez(tmp_path/'cut.npz', vocabulary=np.frombuffer(b'["a","b"]', np.uint8), idf=np.ones(1), directions=np.ones((1, 1)))
    with pytest.raises(MedAgentError, match='do not belong together'): LSAEncoder.load(tmp_path/'cut.npz')
    with pytest.raises(MedAgentError, match='none.npz'): LSAEncoder.load(tmp_path/'none.npz')
    again = LSAEncoder.load(encoder.save(tmp_path/'ok.npz'))
    assert np.array_equal(again.encode(QUERIES), encoder.encode(QUERIES)) and again.dim == encoder.dim

# ---------------------------------------------------------------- fusion

rankings = st.lists(st.lists(st.sampled_from('abcdefgh'), max_size=10), max_size=4)


@given(rankings, st.integers(0, 100))
def test_rrf_is_the_exact_sum(lists, k):
    once = [list(dict.fromkeys(ids)) for ids in lists]
    exact = {i: sum(Fraction(1, k + ids.index(i) + 1) for ids in once if i in ids) for ids in once for i in ids}
    fused = rrf(lists, k)
    assert {i: float(s) for i, s in exact.items()} == dict(fused)
    order = [i for i, _ in fused]
    tie = {i: (min(ids.index(i) for ids in once if i in ids), once[0].index(i) if i in once[0] else 99, i) for i in order}
    assert order == sorted(order, key=lambda i: (-exact[i], tie[i]))


@given(rankings)
def test_rrf_ignores_repeats_and_empty_lists(lists):
    assert rrf([ids + ids for ids in lists]) == rrf(lists)
    assert rrf(lists + [[]]) == rrf(lists)


def test_rrf_by_the_paper_counts_from_one(): assert rrf([['p'], ['p']]) == [('p', pytest.approx(2/61))]



def test_hybrid_floors_are_per_engine(engines):
    pair = [engines['bm25'], engines['dense']]
    assert not any(HybridIndex(pair, floors=[1e9, 2]).search(QUERIES, 5))
    only_dense = [[h.passage.id for h in hits] for hits in HybridIndex(pair, floors=[1e9, -1]).search(QUERIES, 5)]
    assert only_dense == [[h.passage.id for h in hits] for hits in engines['dense'].search(QUERIES, 5)]

# ---------------------------------------------------------------- graph


def test_graph_finds_the_edge_that_was_asked(engines):
    for t in facts(): assert engines['graph'].search([f'what is the {t.relation} for {t.subject}?'], 1)[0][0].passage.id == t.passage_id


def test_graph_prefers_the_longest_name_and_reads_both_ways():
    g = GraphIndex([Triple('heart failure', 'treatment', 'ramipril', '1', 'one'), Triple('heart', 'part of', 'thorax', '2', 'two'), Triple('IL-6', 'target of', 'tocilizumab', '3', 'three')])
    found = lambda q: [h.passage.id for h in g.search([q], 5)[0]]
    assert found('heart failure treatment') == ['1']
    assert found('heart') == ['2']
    assert found('treatment with RAMIPRIL') == ['1']
    assert found('il 6') == found('Il-6') == found('IL6') == ['3']
    assert found('hearts') == []


def test_graph_prefers_edges_from_the_entity_to_edges_to_it():
    for order in (1, -1):
        g = GraphIndex([Triple('digoxin', 'interaction', 'warfarin', 'a', 'one'), Triple('warfarin', 'interaction', 'NSAIDs', 'b', 'two')][::order])
        assert [(h.passage.id, h.score) for h in g.search(['warfarin interaction'], 5)[0]] == [('b', 1.0), ('a', 1.0)]


def test_graph_prefers_the_relation_to_an_object_of_the_same_name():
    g = GraphIndex([Triple('minocycline', 'contraindication', 'pregnancy', 'a', 'one'), Triple('minocycline', 'pregnancy', 'avoid in first trimester', 'b', 'two')])
    assert [h.passage.id for h in g.search(['minocycline pregnancy'], 5)[0]] == ['b', 'a']


def test_graph_with_one_passage_for_two_triples():
    text = 'Amiodarone: monitor thyroid function and liver enzymes.'
    g = GraphIndex([Triple('amiodarone', 'monitoring', o, 'kg:1', text) for o in ('thyroid function', 'liver enzymes')])
    hit, = g.search(['amiodarone liver enzymes'], 5)[0]
    assert hit.passage.text == text and hit.score == 1.0 and hit.passage.meta['object'] == 'liver enzymes'


def test_graph_file(tmp_path):
    path = tmp_path/'new'/'kg.sqlite'
    first = GraphIndex(facts(), path).search(QUERIES, 5)
    assert first == GraphIndex(facts()).search(QUERIES, 5) == GraphIndex.open(path).search(QUERIES, 5)
    with pytest.raises(MedAgentError, match='two different texts'): GraphIndex([*facts(), replace(facts()[0], text='other')], path)
    assert GraphIndex.open(path).search(QUERIES, 5) == first      # a failed build leaves the old file
    assert [p.name for p in path.parent.iterdir()] == ['kg.sqlite']
    import sqlite3
    db = sqlite3.connect(path)
    db.execute('pragma user_version = 99')
    db.commit()
    db.close()
    with pytest.raises(MedAgentError, match='layout 99'): GraphIndex.open(path)

# ---------------------------------------------------------------- toolbox


def fixed(call: Call) -> Call: return replace(call, latency_s=0.0)


@pytest.fixture
def box(engines, encoder) -> Toolbox: return Toolbox({'guideline_search': engines['dense'], 'kg_query': engines['graph'], 'pubmed_search': engines['hybrid']}, encoder, k=3)


ASK = [(t, q) for q in QUERIES for t in ('guideline_search', 'kg_query', 'pubmed_search')] + [('web_search', 'lithium')]


def test_toolbox_alone_equals_batch(box, engines, encoder):
    together = [fixed(c) for c in box.call(ASK + ASK)]
    assert together[:len(ASK)] == together[len(ASK):]
    fresh = replace(box, cache=0)
    assert [fixed(fresh.call([r])[0]) for r in ASK] == together[:len(ASK)]
    assert [(c.tool, c.query) for c in together] == ASK + ASK


class Recorder:
    "Counts searches; raises for queries that hold a word; answers with one passage otherwise."
    def __init__(self, bad: str = 'bad'): self.bad, self.searches = bad, []
    def search(self, queries, k):
        self.searches.append(list(queries))
        if any(self.bad in q for q in queries): raise OSError('disk gone')
        return [[Hit(Passage(f'p:{q}', f'About {q}.', 'x'), 1.0)] for q in queries]


def test_toolbox_asks_once_and_remembers_within_its_bound():
    engine = Recorder()
    box = Toolbox({'t': engine}, cache=2)
    box.call([('t', 'a'), ('t', 'b'), ('t', 'a')])
    assert engine.searches == [['a', 'b']]
    box.call([('t', 'a')])
    box.call([('t', 'c')])                              # b is now the one used least recently
    box.call([('t', 'a')])
    assert engine.searches == [['a', 'b'], ['c']]
    box.call([('t', 'b')])
    assert engine.searches[-1] == ['b'] and len(box._calls) == 2


def test_toolbox_isolates_failures():
    engine = Recorder()
    box = Toolbox({'t': engine, 'u': Recorder('nothing')})
    calls = box.call([('t', 'a'), ('t', 'bad 1'), ('u', 'a'), ('t', 'b'), ('t', 'bad 2')])
    assert [c.error for c in calls] == [None, 'OSError: disk gone', None, None, 'OSError: disk gone']
    assert [c.passage_ids for c in calls] == [['p:a'], [], ['p:a'], ['p:b'], []]
    assert box.errors == 2
    engine.bad = 'never'
    assert box.call([('t', 'bad 1')])[0].passage_ids == ['p:bad 1']      # a failure is not remembered


def test_toolbox_counts_a_broken_encoder_and_a_short_answer():
    class Broken:
        unit = True
        def encode_queries(self, texts): raise RuntimeError("no memory")
        encode = encode_queries
    class Short:
        def search(self, queries, k): return []
    box = Toolbox({'t': Recorder(), 's': Short()}, Broken())
    a, b = box.call([('t', 'a'), ('s', 'a')])
    assert a.error == 'RuntimeError: no memory' and a.passages == [] and a.similarity is None
    assert '0 answers to 1 queries' in b.error and box.errors == 2


def test_toolbox_similarity_is_the_maximum_cosine(box, encoder):
    for c in box.call(ASK):
        if not c.passages: assert c.similarity is None; continue
        vectors = encoder.encode([c.query, *c.passages]).astype(float)
        assert c.similarity == pytest.approx((vectors[1:] @ vectors[0]).max(), abs=1e-9) and -1 <= c.similarity <= 1
    assert Toolbox(box.engines).call([ASK[0]])[0].similarity is None


def test_toolbox_floor_and_k(engines, encoder):
    def shown(floor, k=5): return [h for h in Toolbox({'g': engines['bm25']}, encoder, k=k, floor={'g': floor}).call([('g', 'lithium monitoring')])[0].passage_ids]
    hits = engines['bm25'].search(['lithium monitoring'], 5)[0]
    assert shown(0) == [h.passage.id for h in hits]
    assert shown(hits[1].score) == [h.passage.id for h in hits if h.score >= hits[1].score]
    assert shown(1e6) == []
    assert len(shown(0, k=2)) == 2
    with pytest.raises(MedAgentError, match='k must be at least 1'): Toolbox({}, k=0)


def test_evidence_ablation(box):
    pool = box.call([(t, q) for t, q in ASK if 'warfarin' in q or 'digoxin' in q or 'clozapine' in q])
    asked = [(t, q) for t, q in ASK if 'lithium' in q or q in ('', 'zolpidem')]
    normal = box.call(asked)
    swapped = replaced(box, 3, pool)
    for n, r in zip(normal, swapped.call(asked), strict=True):
        assert len(r.passages) == len(n.passages) == len(r.passage_ids) and (r.tool, r.query, r.error) == (n.tool, n.query, n.error)
        assert not set(r.passage_ids) & set(n.passage_ids)
        if r.passages: assert r.similarity == pytest.approx(box.similarity(r.query, r.passages))
    assert [fixed(swapped.call([r])[0]) for r in asked] == [fixed(c) for c in replaced(box, 3, pool[::-1]).call(asked)]
    assert [c.passage_ids for c in replaced(box, 4, pool).call(asked)] != [c.passage_ids for c in swapped.call(asked)]
    assert all(c.passages == [] and c.passage_ids == [] and c.similarity is None for c in removed(box).call(asked))
    assert any(n.passages for n in normal) and not all(n.passages for n in normal)


def test_replaced_never_brings_the_own_passages_back(box):
    own = box.call([('guideline_search', 'lithium monitoring')])
    tools = replaced(box, 0, own + [Call('kg_query', 'x', ['kg:x'], ['Something else.'])])
    c, = tools.call([('guideline_search', 'lithium monitoring')])
    assert c.passages == [] and 'the pool has 1 passages of other questions, 3 are needed' in c.error
    assert removed(box).call([('web_search', 'a')])[0].error.startswith('unknown tool')
