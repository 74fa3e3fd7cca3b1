"Indexes as a user makes them: from files to answers, interrupted, followed, refused, and through the command line."
import gzip
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from medagent import cli
from medagent.retrieval import index as rooms
from medagent.retrieval.index import IndexPlan, build_index, index_table, open_index, open_toolbox
from medagent.retrieval.passages import MAX_QUERY
from medagent.settings import MedAgentError

SHARED = Path(__file__).parents[2]/'shared'/'data'
DRUGS = ['amiodarone', 'lithium', 'metformin', 'warfarin', 'clozapine', 'digoxin', 'enoxaparin', 'phenytoin', 'lisinopril', 'tocilizumab']
FIELDS = (('id', 'pmid'), ('text', 'abstract'), ('title', 'title'), ('meta.year', 'year'))


def records(n: int = 40) -> list[dict]:
    return [dict(pmid=i, title=f'{DRUGS[i % 10].capitalize()} in practice {i}', abstract=f'Treatment with {DRUGS[i % 10]} was followed for {i + 2} weeks. Dose {i % 7 + 1}.5 mg, monitored by INR and potassium.', year=2000 + i % 20) for i in range(n)]


def jsonl(path: Path, rows: list[dict]) -> IndexPlan:
    path.write_text(''.join(json.dumps(r) + '\n' for r in rows))
    return IndexPlan((('jsonl', str(path)),), encoder='lsa', fields=FIELDS, modality='pubmed')


def medagent(*words: str): return CliRunner().invoke(cli.app, ['index', *map(str, words)])


def ids(hits): return [h.passage.id for h in hits]


def test_build_search_and_open_again(tmp_path):
    plan = jsonl(tmp_path/'r.jsonl', records())
    built = build_index(plan, tmp_path/'i', progress=False)
    again = open_index(tmp_path/'i')
    queries = ['warfarin INR', 'lithium for 3 weeks', 'zolpidem', '', '5.5 mg']
    for name in ('hybrid', 'bm25', 'dense'): assert built.engines[name].search(queries, 4) == again.engines[name].search(queries, 4)
    first = again.search(['lithium 3 weeks'], 1)[0][0].passage
    assert (first.id, first.source, first.title, first.meta) == ('1', 'pubmed', 'Lithium in practice 1', {'year': 2001})
    assert again.search(queries, 3)[2:4] == [[], []]
    table = index_table(again.about)['value']
    assert table['passages'] == '40' and table['kept'] == '40' and 'recall at 5' in table['vectors']


def test_an_interrupted_build_goes_on(tmp_path, monkeypatch):
    plan = jsonl(tmp_path/'r.jsonl', records())
    whole = build_index(plan, tmp_path/'whole', progress=False)
    def cut(*_, **__): raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(rooms, 'build_vectors', cut)
        with pytest.raises(KeyboardInterrupt): build_index(plan, tmp_path/'i', progress=False)
    with pytest.raises(MedAgentError, match='no finished index'): open_index(tmp_path/'i')
    with monkeypatch.context() as m:
        for step in ('_passages', 'update_bm25'): m.setattr(rooms, step, lambda *_, **__: pytest.fail('read again') if step == '_passages' else {})
        m.setattr(rooms.LSAEncoder, 'fit', lambda *_, **__: pytest.fail('fitted again'))
        done = build_index(plan, tmp_path/'i', progress=False)
    assert done.search(['warfarin INR'], 5) == whole.search(['warfarin INR'], 5) and done.about['counts'] == whole.about['counts']


def test_a_large_corpus_is_read_from_its_shards_and_ranks_the_same(tmp_path, monkeypatch):
    from medagent.retrieval import vectors
    plan = jsonl(tmp_path/'r.jsonl', records(300))
    small = build_index(plan, tmp_path/'small', progress=False)
    monkeypatch.setattr(rooms, 'FLAT_UP_TO', 50)
    large = build_index(plan, tmp_path/'large', progress=False)
    assert type(large.engines['bm25'].passages).__name__ == 'ShardedCorpus' and type(small.engines['bm25'].passages).__name__ == 'Corpus'
    queries = [f'{d} {w} weeks' for d in DRUGS for w in (5, 77)]
    for name in ('hybrid', 'bm25', 'dense'): assert large.engines[name].search(queries, 6) == small.engines[name].search(queries, 6)
    monkeypatch.setattr(vectors, 'FLAT_UP_TO', 50)
    graph = build_index(plan, tmp_path/'graph', progress=False)
    assert graph.about['vectors']['kind'] == 'hnsw' and graph.engines['bm25'].search(queries, 6) == small.engines['bm25'].search(queries, 6)


