"Vectors on disk: exact where it says so, near enough where it does not, resumed, and closed to other corpora."
import json

import faiss
import numpy as np
import pytest

from medagent.retrieval.passages import Corpus, Passage
from medagent.retrieval import vectors
from medagent.retrieval.vectors import FLAT_UP_TO, VectorIndex, build_vectors, index_cost
from medagent.settings import MedAgentError


class Table:
    "An encoder that looks vectors up: passage `p7` is row 7, query `q3` is query row 3."
    def __init__(self, rows: np.ndarray, queries: np.ndarray, unit: bool, id: str = 'table'):
        self.rows, self.queries, self.unit, self.id, self.dim, self.encoded = rows.astype(np.float32), queries.astype(np.float32), unit, id, rows.shape[1], 0
    def encode(self, texts):
        self.encoded += len(texts)
        return self.rows[[int(t[1:]) for t in texts]]
    def encode_queries(self, texts): return np.stack([self.queries[int(t[1:])] if t[0] == 'q' else self.rows[int(t[1:])] for t in texts])


def setup(n: int = 1500, dim: int = 24, unit: bool = False, seed: int = 0) -> tuple[Corpus, Table]:
    "Clustered vectors of very different norms (unless `unit`): the case in which a graph for distances ranks wrongly."
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(12, dim))[rng.integers(12, size=n)] + .4*rng.normal(size=(n, dim))
    queries = rng.normal(size=(40, dim))
    if not unit: rows *= rng.lognormal(0, .6, size=(n, 1))
    else: rows, queries = rows/np.linalg.norm(rows, axis=1, keepdims=True), queries/np.linalg.norm(queries, axis=1, keepdims=True)
    return Corpus(Passage(f'{i:06}', f'p{i}', 'x') for i in range(n)), Table(rows, queries, unit)


QUERIES = [f'q{i}' for i in range(40)]


def truth(e: Table, k: int) -> list[list[int]]:
    scores = e.queries.astype(np.float64) @ e.rows.astype(np.float64).T
    return [list(np.lexsort((np.arange(scores.shape[1]), -s.round(9)))[:k]) for s in scores]


@pytest.mark.parametrize('unit', [False, True])
def test_flat_is_exact(tmp_path, unit):
    corpus, e = setup(unit=unit)
    index = build_vectors(corpus, e, tmp_path, progress=False)
    expected = truth(e, 7)
    assert [[int(h.passage.id) for h in hits] for hits in index.search(QUERIES, 7)] == expected
    assert [index.search([q], 7)[0] for q in QUERIES] == index.search(QUERIES, 7)


@pytest.mark.parametrize('unit', [False, True])
def test_a_graph_searches_by_inner_product(tmp_path, unit):
    "Seen elsewhere: a graph whose metric was set too late finds next to nothing of these."
    corpus, e = setup(unit=unit)
    index = build_vectors(corpus, e, tmp_path, flat=False, progress=False)
    found = [{int(h.passage.id) for h in hits} for hits in index.search(QUERIES, 5)]
    assert np.mean([len(f & set(t))/5 for f, t in zip(found, truth(e, 5))]) >= .9 and index.about['recall_at_5'] > .95
    assert all([h.score for h in hits] == sorted((h.score for h in hits), reverse=True) for hits in index.search(QUERIES, 5))


def test_a_graph_that_misses_too_much_is_not_saved(tmp_path, monkeypatch):
    corpus, e = setup()
    link = vectors._linked
    monkeypatch.setattr(vectors, '_linked', lambda v, *rest: link(-np.asarray(v), *rest))       # finds the farthest
    with pytest.raises(MedAgentError, match='finds 0%'): build_vectors(corpus, e, tmp_path, flat=False, progress=False)
    assert not (tmp_path/'index.json').exists() and (tmp_path/'vectors.npy').exists()


@pytest.mark.parametrize('flat', [True, False])
@pytest.mark.parametrize('n, k', [(1, 5), (3, 5), (40, 1000)])
def test_fewer_passages_than_asked_for(tmp_path, flat, n, k):
    "Faiss fills up with row -1, which would be the last passage."
    corpus, e = setup(n)
    for hits in build_vectors(corpus, e, tmp_path, flat=flat, progress=False, least_recall=0).search(QUERIES, k):
        ids = [h.passage.id for h in hits]
        assert len(ids) == len(set(ids)) <= n and (not flat or len(ids) == n)


