"""The cluster engines: what is sent, what is refused, and the ranks of the embedded engines.

Each test with `server` runs on a stand-in for pymilvus in this process; in the slow set on a Milvus Lite server process (`pip install '.[cluster-test]'`); and with REAL_MILVUS_URI on that server."""
import gzip
import json
import logging
import os
import re
import socket
import sys
import threading
import time
import types
import uuid
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml

from medagent.retrieval import cluster
from medagent.retrieval.bm25 import BM25Index
from medagent.retrieval.cluster import MOST, MilvusIndex, drop, idf, ingest, kept_length, local_server, passage_weights, word_statistics
from medagent.retrieval.dense import DenseIndex, LSAEncoder
from medagent.retrieval.hybrid import HybridIndex
from medagent.retrieval.passages import Corpus, Passage, analyze, content_words
from medagent.retrieval.shards import build_corpus
from medagent.retrieval.tools import Toolbox
from medagent.settings import MedAgentError

SHARED = Path(__file__).parents[2]/'shared'/'data'/'retrieval'
has_lite = pytest.mark.skipif(not (find_spec('pymilvus') and find_spec('milvus_lite')), reason="needs pip install '.[cluster-test]'")


class Failed(Exception):
    "As pymilvus fails."
    def __init__(self, message=''): self.message = message


class Memory:
    "A Milvus server in this process, as strict as a real one where it matters here: keys, byte limits, dimensions, no empty sparse vectors, scores with noise in the last digits, so ties in any order."
    servers: dict = {}
    log: list = []
    trouble: dict = {}    # method -> what happens in it, called with the client, before or after

    def __init__(self, uri, token='', timeout=None):
        if 'nowhere' in uri: raise Failed(f'Fail connecting to server with {token}')
        self.there = self.servers.setdefault(uri, {})

    @staticmethod
    def create_schema(auto_id, enable_dynamic_field): return types.SimpleNamespace(fields={}, add_field=None)
    @staticmethod
    def prepare_index_params(): return {}

    def __getattribute__(self, name):
        got = object.__getattribute__(self, name)
        if name.startswith('_') or not isinstance(got, types.MethodType): return got
        def call(collection, timeout, **more):
            assert timeout > 0
            Memory.log.append((name, collection, more))
            answer = got(collection, **more)
            if name in Memory.trouble: Memory.trouble[name](collection, more)
            return answer
        return call

    def has_collection(self, c): return c in self.there
    def load_collection(self, c): assert c in self.there
    def flush(self, c): assert c in self.there
    def drop_collection(self, c): del self.there[c]
    def create_collection(self, c, schema, index_params, consistency_level):
        assert c not in self.there and consistency_level == 'Strong' and {f for f, v in schema.items() if 'VECTOR' in v['datatype']} == set(index_params)
        self.there[c] = dict(fields=schema, rows={}, key=next(f for f, v in schema.items() if v.get('is_primary')))

    def upsert(self, c, data):
        t = self.there[c]
        for row in data:
            assert set(row) == set(t['fields'])
            for f, how in t['fields'].items():
                v = row[f]
                if how['datatype'] == 'VARCHAR': assert isinstance(v, str) and len(v.encode()) <= how['max_length']
                elif how['datatype'] == 'INT64': assert isinstance(v, int)
                elif how['datatype'] == 'FLOAT_VECTOR': assert len(v) == how['dim'] and np.isfinite(v).all()
                else: assert v and all(isinstance(i, int) and 0 <= i < 2**32 - 1 and w > 0 for i, w in v.items())
            t['rows'][row[t['key']]] = dict(row)

    def query(self, c, filter, output_fields, consistency_level, limit=None):
        rows = self.there[c]['rows']
        if output_fields == ['count(*)']: return [{'count(*)': len(rows)}]
        low, high = map(int, re.fullmatch(r'row >= (\d+) and row <= (\d+)', filter).groups())
        return [{f: rows[r][f] for f in output_fields} for r in range(low, high + 1) if r in rows][:limit]

    def get(self, c, ids, output_fields, consistency_level):
        assert 0 < len(ids) <= MOST and not any(isinstance(i, str) and set(i) & set('"\'\\') for i in ids)
        return [{f: self.there[c]['rows'][i][f] for f in output_fields} for i in ids if i in self.there[c]['rows']]

    def search(self, c, data, anns_field, limit, output_fields, search_params, consistency_level):
        rows, rng = list(self.there[c]['rows'].values()), np.random.default_rng(len(Memory.log))
        assert 0 < limit <= MOST and search_params['metric_type'] == 'IP' and 0 < len(data) <= MOST
        answers = []
        for q in data:
            if isinstance(q, dict): scores = {i: s for i, r in enumerate(rows) if (s := sum(w*np.float32(r[anns_field].get(n, 0)) for n, w in q.items())) > 0}
            else: scores = {i: float(np.float32(r[anns_field] @ q)) for i, r in enumerate(rows)}
            noisy = {i: s*(1 + 2e-7*rng.normal()) for i, s in scores.items()}
            answers.append([dict(row=rows[i]['row'], distance=noisy[i], entity={f: rows[i][f] for f in output_fields}) for i in sorted(noisy, key=noisy.get, reverse=True)[:limit]])
        return answers