def test_an_update_follows_its_sources_and_only_on_request(tmp_path):
    rows = records()
    plan = jsonl(tmp_path/'r.jsonl', rows)
    build_index(plan, tmp_path/'i', progress=False)
    rows[3]['abstract'] = 'Withdrawn: see the correction on sotalol.'
    jsonl(tmp_path/'r.jsonl', rows[:-5] + [dict(pmid=900, title='New', abstract='Dabigatran and renal function.')])
    with pytest.raises(MedAgentError, match='files differ'): build_index(plan, tmp_path/'i', progress=False)
    followed = build_index(plan, tmp_path/'i', update=True, progress=False)
    fresh = build_index(plan, tmp_path/'fresh', progress=False)
    assert followed.about['bm25_update'] == dict(added=2, removed=6, kept=34) and followed.about['hash'] == fresh.about['hash']
    assert ids(followed.search(['sotalol correction'], 1)[0]) == ['3'] and ids(followed.search(['dabigatran'], 3)[0])[0] == '900'
    assert followed.engines['dense'].search(['dabigatran'], 3) == fresh.engines['dense'].search(['dabigatran'], 3)


def test_gold_goes_with_all_its_chunks_and_mistyped_ids_are_counted(tmp_path):
    rows = records(5) + [dict(pmid=77, title='Long', abstract=' '.join(f'Sentence {i} about ivabradine and sinus rhythm.' for i in range(300)))]
    plan = jsonl(tmp_path/'r.jsonl', rows)
    with_gold = build_index(plan, tmp_path/'with', progress=False)
    assert len(with_gold.search(['ivabradine'], 50)[0]) > 3 and all(i.startswith('77#') for i in ids(with_gold.search(['ivabradine'], 50)[0]))
    safe = build_index(IndexPlan(plan.sources, 'lsa', exclude=('77', '78'), fields=FIELDS, modality='pubmed'), tmp_path/'safe', progress=False)
    assert safe.search(['ivabradine'], 50) == [[]] and safe.about['counts']["of note: ids to exclude that never came (the first is '78')"] == 1


@pytest.mark.parametrize('text', ['Lithium.', 'x', '0.5 mg', 'Lithium lithium lithium ' * 4000])
def test_one_document(tmp_path, text):
    index = build_index(jsonl(tmp_path/'r.jsonl', [dict(pmid=1, abstract=text)]), tmp_path/'i', progress=False)
    word = text.split()[0]
    found = index.search([word, 'zolpidem', ''], 5)
    assert len(found[0]) >= 1 and found[1:] == [[], []]


def test_long_queries_are_refused_in_words(tmp_path):
    index = build_index(jsonl(tmp_path/'r.jsonl', records()), tmp_path/'i', progress=False)
    huge = 'lithium ' * 1_250_000
    for engine in (index, *index.engines.values()):
        with pytest.raises(MedAgentError, match=f'10,000,000 characters.*at most {MAX_QUERY:,}'): engine.search(['lithium', huge], 5)
    call, = open_toolbox({'pubmed_search': tmp_path/'i'}).call([('pubmed_search', huge)])
    assert 'characters' in call.error and not call.passages


def test_parts_that_do_not_belong_together_are_refused(tmp_path):
    plan = jsonl(tmp_path/'r.jsonl', records())
    build_index(plan, tmp_path/'a', progress=False)
    build_index(jsonl(tmp_path/'s.jsonl', records(20)), tmp_path/'b', progress=False)
    for part in ('corpus', 'bm25', 'dense'):
        shutil.copytree(tmp_path/'a', tmp_path/'c')
        shutil.rmtree(tmp_path/'c'/part)
        shutil.copytree(tmp_path/'b'/part, tmp_path/'c'/part)
        with pytest.raises(MedAgentError): open_index(tmp_path/'c')
        shutil.rmtree(tmp_path/'c'/part)
        with pytest.raises(MedAgentError): open_index(tmp_path/'c')
        shutil.rmtree(tmp_path/'c')
    (tmp_path/'a'/'index.json').write_text('[]')
    with pytest.raises(MedAgentError, match='build the index again'): open_index(tmp_path/'a')