def test_ties_at_the_cut_go_by_id(tmp_path):
    rows = np.ones((300, 4), np.float32)
    corpus, e = Corpus(Passage(f'{i:06}', f'p{i}', 'x') for i in range(300)), Table(rows, np.ones((1, 4)), True)
    assert [h.passage.id for h in build_vectors(corpus, e, tmp_path, progress=False).search(['q0'], 5)[0]] == [f'{i:06}' for i in range(5)]


def test_vectors_of_another_encoder_are_not_resumed(tmp_path):
    corpus, e = setup(200)
    build_vectors(corpus, e, tmp_path, progress=False)
    (tmp_path/'index.json').unlink()
    build_vectors(corpus, e, tmp_path, progress=False)
    assert e.encoded == 200                                   # the vectors were there
    (tmp_path/'index.json').unlink()
    other = Table(e.rows[::-1], e.queries, False, id='other')
    index = build_vectors(corpus, other, tmp_path, progress=False)
    assert other.encoded == 200 and [[int(h.passage.id) for h in hits] for hits in index.search(QUERIES, 3)] == truth(other, 3)


@pytest.mark.parametrize('name', ['index.json', 'index.faiss'])
def test_a_damaged_index_is_named(tmp_path, name):
    corpus, e = setup(50)
    build_vectors(corpus, e, tmp_path, progress=False)
    (tmp_path/name).write_bytes((tmp_path/name).read_bytes()[:20])
    with pytest.raises(MedAgentError, match=str(tmp_path)): VectorIndex(corpus, e, tmp_path)


def test_an_index_file_of_something_else_is_refused(tmp_path):
    corpus, e = setup(50)
    build_vectors(corpus, e, tmp_path, progress=False)
    wrong = faiss.IndexFlatL2(e.dim)
    wrong.add(e.rows)
    faiss.write_index(wrong, str(tmp_path/'index.faiss'))
    with pytest.raises(MedAgentError, match='inner product'): VectorIndex(corpus, e, tmp_path)
    about = json.loads((tmp_path/'index.json').read_text()) | dict(dim=3)
    (tmp_path/'index.json').write_text(json.dumps(about))
    with pytest.raises(MedAgentError, match='dim'): VectorIndex(corpus, e, tmp_path)


def test_costs_grow_as_computed_by_hand():
    assert index_cost(FLAT_UP_TO, 100).kind == 'flat' and index_cost(FLAT_UP_TO + 1, 100).kind == 'hnsw'
    assert index_cost(36_000_000, 768).memory == 36_000_000*(2*768 + 4*2*32 + 16)      # 65 GB, as measured per vector at 50,000
    assert index_cost(36_000_000, 768).core_seconds/3600 == pytest.approx(14.8, abs=.3)


def test_repeated_texts_are_as_good_as_each_other(tmp_path):
    "Labels repeat whole paragraphs: which of the copies a graph finds does not count as a miss."
    rng = np.random.default_rng(1)
    rows = np.repeat(rng.normal(size=(100, 16)), 20, axis=0)
    corpus, e = Corpus(Passage(f'{i:06}', f'p{i}', 'x') for i in range(len(rows))), Table(rows, rng.normal(size=(5, 16)), False)
    assert build_vectors(corpus, e, tmp_path, flat=False, progress=False).about['recall_at_5'] > .95


def test_a_disk_without_room_is_a_message(tmp_path, monkeypatch):
    corpus, e = setup(50)
    def full(*_): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(vectors.os, 'posix_fallocate', full)
    with pytest.raises(MedAgentError, match='cannot be reserved here .No space left'): build_vectors(corpus, e, tmp_path, progress=False)


def test_a_query_without_a_word_finds_nothing(tmp_path):
    corpus, e = setup(50)
    e.encode_queries = lambda texts: np.ones((len(texts), e.dim), np.float32)
    assert build_vectors(corpus, e, tmp_path, progress=False).search(['', ' ...', 'word'], 3)[:2] == [[], []]