@pytest.fixture
def memory(monkeypatch):
    "The stand-in, installed as pymilvus."
    class Types:
        def __getattr__(self, name): return name
    def schema(auto_id, enable_dynamic_field):
        class Schema(dict):
            def add_field(self, name, **field): self[name] = field
        return Schema()
    def params():
        class Params(dict):
            def add_index(self, name, **how): self[name] = how
        return Params()
    monkeypatch.setattr(Memory, 'create_schema', staticmethod(schema))
    monkeypatch.setattr(Memory, 'prepare_index_params', staticmethod(params))
    monkeypatch.setattr(Memory, 'servers', {})
    monkeypatch.setattr(Memory, 'log', [])
    monkeypatch.setattr(Memory, 'trouble', {})
    monkeypatch.setitem(sys.modules, 'pymilvus', types.SimpleNamespace(MilvusClient=Memory, DataType=Types(), MilvusException=Failed))
    monkeypatch.setitem(sys.modules, 'grpc', types.SimpleNamespace(RpcError=Failed, FutureTimeoutError=Failed))
    return 'http://memory:19530'


@pytest.fixture(scope='module')
def lite(tmp_path_factory):
    with local_server(tmp_path_factory.mktemp('milvus')) as uri: yield uri


@pytest.fixture(params=['memory', pytest.param('lite', marks=[pytest.mark.slow, has_lite]),
                        pytest.param('real', marks=[pytest.mark.slow, pytest.mark.skipif('REAL_MILVUS_URI' not in os.environ, reason='no REAL_MILVUS_URI')])])
def server(request): return os.environ['REAL_MILVUS_URI'] if request.param == 'real' else request.getfixturevalue(request.param)


@pytest.fixture
def name(server):
    "A collection of this test, removed after it."
    name = f'medagent_test_{uuid.uuid4().hex[:12]}'
    yield name
    Memory.trouble.clear()
    drop(server, name)


def some(n=120, seed=0) -> Corpus:
    rng = np.random.default_rng(seed)
    vocabulary = [f'w{i}' for i in range(60)] + ['lithium', 'thyroid', 'il-6', '2.5', 'HLA-B*57:01']
    return Corpus(Passage(f'p{i:04}', ' '.join(rng.choice(vocabulary, rng.integers(1, 150))), 'x', title=rng.choice(['', 'Title']), meta={'n': i, 'é': [1.5, None, '"']}) for i in range(n))


CORPUS = some()
ENCODER = LSAEncoder.fit([p.searchable for p in CORPUS], dim=16)
QUERIES = ['lithium thyroid w3', 'IL-6 and w7 w8', '2.5 HLA-B*57:01', 'w1', 'nothing known', '', 'w40 w41 w42 w43']


class Cut:
    "An encoder that is interrupted after some batches, and counts."
    id, dim, unit = ENCODER.id, ENCODER.dim, True
    def __init__(self, left=99): self.left, self.encoded = left, 0
    def encode_queries(self, texts): return ENCODER.encode_queries(texts)
    def encode(self, texts):
        if not self.left: raise KeyboardInterrupt
        self.left, self.encoded = self.left - 1, self.encoded + len(texts)
        return ENCODER.encode(texts)