REAL = {'pubmed': ('pubmed_xml/pubmedsample18n0001.xml.gz', 'simvastatin modification'), 'spl': ('labels/spl', 'boxed warning'), 'openfda': ('labels/openfda', 'acetaminophen liver warning'),
        'obo': ('kg/disease_ontology_DO_rare_slim.obo.gz', 'cystic fibrosis'), 'drugmechdb': ('kg/drugmechdb_indication_paths.yaml.gz', 'imatinib'), 'drugbank': ('kg/drugbank_fixture/drugbank_record.xml.gz', 'bivalirudin'),
        'umls': ('kg/umls_sample_nci', '1,2-dipalmitoylphosphatidylcholine'), 'hetionet_tables': ('kg/hetionet-v1.0-nodes.tsv.gz', 'metformin'), 'mesh': ('kg/mesh_desc2015_subset.xml', 'calcimycin')}


@pytest.mark.skipif(not SHARED.exists(), reason='the shared data are not here')
@pytest.mark.parametrize('kind', REAL)
def test_real_sources_become_an_index_by_one_command(tmp_path, kind):
    path, query = REAL[kind]
    if not (SHARED/path).exists(): pytest.skip(f'{path} is not here')
    built = medagent('build', tmp_path/'i', '--source', f'{kind}={SHARED/path}', '--encoder', 'lsa')
    assert built.exit_code == 0, built.output + built.stderr
    assert 'peak memory' in built.output
    found = medagent('search', tmp_path/'i', query, 'qqqzzz')
    assert found.exit_code == 0 and found.output.startswith(f'{query}:\n  1  ') == (kind != 'hetionet_tables') and found.output.endswith('qqqzzz:\nnothing found\n'), found.output      # names without relations say nothing
    assert medagent('show', tmp_path/'i').output.startswith(f'{kind}: ')


def test_fields_and_gold_on_the_command_line(tmp_path):
    with gzip.open(tmp_path/'r.jsonl.gz', 'wt') as f: f.writelines(json.dumps(r) + '\n' for r in records())
    (tmp_path/'gold.txt').write_text('1\n11\n21\n31\n')
    built = medagent('build', tmp_path/'i', '--source', f'jsonl={tmp_path/"r.jsonl.gz"}', '--field', 'id=pmid', '--field', 'text=abstract', '--field', 'title=title', '--exclude', tmp_path/'gold.txt', '--encoder', 'lsa')
    assert built.exit_code == 0 and '36' in built.output, built.output + built.stderr
    found = medagent('search', tmp_path/'i', 'lithium', '-k', '3', '--engine', 'bm25')
    assert found.output == 'nothing found\n'
    assert medagent('search', tmp_path/'i', 'warfarin', '-k', '2').output.count('Warfarin in practice') == 2


@pytest.mark.parametrize('words, message', [
    (('build', 'i', '--source', 'pubmed'), 'expected --source pubmed=downloads/baseline'), (('build', 'i', '--source', 'pubmde=r.jsonl'), "unknown format 'pubmde'"), (('build', 'i', '--source', 'pubmed=nowhere'), 'no such file or folder'),
    (('build', 'i', '--source', 'pubmed=r.jsonl', '--encoder', 'lsa'), 'r.jsonl'), (('build', 'i', '--source', 'jsonl=r.jsonl'), 'need to know their fields'), (('build', 'i', '--source', 'jsonl=r.jsonl', '--field', 'id=pmid', '--field', 'txt=abstract'), 'txt'),
    (('build', 'i', '--source', 'jsonl=r.jsonl', '--field', 'id=pmid', '--field', 'text=abstract', '--encoder', 'no-such-model'), 'no sentence-transformers model'),
    (('build', 'i', '--source', 'jsonl=r.jsonl', '--field', 'id=pmid', '--field', 'text=abstract', '--overlap', '500', '--encoder', 'lsa'), 'overlap must be below half'),
    (('build', 'i', '--source', 'jsonl=r.jsonl', '--field', 'id=pmid', '--field', 'text=nothing', '--encoder', 'lsa'), 'no passages came'), (('build', 'i', '--source', 'umls=r.jsonl'), 'r.jsonl'), (('build', 'i', '--source', 'jsonl=r.jsonl', '--exclude', 'nowhere.txt'), 'nowhere.txt'),
    (('search', 'i', 'x'), 'no finished index'), (('show', 'i'), 'no finished index')])