def ids(found): return [[h.passage.id for h in hits] for hits in found]
def send(uri, name, corpus=CORPUS, encoder=ENCODER, **more): return ingest(corpus, encoder, uri, name, **({'batch': 16, 'progress': False} | more))


# -- weights, without a server


def scores(corpus, queries):
    "Our inner products, passage id -> score."
    known = word_statistics(corpus)
    numbers = {w: i for i, w in enumerate(known.found_in, 1)}
    vectors = {p.id: passage_weights(p, known.mean_length, numbers) for p in corpus}
    for q in queries:
        weights = {numbers[w]: idf(known.passages, known.found_in[w]) for w in dict.fromkeys(content_words(q)) if w in numbers}
        yield {id: s for id, v in vectors.items() if (s := sum(x*v.get(i, 0) for i, x in weights.items())) > 0}


@pytest.mark.parametrize('corpus', [CORPUS, some(400, 1), Corpus([Passage('a', 'lithium', 'x')]), Corpus(Passage(str(i), 'w1 '*n, 'x') for i, n in enumerate((1, 39, 40, 41, 55, 56, 57, 300, 5000)))], ids=['small', 'more', 'one', 'lengths'])
def test_the_products_are_the_scores_of_the_embedded_engine(corpus):
    for ours, hits in zip(scores(corpus, QUERIES), BM25Index(corpus).search(QUERIES, 1000), strict=True):
        assert {h.passage.id: pytest.approx(h.score, rel=2e-4, abs=2e-4) for h in hits} == ours


def test_lengths_in_one_byte():
    lengths = sorted({kept_length(n) for n in range(300_000)})
    assert lengths[:41] == [*range(41)] and lengths[41:50] == [42, 44, 46, 48, 50, 52, 54, 56, 60] and len(lengths) < 256
    assert all(kept_length(n) <= n < kept_length(n)*1.126 for n in range(1, 100_000))


def test_numbers_of_words_are_their_own_and_the_same_everywhere():
    long = ['a'*61, 'a'*61 + 'b', 'ß'*400]
    ps = [Passage('1', 'zinc iron ' + ' '.join(long), 'x'), Passage('2', 'iron', 'x')]
    one, two = word_statistics(ps), word_statistics(ps[::-1])
    assert list(one.found_in.items()) == list(two.found_in.items()) and one.found_in['iron'] == 2 and len(one.found_in) == 5
    assert all(len(w.encode()) <= cluster.WORD_FIELDS['word']['max_length'] and not analyze(w) == [w] or len(w) <= 60 for w in one.found_in)
    assert passage_weights(Passage('3', '¿?', 'x'), 5.0, {}) == {0: 1.0} and word_statistics([]).mean_length == 0


# -- refusals that need no server


@pytest.mark.parametrize('passage, why', [
    (Passage('x', 'a'*65_536, 'x'), "'x': text has 65,536 bytes"), (Passage('x', 'ä'*32_768, 'x'), "text has 65,536 bytes"), (Passage('x', 'a', 'x', meta={'a': 'é'*20_000}), 'meta has'),
    (Passage('i'*1025, 'a', 'x'), 'id has 1,025'), (Passage('x', 'a', 'x', title='t'*65_536), 'title has'), (Passage('x\ud800', 'a', 'x'), 'cannot be stored'), (Passage('x', '\ud800', 'x'), 'surrogates not allowed'),
    (Passage('x', 'a', 'x', meta={'a': float('nan')}), 'cannot be stored')])
def test_passages_that_do_not_fit_are_found_before_anything_is_sent(memory, passage, why):
    class Odd(Corpus): hash = 'h'
    with pytest.raises(MedAgentError, match=re.escape(why)) as e: send(memory, 'c', Odd([*CORPUS, passage]))
    assert '1 of 121 passages' in str(e.value) and 'nothing was sent' in str(e.value) and str(e.value).isprintable()
    assert Memory.servers[memory] == {} and not [c for c in Memory.log if c[0] == 'upsert']


@pytest.mark.parametrize('uri', ['', 'localhost:19530', 'file:///x', 'http://', 'http://h:port', 'http://[::1', './milvus.db'])
def test_wrong_addresses(memory, uri):
    with pytest.raises(MedAgentError, match='expected a URI such as'): send(uri, 'c')


def test_no_secret_in_any_message(memory, monkeypatch, caplog):
    monkeypatch.setenv('MILVUS_TOKEN', 'root:hunter2')
    for uri in ('http://root:hunter2@h:1', 'http://h:1?token=hunter2', 'root:hunter2@h', 'http://nowhere:1'):
        with pytest.raises(MedAgentError) as e: send(uri, 'c')
        assert 'hunter2' not in str(e.value) and 'MILVUS_TOKEN' in str(e.value)
        assert e.value.__context__ is None or 'hunter2' not in str(e.value.__context__)
    assert 'http://nowhere:1: connecting failed (Fail connecting to server with ***)' in str(e.value) and 'hunter2' not in caplog.text


def test_without_pymilvus(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pymilvus', None)
    with pytest.raises(MedAgentError, match=re.escape("pip install 'medagent[cluster]'")): send('http://localhost:1', 'c')


def test_without_milvus_lite(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, 'find_spec', lambda name: None)
    with pytest.raises(MedAgentError, match='cluster-test'), local_server(tmp_path): pass


@pytest.mark.parametrize('arguments, why', [(dict(corpus=Corpus([])), 'at least one passage'), (dict(batch=0), 'at least 1'), (dict(name='1x'), 'no name'), (dict(name='a-b'), 'no name'), (dict(name='a"; drop'), 'no name')])
def test_wrong_arguments(memory, arguments, why):
    with pytest.raises(MedAgentError, match=why): send(memory, **({'name': 'c'} | arguments))


# -- on every server


def test_passages_come_back_as_they_went(server, name):
    odd = [Passage('"quoted\' \\ id', 'Ünïcode \x00 "text" [Observation 1]\n\ttab', 'a\'"s', title='{t}', meta={'deep': [{'a': 1e-9, 'b': None}], 'ключ': True}), Passage('empty words', '... !', 'x')]
    index = send(server, name, Corpus([*CORPUS, *odd]))
    got = {h.passage.id: h.passage for hits in index.lexical.search(['unicode text', 'w1', 'w2'], 200) for h in hits}
    assert len(got) > 50 and all(p == {q.id: q for q in [*CORPUS, *odd]}[id] for id, p in got.items()) and odd[0].id in got
    assert index.about['passages'] == 122 and 'MilvusIndex' in repr(index)


def test_the_ranks_of_the_embedded_engines(server, name):
    index = send(server, name)
    for ours, theirs in ((index.lexical, BM25Index(CORPUS)), (index.dense, DenseIndex(CORPUS, ENCODER)), (HybridIndex([index.lexical, index.dense]), HybridIndex([BM25Index(CORPUS), DenseIndex(CORPUS, ENCODER)]))):
        assert ids(ours.search(QUERIES, 5)) == ids(theirs.search(QUERIES, 5))
    assert [h.score for h in index.lexical.search(QUERIES, 5)[0]] == pytest.approx([h.score for h in BM25Index(CORPUS).search(QUERIES, 5)[0]], rel=1e-3)


def test_alone_and_in_a_batch(server, name):
    send(server, name)
    whole, small = MilvusIndex(server, name, ENCODER), MilvusIndex(server, name, ENCODER, batch=2)
    for field in ('lexical', 'dense'):
        together = getattr(whole, field).search(QUERIES, 7)
        assert together == [getattr(whole, field).search([q], 7)[0] for q in QUERIES] == getattr(small, field).search(QUERIES, 7)
        assert getattr(whole, field).search([], 3) == []


def test_queries_without_a_known_word_find_nothing(server, name):
    index = send(server, name)
    for engine in (index.lexical, index.dense, HybridIndex([index.lexical, index.dense])):
        assert engine.search(['', '  ', 'unheardof words', 'the of and', 'x'*20_000, '"; drop', '\ud800'], 5) == [[]]*7
    with pytest.raises(MedAgentError, match='list of queries'): index.lexical.search('w1', 5)
    with pytest.raises(MedAgentError, match='at most 16,384'): index.dense.search(['w1'], MOST + 1)


def test_ties_go_by_id_even_when_the_cut_is_in_a_tie(server, name):
    corpus = Corpus([*(Passage(f'{i:03}', 'Lithium and thyroid function.', 'x') for i in range(150)), Passage('best', 'Lithium, lithium.', 'x'), Passage('other', 'Iron.', 'x')])
    encoder = LSAEncoder.fit([p.text for p in corpus], dim=3)
    index = send(server, name, corpus, encoder)
    assert ids(index.lexical.search(['lithium', 'thyroid', 'iron'], 5)) == [['best', '000', '001', '002', '003'], [f'{i:03}' for i in range(5)], ['other']]
    assert ids(index.lexical.search(['thyroid'], 149)) == [[f'{i:03}' for i in range(149)]]
    assert ids(index.dense.search(['thyroid function'], 4)) == ids(DenseIndex(corpus, encoder).search(['thyroid function'], 4))


def test_an_interrupted_ingest_goes_on(server, name):
    with pytest.raises(KeyboardInterrupt): send(server, name, encoder=Cut(3))
    with pytest.raises(MedAgentError, match=r'not whole \(48 of 120 rows\)'): MilvusIndex(server, name, ENCODER)
    rest = Cut()
    index = send(server, name, encoder=rest, batch=20)      # other batches: row 48 is in the middle of one
    assert rest.encoded == 120 - 48 and ids(index.lexical.search(QUERIES, 5)) == ids(BM25Index(CORPUS).search(QUERIES, 5))
    again = Cut(0)
    assert send(server, name, encoder=again).about == index.about and again.encoded == 0


def test_another_corpus_or_encoder_is_refused(server, name):
    send(server, name)
    other = LSAEncoder.fit([p.searchable for p in CORPUS], dim=16, seed=1)
    other.id = 'other'
    fewer = CORPUS.without(['p0001'])
    for call, why in ((lambda: send(server, name, fewer), 'built for corpus'), (lambda: send(server, name, encoder=other), 'built for encoder'), (lambda: send(server, name, flat=False), "dense 'flat', not for 'hnsw'"),
                      (lambda: MilvusIndex(server, name, other), 'built for encoder'), (lambda: MilvusIndex(server, name, ENCODER, fewer), 'built for corpus'), (lambda: MilvusIndex(server, name + 'x', ENCODER), 'no collection')):
        with pytest.raises(MedAgentError, match=why) as e: call()
        assert server in str(e.value) and re.search('another name|make it with', str(e.value))
    assert MilvusIndex(server, name, ENCODER, CORPUS).about['corpus'] == CORPUS.hash


def test_dropped_and_made_for_another_corpus(server, name):
    send(server, name)
    drop(server, name)
    with pytest.raises(MedAgentError, match='there is no collection'): MilvusIndex(server, name, ENCODER)
    assert send(server, name, CORPUS.without(['p0001'])).about['passages'] == 119


def test_a_graph_finds_nearly_the_same(server, name):
    index = send(server, name, flat=False)
    pairs = list(zip(ids(index.dense.search(QUERIES, 5)), ids(DenseIndex(CORPUS, ENCODER).search(QUERIES, 5)), strict=True))
    assert index.about['dense'] == 'hnsw' and np.mean([set(a) == set(b) for a, b in pairs]) >= .8


# -- what only the stand-in can show


def test_a_corpus_on_disk_is_streamed(memory, tmp_path, monkeypatch):
    corpus = build_corpus(CORPUS, tmp_path/'corpus', shard_rows=50, progress=False)
    monkeypatch.setattr(type(corpus), 'load', None)
    assert ids(send(memory, 'c', corpus).lexical.search(QUERIES, 5)) == ids(BM25Index(CORPUS).search(QUERIES, 5))


def test_a_lost_answer_leaves_no_copies(memory):
    left = [3]
    def lose(collection, more):
        left[0] -= 1
        if not left[0]: raise Failed('deadline exceeded')
    Memory.trouble['upsert'] = lose
    with pytest.raises(MedAgentError, match='deadline exceeded'): send(memory, 'c')
    Memory.trouble.clear()
    send(memory, 'c')
    assert sorted(Memory.servers[memory]['c']['rows']) == list(range(120))


@pytest.mark.parametrize('method', ['create_collection', 'upsert', 'flush', 'query', 'search', 'get', 'load_collection'])
@pytest.mark.parametrize('nth', [1, 2, 4])
def test_any_failure_is_told_and_the_next_call_goes_on(memory, method, nth):
    left = [nth]
    def fail(collection, more):
        left[0] -= 1
        if not left[0]: raise Failed('gone')
    Memory.trouble[method] = fail
    try: send(memory, 'c').lexical.search(QUERIES, 5)
    except MedAgentError as e: assert memory in str(e) and 'gone' in str(e)
    Memory.trouble.clear()
    assert ids(send(memory, 'c').lexical.search(QUERIES, 5)) == ids(BM25Index(CORPUS).search(QUERIES, 5))


def test_one_request_for_each_engine_and_batch(memory):
    index = send(memory, 'c')
    index.lexical.search(QUERIES, 5)
    for engine in (index.lexical, index.dense):
        Memory.log.clear()
        engine.search(QUERIES*5, 5)       # the words are known by now
        assert [(m, len(more.get('data', []))) for m, _, more in Memory.log] == [('search', 25), ('get', 0)] and 'text' not in Memory.log[0][2]['output_fields']     # two of seven find nothing and are not sent
    Memory.log.clear()
    HybridIndex([index.lexical, index.dense]).search(QUERIES[:1], 3)
    assert [(m, len(more.get('ids', []))) for m, _, more in Memory.log] == [('search', 0), ('search', 0), ('get', 3)]      # a fusion moves the texts that are shown
    Memory.log.clear()
    index.lexical.search(['unheardof', 'nothing known'], 5)
    index.lexical.search(['unheardof', 'nothing known'], 5)
    assert [m for m, _, _ in Memory.log] == ['get']       # unknown words are remembered too


def test_memory_of_words_is_bounded(memory, monkeypatch):
    monkeypatch.setattr(cluster, '_REMEMBERED', 3)
    index = send(memory, 'c')
    assert [ids(index.lexical.search([q], 5))[0] for q in QUERIES] == ids(BM25Index(CORPUS).search(QUERIES, 5))
    assert len(index._words) <= 12


def test_somebody_elses_collections(memory):
    send(memory, 'c')
    there = Memory.servers[memory]
    del there['c_words']
    for call in (lambda: send(memory, 'c'), lambda: MilvusIndex(memory, 'c', ENCODER), lambda: drop(memory, 'c')):
        with pytest.raises(MedAgentError, match='not made by'): call()
    assert len(there['c']['rows']) == 120
    send(memory, 'd')
    there['d_words']['rows']['#about']['note'] = '{"format": 2}'
    with pytest.raises(MedAgentError, match='not made by'): MilvusIndex(memory, 'd', ENCODER)
    send(memory, 'e')
    for row in there['e']['rows'].values(): row['meta'] = 'x'
    with pytest.raises(MedAgentError, match='damaged'): MilvusIndex(memory, 'e', ENCODER).lexical.search(['w1'], 5)


def test_words_counted_in_another_way_are_refused(memory, monkeypatch):
    with pytest.raises(KeyboardInterrupt): send(memory, 'c', encoder=Cut(3))
    monkeypatch.setattr(cluster, 'analyze', lambda text: text.lower().split())
    with pytest.raises(MedAgentError, match='built for words'): send(memory, 'c')


def test_in_the_toolbox(memory):
    index = send(memory, 'c')
    box = Toolbox({'guideline_search': HybridIndex([index.lexical, index.dense])}, ENCODER)
    assert len(box.call([('guideline_search', 'lithium thyroid w3')])[0].passages) == 5
    Memory.trouble['search'] = lambda *_: (_ for _ in ()).throw(Failed('gone'))
    call = box.call([('guideline_search', 'another w5')])[0]
    assert call.error and 'gone' in call.error and not call.passages


def test_the_compose_file_names_versions_and_this_machine_only():
    compose = yaml.safe_load((Path(__file__).parents[1]/'deploy'/'milvus'/'compose.yaml').read_text())
    assert all(re.search(r':(v\d+\.\d+\.\d+|RELEASE\.[\w-]+)$', s['image']) for s in compose['services'].values())
    assert [p for s in compose['services'].values() for p in s.get('ports', [])] == ['127.0.0.1:19530:19530']


# -- against the real client and server


@pytest.mark.skipif(not find_spec('pymilvus'), reason='needs pymilvus')
def test_nobody_answers(caplog):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    with pytest.raises(MedAgentError, match=f'http://127.0.0.1:{port}: connecting failed'): MilvusIndex(f'http://127.0.0.1:{port}', 'c', ENCODER, timeout=2)
    silent = socket.create_server(('127.0.0.1', 0))          # takes the connection and says nothing
    threading.Thread(target=lambda: [silent.accept() for _ in range(9)], daemon=True).start()
    start = time.monotonic()
    with pytest.raises(MedAgentError, match='connecting failed'): MilvusIndex(f'http://127.0.0.1:{silent.getsockname()[1]}', 'c', ENCODER, timeout=2)
    assert time.monotonic() - start < 30 and not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.slow
@has_lite
def test_a_server_that_is_killed_and_started_again(tmp_path):
    with local_server(tmp_path) as uri:
        with pytest.raises(KeyboardInterrupt): send(uri, 'c', encoder=Cut(3))
    with pytest.raises(MedAgentError, match='failed'): MilvusIndex(uri, 'c', ENCODER, timeout=2)
    with local_server(tmp_path) as uri:
        rest = Cut()
        assert ids(send(uri, 'c', encoder=rest).lexical.search(QUERIES, 5)) == ids(BM25Index(CORPUS).search(QUERIES, 5)) and rest.encoded <= 120 - 48


def agreement(one, other, queries) -> tuple[float, float, list[str]]:
    a, b = ids(one.search(queries, 5)), ids(other.search(queries, 5))
    return np.mean([set(x) == set(y) for x, y in zip(a, b)]), np.mean([x == y for x, y in zip(a, b)]), [q for q, x, y in zip(queries, a, b) if set(x) != set(y)]


@pytest.mark.slow
@has_lite
@pytest.mark.skipif(not SHARED.is_dir(), reason='the shared data are not here')
def test_parity_on_real_passages(lite, monkeypatch, capsys):
    "5,000 passages of open-access trials, 80 questions about trials: the same five as the embedded engines."
    with gzip.open(SHARED/'pmc_oa_passages.jsonl.gz', 'rt') as f: rows = [json.loads(line) for line, _ in zip(f, range(5000))]
    corpus = Corpus(Passage(r['id'], r['text'], 'pmc', title=r['section']) for r in rows)
    with gzip.open(SHARED/'evidence_inference_queries.jsonl.gz', 'rt') as f: queries = [json.loads(line)['query'] for line, _ in zip(f, range(80))]
    encoder = LSAEncoder.fit([p.searchable for p in corpus], dim=128)
    bm25, dense, lines = BM25Index(corpus), DenseIndex(corpus, encoder), []
    shares: dict[str, float] = {}
    def note(what, one, other):
        start = time.perf_counter()
        sets, orders, differ = agreement(one, other, queries)
        shares[what] = sets
        lines.append(f'{what:28} same five {sets:6.1%}, same order {orders:6.1%} ({1000*(time.perf_counter() - start)/len(queries):.0f} ms a query, both engines); differ: {[q[:40] for q in differ[:3]]}')
    start = time.perf_counter()
    index = ingest(corpus, encoder, lite, 'parity', progress=False)
    lines.append(f'{len(corpus)} passages, {index.about["words"]} words, {index.about["mean_length"]:.0f} words a passage; ingest {time.perf_counter() - start:.0f} s')
    note('lexical', bm25, index.lexical)
    note('dense', dense, index.dense)
    note('hybrid', HybridIndex([bm25, dense]), HybridIndex([index.lexical, index.dense]))
    drop(lite, 'parity')
    graph = ingest(corpus, encoder, lite, 'parity', flat=False, progress=False)
    note('dense by a graph', dense, graph.dense)
    note('hybrid with the graph', HybridIndex([bm25, dense]), HybridIndex([graph.lexical, graph.dense]))
    drop(lite, 'parity')
    with monkeypatch.context() as m:
        m.setattr(cluster, 'kept_length', lambda n: n)
        exact = ingest(corpus, encoder, lite, 'parity', progress=False)
        note('lexical, exact lengths', bm25, exact.lexical)
    drop(lite, 'parity')
    with capsys.disabled(): print('', *lines, sep='\n')
    assert shares['lexical'] >= .97 and shares['dense'] >= .97 and shares['hybrid'] >= .95 and shares['dense by a graph'] >= .9