def test_bad_requests_are_messages(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    jsonl(Path('r.jsonl'), records(3))
    (tmp_path/'settings.ini').write_text('[DEFAULT]\nlib_name = medagent\ndata_path = data\noutputs_path = outputs\nseed = 42\nthreads = 1\ndevice = auto\n')
    done = medagent(*words)
    assert done.exit_code == 2 and message in done.stderr and 'Traceback' not in done.output, done.output + done.stderr


def test_hostile_passages_cannot_write_to_the_terminal(tmp_path):
    rows = [dict(pmid='p\u202e1', title='Ti\x1b[2Jtle\n 1  9.9  forged', abstract='Lithium \x1b]0;owned\x07 and \x9b31m colour\r\n  1  1.0  forged line')]
    rows[0]['pmid'] = 'p1'
    build_index(jsonl(tmp_path/'r.jsonl', rows), tmp_path/'i', progress=False)
    shown = medagent('search', tmp_path/'i', 'lithium').output
    assert not any(c in shown for c in '\x1b\x07\x9b\r') and len(shown.splitlines()) == 2


def test_three_folders_are_the_tools_of_an_agent(tmp_path):
    (tmp_path/'g.md').write_text('# Lithium\n\nCheck the level every three months.\n')
    (tmp_path/'k.obo').write_text('format-version: 1.2\n\n[Term]\nid: DOID:1\nname: bipolar disorder\nis_a: DOID:2\n\n[Term]\nid: DOID:2\nname: mood disorder\n')
    build_index(IndexPlan((('guidelines', str(tmp_path/'g.md')),), encoder='lsa'), tmp_path/'g', progress=False)
    build_index(IndexPlan((('obo', str(tmp_path/'k.obo')),)), tmp_path/'k', progress=False)
    build_index(jsonl(tmp_path/'r.jsonl', records()), tmp_path/'p', progress=False)
    box = open_toolbox(dict(guideline_search=tmp_path/'g', kg_query=tmp_path/'k', pubmed_search=tmp_path/'p'), k=3)
    calls = box.call([('guideline_search', 'lithium level'), ('kg_query', 'bipolar disorder'), ('pubmed_search', 'lithium'), ('kg_query', 'gout'), ('web', 'x')])
    assert [len(c.passages) for c in calls] == [1, 1, 3, 0, 0] and calls[4].error and all(c.error is None for c in calls[:4])
    assert calls[2].similarity > .3 and calls[3].similarity is None


def test_a_failed_first_build_does_not_block_the_folder(tmp_path):
    plan = jsonl(tmp_path/'r.jsonl', records(5))
    with pytest.raises(MedAgentError, match='no passages came'): build_index(IndexPlan(plan.sources, 'lsa', fields=(('id', 'pmid'), ('text', 'nothing'))), tmp_path/'i', progress=False)
    assert len(build_index(plan, tmp_path/'i', progress=False).engines['bm25'].passages) == 5


def test_ids_with_spaces_and_a_byte_order_mark_are_excluded(tmp_path):
    (tmp_path/'g').mkdir()
    for name in ('my doc', 'other'): (tmp_path/'g'/f'{name}.txt').write_text(f'Text of {name} about lithium.')
    (tmp_path/'gold.txt').write_bytes('guideline:my doc:s000\r\nnot there\r\n'.encode('utf-8-sig'))
    built = medagent('build', tmp_path/'i', '--source', f'guidelines={tmp_path/"g"}', '--exclude', tmp_path/'gold.txt', '--encoder', 'lsa')
    assert built.exit_code == 0 and "never came (the first is 'not there')" in built.stderr, built.output + built.stderr
    assert ids(open_index(tmp_path/'i').search(['lithium'], 5)[0]) == ['guideline:other:s000']
    with pytest.raises(MedAgentError, match='a graph has no passages to exclude'): IndexPlan((('obo', str(tmp_path/'gold.txt')),), exclude=('x',))


def test_a_huge_k_is_all_there_is(tmp_path):
    index = build_index(jsonl(tmp_path/'r.jsonl', records(5)), tmp_path/'i', progress=False)
    assert all(len(index.engines[e].search(['treatment weeks'], 10**12)[0]) == 5 for e in ('bm25', 'hybrid'))


@pytest.mark.parametrize('part', ['bm25/passages.npy', 'bm25/corpus_hash.txt', 'dense/vectors.npy', 'dense/index.faiss', 'dense/index.json', 'encoder.npz', 'corpus/corpus.json', 'index.json'])
@pytest.mark.parametrize('damage', ['gone', 'empty', 'list'])
def test_the_same_command_repairs_a_damaged_part(tmp_path, part, damage):
    plan = jsonl(tmp_path/'r.jsonl', records(12))
    whole = build_index(plan, tmp_path/'i', progress=False)
    expected = whole.search(['warfarin INR'], 5), whole.engines['dense'].search(['lithium'], 3)
    del whole       # a mapped file that is cut off ends the process
    if damage == 'gone': (tmp_path/'i'/part).unlink()
    else: (tmp_path/'i'/part).write_bytes(b'' if damage == 'empty' else b'[]')
    with pytest.raises(MedAgentError): open_index(tmp_path/'i')
    again = build_index(plan, tmp_path/'i', progress=False)
    assert (again.search(['warfarin INR'], 5), again.engines['dense'].search(['lithium'], 3)) == expected


def test_an_update_that_fails_leaves_the_index_as_it_was(tmp_path):
    plan = jsonl(tmp_path/'r.jsonl', records(12))
    before = build_index(plan, tmp_path/'i', progress=False).search(['warfarin INR'], 5)
    (tmp_path/'cut.jsonl.gz').write_bytes(gzip.compress(json.dumps(records(3)[0]).encode()*200)[:-9])
    for bad in (IndexPlan((('jsonl', str(tmp_path/'cut.jsonl.gz')),), 'lsa', fields=FIELDS), IndexPlan(plan.sources, 'lsa', overlap=600, fields=FIELDS), IndexPlan(plan.sources, 'lsa', fields=(('id', 'pmid'), ('text', 'nothing')))):
        with pytest.raises(MedAgentError): build_index(bad, tmp_path/'i', update=True, progress=False)
        assert open_index(tmp_path/'i').search(['warfarin INR'], 5) == before and build_index(plan, tmp_path/'i', progress=False).search(['warfarin INR'], 5) == before


def test_a_foreign_graph_is_refused(tmp_path):
    for name in 'ab':
        (tmp_path/f'{name}.obo').write_text(f'format-version: 1.2\n\n[Term]\nid: DOID:1\nname: disease {name}\nis_a: DOID:2\n\n[Term]\nid: DOID:2\nname: disorder\n')
        build_index(IndexPlan((('obo', str(tmp_path/f'{name}.obo')),)), tmp_path/name, progress=False)
    shutil.copy(tmp_path/'a'/'graph.sqlite', tmp_path/'b'/'graph.sqlite')
    with pytest.raises(MedAgentError, match='not the one that was built here'): open_index(tmp_path/'b')


def test_a_file_that_moved_within_its_folder_is_another_corpus(tmp_path):
    "Its passages have other ids."
    for name in ('x', 'y'): (tmp_path/'g'/name).mkdir(parents=True)
    (tmp_path/'g'/'x'/'m.md').write_text('# Lithium\n\nCheck the level.\n')
    plan = IndexPlan((('guidelines', str(tmp_path/'g')),), encoder='lsa')
    build_index(plan, tmp_path/'i', progress=False)
    (tmp_path/'g'/'x'/'m.md').rename(tmp_path/'g'/'y'/'m.md')
    with pytest.raises(MedAgentError, match='files differ'): build_index(plan, tmp_path/'i', progress=False)
    assert ids(build_index(plan, tmp_path/'i', update=True, progress=False).search(['lithium'], 1)[0])[0].startswith('guideline:y/m')
