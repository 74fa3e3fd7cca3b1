"What the graph and its readers promise beyond the lessons of their notebooks."
import gzip
import json
import random
import sqlite3
import string
import tracemalloc
import zipfile
from itertools import chain, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medagent.retrieval import graph_store
from medagent.retrieval.graph import Alias, GraphIndex, GraphReport, Kind, Name, Note, Record, Relation, Triple, build_graph
from medagent.retrieval.graph_sources import (READERS, read_drugbank, read_drugmechdb, read_graph, read_hetionet, read_hetionet_tables, read_hpoa, read_indications, read_mesh, read_obo, read_pubtator,
                                              read_twosides, read_umls)
from medagent.settings import MedAgentError

KG = Path(__file__).parents[2]/'shared'/'data'/'kg'
real = pytest.mark.skipif(not KG.is_dir(), reason='needs the shared real files')


def reasons(report: GraphReport) -> dict[str, int]: return {reason: n for (_, reason), n in report.skipped.items()}


def found(graph: GraphIndex, query: str, k: int = 5) -> list[str]: return [h.passage.id for h in graph.search([query], k)[0]]


def read(kind: str, path: Path) -> tuple[list[Record], GraphReport]:
    report = GraphReport()
    return list(read_graph([(kind, path)], report)), report


def count(records: list[Record], kind: type) -> int: return sum(type(r) is kind for r in records)

# ---------------------------------------------------------------- the real files

REAL = [  # format, file, least names, relations, a query, a word of its first passage
    ('umls', 'umls_sample_nci', 12_000, 4_900, 'mesna for cystitis', 'may prevent'),
    ('umls', 'umls_fixture_scispacy', 3, 0, '1,2-dipalmitoylphosphatidylcholine', 'liposomes'),
    ('drugbank', 'drugbank_fixture/drugbank_record.xml.gz', 400, 400, 'half-life of lepirudin', '1.3 hours'),
    ('drugbank', 'drugbank_fixture/drugbank_record_biotech.xml.gz', 600, 650, 'half-life of lepirudin', 'half-life'),
    ('drugbank', 'drugbank_fixture/drugbank_record_small_molecule.xml.gz', 600, 650, 'bivalirudin with apixaban', 'Apixaban may increase'),
    ('obo', 'disease_ontology_DO_rare_slim.obo.gz', 13_000, 1_600, "Kartagener's syndrome", 'situs inversus'),
    ('obo', 'hpo_hp.obo.gz', 60_000, 23_000, 'overactive bladder syndrom', ''),
    ('hpoa', 'hpo_phenotype_first3000.hpoa.gz', 2_900, 2_900, '', ''),
    ('doid_tsv', 'disease_ontology_HumanDO.tsv.gz', 12_000, 12_000, '3-M syndrome', 'is a syndrome'),
    ('mesh', 'mesh_desc2015_subset.xml', 5, 5, 'calcimycin', 'ionophorous'),
    ('mesh_tsv', 'mesh2015_terms.tsv.gz', 27_000, 0, '', ''),
    ('mesh_tsv', 'mesh2015_tree-numbers.tsv.gz', 56_000, 56_000, 'acute abdomen', 'narrower than Abdominal Pain'),
    ('hetionet', 'hetionet_bupropion-CbGpPWpGaD-subgraph.json.xz', 3_000, 18_474, 'bupropion and nicotine dependence', 'CHRNA3'),
    ('hetionet', 'hetionet_random-subgraph.json.xz', 1_155, 3_123, '', ''),
    ('hetionet_tables', 'hetionet-v1.0-nodes.tsv.gz', 47_031, 0, '', ''),
    ('indications', 'pharmacotherapydb_indications.tsv', 2_700, 1_388, 'donepezil', "Alzheimer's disease"),
    ('rxnorm', 'rxnorm_bioportal_first3000.csv.gz', 4_000, 0, '', ''),
    ('twosides', 'twosides_sample.zip', 700, 350, 'calcitriol with insulin glargine', 'reporting ratio'),
    ('onsides', 'onsides_sample.zip', 100, 2, 'prasugrel', 'adverse effect'),
    ('pubtator', 'bc5cdr_sample.pubtator.txt', 900, 120, 'lidocaine cardiac asystole', 'induces'),
]


@real
@pytest.mark.parametrize(['kind', 'file', 'names', 'relations', 'query', 'word'], [pytest.param(*r, id=r[1], marks=[pytest.mark.slow] if 'tree-numbers' in r[1] else []) for r in REAL])
def test_real_file(kind, file, names, relations, query, word):
    records, report = read(kind, KG/file)
    assert count(records, Name) >= names and count(records, Relation) >= relations
    assert not [r for r in reasons(report) if 'row without' in r and 'fields' in r] and not [r for r in reasons(report) if 'another form' in r]
    if word: assert word in build_graph(records, None).search([query], 1)[0][0].passage.text


@real
@pytest.mark.slow
def test_real_drugmechdb():
    records, report = read('drugmechdb', KG/'drugmechdb_indication_paths.yaml.gz')
    assert sum(r.predicate == 'is indicated for' for r in records if type(r) is Relation) == 4846 and not report.skipped
    g = build_graph(records, None)
    assert 'Aminobenzoic acid is indicated for Dermatomyositis' in g.search(['aminobenzoic acid in dermatomyositis'], 1)[0][0].passage.text


@real
def test_real_sources_join_in_any_order(tmp_path):
    sources = [('drugbank', p) for p in sorted((KG/'drugbank_fixture').iterdir())] + [('indications', KG/'pharmacotherapydb_indications.tsv'), ('hetionet', KG/'hetionet_random-subgraph.json.xz')]
    one, two = (build_graph(read_graph(s, GraphReport()), tmp_path/f'{i}.sqlite') for i, s in enumerate((sources, sources[::-1])))
    assert one.hash == two.hash == GraphIndex.open(tmp_path/'0.sqlite').hash
    queries = ['bivalirudin and lepirudin', 'donepezil', 'bivalirudn half-life']
    assert one.search(queries, 5) == two.search(queries, 5) and all(one.search(queries, 5))

# ---------------------------------------------------------------- UMLS

CONSO = '{cui}|{lat}|{ts}|L1|{stt}|S1|{pref}|A1||||{sab}|PT|X|{text}|0|{sup}||'
REL = '{one}|A1|AUI|{rel}|{two}|A2|AUI|{rela}|R1||NDF|NDF|||{sup}||'


def conso(text, cui='C0000001', lat='ENG', ts='P', stt='PF', pref='Y', sab='MSH', sup='N'): return CONSO.format(**locals())
def rel(rela='', rel='RO', one='C0000001', two='C0000002', sup='N'): return REL.format(**locals())


def umls(folder: Path, names: list[str], relations: list[str] = (), **more: str) -> tuple[GraphIndex, GraphReport]:
    (folder/'MRCONSO.RRF').write_text('\n'.join(names))
    (folder/'MRREL.RRF').write_text('\n'.join(relations))
    for name, text in more.items(): (folder/f'{name}.RRF').write_text(text)
    report = GraphReport()
    return build_graph(read_umls(folder, report), None, report), report


PAIR = [conso('Alphadrug'), conso('Betaitis', 'C0000002')]


@pytest.mark.parametrize(['row', 'says'], [
    (rel('may_be_treated_by'), 'Alphadrug may treat Betaitis'),             # C2 may be treated by C1
    (rel('may_treat', one='C0000002', two='C0000001'), 'Alphadrug may treat Betaitis'),
    (rel('isa', 'CHD'), 'Betaitis is a Alphadrug'),                         # C2 is the child
    (rel('inverse_isa', 'PAR'), 'Alphadrug is a Betaitis'),
    (rel('', 'CHD'), 'Betaitis is narrower than Alphadrug'),
    (rel('', 'PAR'), 'Alphadrug is narrower than Betaitis'),
    (rel('', 'RB'), 'Alphadrug is narrower than Betaitis'),
    (rel('', 'RN'), 'Betaitis is narrower than Alphadrug'),
    (rel('consists_of'), 'Betaitis consists of Alphadrug'),
    (rel('constitutes'), 'Alphadrug consists of Betaitis'),
    (rel('strange_relation'), 'Betaitis strange relation Alphadrug'),
])
def test_umls_direction(tmp_path, row, says):
    g, _ = umls(tmp_path, PAIR, [row])
    assert [h.passage.text for h in g.search(['alphadrug'], 5)[0]] == [f'{says}. Source: UMLS/NDF (R1).']


@pytest.mark.parametrize(['row', 'reason'], [
    (rel(rel='XR'), 'relation that is no fact (XR)'), (rel(rel='SIB'), 'relation that is no fact (SIB)'), (rel('mapped_to', 'RN'), 'relation that is no fact (variant or mapping)'),
    (rel('may_treat', sup='O'), 'suppressed relation'), (rel('may_treat', two='C0000001'), 'relation of a concept to itself'), (rel(rel='ZZ'), 'relation of an unknown type'),
    (rel('may_treat', two='C7777777'), 'relation to a concept without a name'), ('C0000001|A1|AUI|RO', 'MRREL: row without 16 fields'), (rel('may_treat', one='X1'), 'MRREL: row without a CUI')])
def test_umls_relations_that_are_left_out(tmp_path, row, reason):
    g, report = umls(tmp_path, PAIR, [rel('may_be_prevented_by'), row])
    assert reasons(report)[reason] == 1 and len(found(g, 'alphadrug')) == 1


def test_umls_names(tmp_path):
    rows = [*PAIR, conso('Old name', sup='O'), conso('Alt', sup='E'), conso('Name caché', lat='FRE'), conso('Second', ts='S'), conso('A Lesser', pref='N'), 'C0000001|ENG', 'C0000009|ENG|P|L1|PF|S1|Y|A1||||MSH|PT|X|!!!|0|N||', conso('crlf name') + '\r']
    g, report = umls(tmp_path, rows)
    assert reasons(report)['suppressed name'] == 2 and reasons(report)['name in another language'] == 1 and reasons(report)['name without a word'] == 1
    assert g.concepts(g.link('second')) == [('UMLS:C0000001', 'Alphadrug')] and g.link('crlf name') and not g.link('old name') and not g.link('cache')


def test_umls_other_files(tmp_path):
    g, report = umls(tmp_path, PAIR, [rel('blub_by')], MRDOC='RELA|blub|rela_inverse|blub_by|\nRELA|blub_by|rela_inverse|blub|\nSAB|x|expanded_form|y|',
                     MRDEF='C0000001|A1|AT1||MSH|A drug.|N||\nC0000001|A1|AT1||MSH|Withdrawn.|Y||\nC0000001', MRSTY='C0000001|T121|A1|Pharmacologic Substance|AT|256|')
    assert [h.passage.text for h in g.search(['alphadrug'], 5)[0]] == ['Alphadrug: A drug. Source: UMLS/MSH (UMLS:C0000001).', 'Alphadrug blub Betaitis. Source: UMLS/NDF (R1).']
    assert reasons(report)['suppressed definition'] == 1 and reasons(report)['MRDEF: row without 8 fields'] == 1


def test_umls_vocabulary_filter_and_wrong_files(tmp_path):
    (tmp_path/'MRCONSO.RRF').write_text('\n'.join([conso('Kept'), conso('Dropped', 'C0000002', sab='SNOMEDCT_US')]))
    report = GraphReport()
    g = build_graph(read_umls(tmp_path, report, sources=('MSH',)), None, report)
    assert g.link('kept') and not g.link('dropped') and reasons(report)['vocabulary that was not asked for'] == 1
    (tmp_path/'MRCONSO.RRF').write_text('name,code\naspirin,1\n')
    with pytest.raises(MedAgentError, match='none of its rows'): list(read_umls(tmp_path, GraphReport()))
    with pytest.raises(MedAgentError, match='no MRCONSO'): list(read_umls(tmp_path/'elsewhere', GraphReport()))
    (tmp_path/'MRCONSO.RRF').unlink()
    (tmp_path/'MRCONSO.RRF.gz').write_bytes(gzip.compress('\n'.join([conso(f'Name {i}') for i in range(5000)]).encode())[:400])
    with pytest.raises(MedAgentError, match='only partly downloaded'): list(read_umls(tmp_path, GraphReport()))

# ---------------------------------------------------------------- DrugBank

DRUG = '<drug type="x"><drugbank-id primary="true">DB{0:05d}</drugbank-id><name>Drug{1}</name>{2}</drug>'
INTERACTION = '<drug-interactions><drug-interaction><drugbank-id>DB{:05d}</drugbank-id><name>{}</name><description>{}</description></drug-interaction></drug-interactions>'


def drugbank(path: Path, *drugs: str, ns: str = ' xmlns="http://www.drugbank.ca"') -> tuple[list[Record], GraphReport]:
    path.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n<drugbank{ns} version="5.1">{"".join(drugs)}</drugbank>', encoding='utf-8')
    return read('drugbank', path)


@pytest.mark.parametrize('ns', [' xmlns="http://www.drugbank.ca"', ''])
def test_drugbank_minimal_records(tmp_path, ns):
    records, report = drugbank(tmp_path/'d.xml', DRUG.format(1, 'one', ''), DRUG.format(2, 'two', '<synonyms/><targets/><drug-interactions/>'), '<drug/>', '<drug><drugbank-id>DB00003</drugbank-id></drug>',
                               '<drug><drugbank-id>OLD</drugbank-id><drugbank-id primary="true">DB00004</drugbank-id><name>Four &amp; five</name></drug>', ns=ns)
    assert [r for r in records if type(r) in (Name, Alias)] == [Name('DRUGBANK:DB00001', 'Drugone', 0), Name('DRUGBANK:DB00002', 'Drugtwo', 0), Name('DRUGBANK:DB00004', 'Four & five', 0), Alias('DRUGBANK:OLD', 'DRUGBANK:DB00004')]
    assert reasons(report) == {'drug without an id': 1, 'drug without a name': 1}


def test_drugbank_interaction_of_a_pair_is_kept_once(tmp_path):
    both = 'One raises two.'
    records, report = drugbank(tmp_path/'d.xml', DRUG.format(1, 'one', INTERACTION.format(2, 'Drugtwo', both)), DRUG.format(2, 'two', INTERACTION.format(1, 'Drugone', both)),
                               DRUG.format(3, 'three', INTERACTION.format(3, 'Drugthree', 'itself')), DRUG.format(4, 'four', INTERACTION.format(1, 'Drugone', '')), DRUG.format(5, 'five', INTERACTION.format(99, 'Drugelse', 'Far.')))
    g = build_graph(records, None, report)
    assert g.meta['edge'] == '3' and reasons(report)['interaction without another drug'] == 1
    assert [h.passage.text for h in g.search(['drugtwo drugone'], 1)[0]] == ['One raises two. Source: DrugBank 5.1.']
    assert g.search(['drugfour'], 1)[0][0].passage.text == 'Drugone interacts with Drugfour. Source: DrugBank 5.1.'
    assert found(g, 'drugelse') == ['DrugBank:DB00005+DB00099']           # named only as a partner
    assert len(found(g, 'drugone and drugfive')) == 3 and not any(' + ' in i for i in found(g, 'drugone and drugfive'))      # nothing joins them: their own facts, no path


def test_drugbank_two_wordings_are_counted(tmp_path):
    records, report = drugbank(tmp_path/'d.xml', DRUG.format(1, 'one', INTERACTION.format(2, 'Drugtwo', 'B said.')), DRUG.format(2, 'two', INTERACTION.format(1, 'Drugone', 'A said.')))
    for order in (records, records[::-1]):
        report = GraphReport()
        assert build_graph(order, None, report).search(['drugone'], 1)[0][0].passage.text.startswith('A said.')
        assert reasons(report) == {'second wording of one passage': 1}


@pytest.mark.parametrize(['text', 'match'], [
    ('', 'no element|breaks off'), ('not xml', 'breaks off'), ('<html><body/></html>', 'found <html>'), ('<drugbank/>', 'has no <drug>'), ('<drugbank><drug><name>x', 'breaks off'),
    ('<!DOCTYPE drugbank [<!ENTITY a "aa"><!ENTITY b "&a;&a;&a;">]><drugbank><drug><name>&b;</name></drug></drugbank>', 'declares entities'),
    ('<!DOCTYPE drugbank [<!ENTITY x SYSTEM "file:///etc/passwd">]><drugbank><drug><name>&x;</name></drug></drugbank>', 'declares entities')])
def test_drugbank_wrong_files(tmp_path, text, match):
    (tmp_path/'d.xml').write_text(text)
    with pytest.raises(MedAgentError, match=match): read('drugbank', tmp_path/'d.xml')


def test_drugbank_outside_definitions_are_not_fetched(tmp_path):
    (tmp_path/'drugbank.dtd').write_text('<!ENTITY secret "Leaked">')
    (tmp_path/'d.xml').write_text(f'<!DOCTYPE drugbank SYSTEM "{tmp_path}/drugbank.dtd"><drugbank>{DRUG.format(1, "one", "")}</drugbank>')
    assert 'Leaked' not in str(read('drugbank', tmp_path/'d.xml'))


def test_drugbank_in_a_zip(tmp_path):
    drugbank(tmp_path/'full database.xml', DRUG.format(1, 'one', ''))
    with zipfile.ZipFile(tmp_path/'all.zip', 'w') as z: z.write(tmp_path/'full database.xml', 'full database.xml')
    assert read('drugbank', tmp_path/'all.zip')[0] == read('drugbank', tmp_path/'full database.xml')[0]
    with zipfile.ZipFile(tmp_path/'all.zip', 'a') as z: z.writestr('other.xml', '<x/>')
    with pytest.raises(MedAgentError, match='expected one file'): read('drugbank', tmp_path/'all.zip')
    (tmp_path/'all.zip').write_bytes((tmp_path/'all.zip').read_bytes()[:60])
    with pytest.raises(MedAgentError, match='damaged'): read('drugbank', tmp_path/'all.zip')


def peak(work) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally: tracemalloc.stop()


def test_reading_drugbank_takes_the_memory_of_a_record(tmp_path):
    "By the peak memory of a process of its own, since libxml2 allocates outside Python."
    if not Path('/proc/self/status').exists(): pytest.skip('reads the peak from /proc')
    import subprocess
    import sys
    filling = '<description>' + 'words and words ' * 1000 + '</description>'
    code = 'import re, sys; from medagent.retrieval.graph import GraphReport; from medagent.retrieval.graph_sources import read_drugbank; n = sum(1 for _ in read_drugbank(sys.argv[1], GraphReport())); print(n, re.search(r"VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read())[1])'
    peaks = []
    for n in (50, 1500):      # 1 and 24 MB
        drugbank_text = ''.join(DRUG.format(i, f'n{i}', filling) for i in range(n))
        (tmp_path/'d.xml').write_text(f'<drugbank xmlns="http://www.drugbank.ca">{drugbank_text}</drugbank>')
        records, kb = subprocess.run([sys.executable, '-c', code, str(tmp_path/'d.xml')], capture_output=True, text=True, check=True).stdout.split()
        assert int(records) == 3*n      # name, kind, note
        peaks.append(int(kb))
    assert peaks[1] < peaks[0] + 10_000

# ---------------------------------------------------------------- ontologies and tables

OBO = 'format-version: 1.2\n\n'


def obo(path: Path, text: str) -> tuple[list[Record], GraphReport]:
    path.write_text(OBO + text, encoding='utf-8')
    return read('obo', path)


def test_obo_traps(tmp_path):
    records, report = obo(tmp_path/'x.obo', r'''[Term]
id: DOID:1
name: first: with a colon
def: "Says \"so\", twice." [url:https\://x.org "not this"]
synonym: "the \"exact\" one" EXACT OMO:0003012 []
synonym: "wider" BROAD []
synonym: broken EXACT
is_a: DOID:2 {source="x"} ! second
relationship: part_of DOID:3 ! third
relationship: nothing

[Typedef]
id: part_of
name: part of

[Term]
id: DOID:4
name: obsolete first
is_obsolete: true
replaced_by: DOID:1

[Term]
name: no id

[Term]
id: DOID:5
name: last, without newline''')
    g = build_graph(records, None, report)
    assert [h.passage.text for h in g.search(['the exact one'], 5)[0]] == ['First: with a colon: Says "so", twice. Source: Disease Ontology (DOID:1).', 'First: with a colon is a second. Source: Disease Ontology (DOID:1).', 'First: with a colon part of third. Source: Disease Ontology (DOID:1).']
    assert not g.link('wider') and not g.link('obsolete first') and not g.link('part of') and g.link('last without newline')
    assert reasons(report) == {'synonym that is not exact': 2, 'relation without a target': 1, 'obsolete term': 1, 'term without an id or a name': 1}


def test_hpoa_negation_stays_negation(tmp_path):
    header = '#description: x\ndatabase_id\tdisease_name\tqualifier\thpo_id\treference\tevidence\tonset\tfrequency\tsex\tmodifier\taspect\tbiocuration\n'
    rows = ['OMIM:1\tSome disease\t\tHP:1\tPMID:1\tPCS\t\t\t\t\tP\tx', 'OMIM:1\tSome disease\tNOT\tHP:2\tPMID:1\tPCS\t\t\t\t\tP\tx', 'OMIM:1\tSome disease\tMAYBE\tHP:1\tPMID:1\tPCS\t\t\t\t\tP\tx', 'OMIM:1\tSome disease', 'OMIM:1\tSome disease\t\tHP1\tPMID:1\tPCS\t\t\t\t\tP\tx']
    (tmp_path/'h').write_text(header + '\n'.join(rows))
    records, report = read('hpoa', tmp_path/'h')
    assert [(r.predicate, r.object) for r in records if type(r) is Relation] == [('has phenotype', 'HP:1'), ('does not have phenotype', 'HP:2')]
    assert reasons(report) == {'row with an unknown code, aspect or qualifier': 2, 'row without 12 fields': 1}


def test_twosides_keeps_signals(tmp_path):
    header = 'drug_1_rxnorn_id,drug_1_concept_name,drug_2_rxnorm_id,drug_2_concept_name,condition_meddra_id,condition_concept_name,A,B,C,D,PRR,PRR_error,mean_reporting_frequency\n'
    rows = ['1,A,2,B,7,Rash,5,1,1,1,3.5,0,0', '2,B,1,A,8,Cough,5,1,1,1,2.5,0,0', '1,A,2,B,9,Fall,5,1,1,1,1.9,0,0', '1,A,2,B,9,Fall,2,1,1,1,9,0,0', '1,A,2,B,9,Fall,x,1,1,1,9,0,0', '1,A,1,A,9,Fall,5,1,1,1,9,0,0', '1,"A,2,B,9', '1,A,2,B,9,Fall,5,1,1,1,nan,0,0']
    (tmp_path/'t.csv').write_text(header + '\n'.join(rows))
    records, report = read('twosides', tmp_path/'t.csv')
    assert [r.passage for r in records if type(r) is Relation] == ['TWOSIDES:1+2:7', 'TWOSIDES:1+2:8']
    assert reasons(report) == {'below the threshold of a signal': 3, 'row with an empty field or a bad number': 2, 'row without 13 fields': 1}
    assert build_graph(records, None).meta['edge'] == '2'


def test_hetionet_tables_and_json_say_the_same(tmp_path):
    (tmp_path/'n').write_text('id\tname\tkind\nCompound::DB1\tDruga\tCompound\nGene::7\tGENE7\tGene\nGene::8\tGENE8\tGene\nnothing\tx\tGene\n')
    (tmp_path/'e').write_text('source\tmetaedge\ttarget\nCompound::DB1\tCbG\tGene::7\nGene::7\tGr>G\tGene::8\nGene::8\tGiG\tGene::7\nGene::8\t??\tGene::7\n')
    report = GraphReport()
    tables = list(read_hetionet_tables(tmp_path/'n', report, tmp_path/'e'))
    assert reasons(report) == {'node of another form': 1, 'edge of another form': 1}
    node = lambda k, i, n: dict(kind=k, identifier=i, name=n, data={})
    edge = lambda a, b, kind, d='both': dict(source_id=a, target_id=b, kind=kind, direction=d, data={})
    whole = dict(extra=[1, {'nodes': []}], nodes=[node('Compound', 'DB1', 'Druga'), node('Gene', 7, 'GENE7'), node('Gene', 8, 'GENE8'), {'kind': 'Gene'}, 7],
                 edges=[edge(['Compound', 'DB1'], ['Gene', 7], 'binds'), edge(['Gene', 7], ['Gene', 8], 'regulates', 'forward'), edge(['Gene', 8], ['Gene', 7], 'interacts'), {'kind': 'x'}], last=None)
    for indent in (None, 2):
        (tmp_path/'j').write_text(json.dumps(whole, indent=indent))
        records, report = read('hetionet', tmp_path/'j')
        assert records == tables and reasons(report) == {'node of another form': 2, 'edge of another form': 1}


@pytest.mark.parametrize('text', ['{"nodes": [{"kind": "Gene"', '{"nodes": [', '{"nodes" 1}', '[1, 2]', '{"a": 1}', '', 'x', '{"nodes": [1] "edges"', '{"a": ' + '['*100_000])
def test_hetionet_broken_json(tmp_path, text):
    (tmp_path/'j').write_text(text)
    with pytest.raises(MedAgentError, match='Hetionet|breaks off|too deeply'): read('hetionet', tmp_path/'j')


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=20), lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3), max_leaves=8), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_json_values_are_read_whatever_the_cut(tmp_path_factory, value, size):
    from medagent.retrieval import graph_sources
    path = tmp_path_factory.mktemp('json')/'j'
    path.write_text(json.dumps({'x': value, 'nodes': [value, 12345, value], 'y': 12}))
    found = list(graph_sources._values(path, ('nodes',)))
    assert found == [('', ('x', value)), ('nodes', value), ('nodes', 12345), ('nodes', value), ('', ('y', 12))]


def test_mesh_terms_and_tree(tmp_path):
    record = '<DescriptorRecord><DescriptorUI>{0}</DescriptorUI><DescriptorName><String>{1}</String></DescriptorName><TreeNumberList><TreeNumber>{2}</TreeNumber></TreeNumberList><ConceptList><Concept PreferredConceptYN="Y"><ScopeNote>Note {1}.</ScopeNote><TermList><Term><String>{1}</String></Term><Term><String>{1} entry</String></Term></TermList></Concept><Concept PreferredConceptYN="N"><TermList><Term><String>{1} narrow</String></Term></TermList></Concept></ConceptList></DescriptorRecord>'
    (tmp_path/'m').write_text('<?xml version="1.0"?><!DOCTYPE DescriptorRecordSet SYSTEM "http://127.0.0.1:9/desc.dtd"><DescriptorRecordSet>' + record.format('D1', 'Wide illness', 'C01.1') + record.format('D2', 'Small illness', 'C01.1.2') + '<DescriptorRecord/></DescriptorRecordSet>')
    records, report = read('mesh', tmp_path/'m')
    g = build_graph(records, None, report)
    assert 'Small illness is narrower than Wide illness. Source: MeSH (C01.1.2).' in [h.passage.text for h in g.search(['small illness entry'], 5)[0]]
    assert not g.link('narrow') and reasons(report) == {'term of a narrower concept': 2, 'descriptor without an id or a name': 1, 'relation to a concept without a name': 1}


def test_drugmechdb_bad_items(tmp_path):
    good = '- graph: {_id: P, drug_mesh: "MESH:D1", disease_mesh: "MESH:D2"}\n  nodes:\n  - {id: "MESH:D1", label: Drug, name: Yes}\n  - {id: "MESH:D2", label: Disease, name: Ill}\n  links:\n  - {source: "MESH:D1", key: treats, target: "MESH:D2"}\n'
    (tmp_path/'y').write_text('# head\n' + good + '- [unclosed\n- just text\n- {graph: 1}\n- !!python/object/apply:os.system ["touch x"]\n' + good)
    records, report = read('drugmechdb', tmp_path/'y')
    assert count(records, Relation) == 4 and sum(reasons(report).values()) == 4
    assert not (tmp_path/'x').exists()


@pytest.mark.parametrize('kind', sorted(READERS))
@pytest.mark.parametrize('data', [b'', b'\x00\xff\xfe' * 500, b'a,b\nc,d\n', b'<html></html>', gzip.compress(b'x' * 5000)[:40], b'PK\x03\x04rubbish', b'x' * 3_000_000], ids=['empty', 'binary', 'csv', 'html', 'truncated', 'zip', 'one line'])
def test_wrong_files_are_named(tmp_path, kind, data):
    (tmp_path/'MRCONSO.RRF' if kind == 'umls' else tmp_path/'f').write_bytes(data)
    with pytest.raises(MedAgentError, match='MRCONSO' if kind == 'umls' else str(tmp_path/'f')): read(kind, tmp_path if kind == 'umls' else tmp_path/'f')


def test_bad_lines_are_counted_and_the_rest_is_read(tmp_path):
    (tmp_path/'i').write_bytes(b'\xef\xbb\xbfdoid_id\tdrugbank_id\tdisease\tdrug\tcategory\nDOID:1\tDB1\tIll\tYes\tDM\nDOID:1\tDB1\t\xff\xfe\tYes\tDM\n' + b'x' * 2_500_000 + b'\n\n\nDOID:1\tDB2\tIll\tNo\tNOT')
    records, report = read('indications', tmp_path/'i')
    assert count(records, Relation) == 2 and reasons(report) == {'line that is not UTF-8': 1, 'line longer than a megabyte': 1}
    assert report.first['PharmacotherapyDB', 'line longer than a megabyte'] == 'i line 4' and len(report.table()) == 2


def test_missing_files_and_unknown_formats(tmp_path):
    with pytest.raises(MedAgentError, match='not found'): list(read_graph([('obo', tmp_path/'none')], GraphReport()))
    with pytest.raises(MedAgentError, match='unknown graph format'): list(read_graph([('owl', tmp_path)], GraphReport()))
    with pytest.raises(MedAgentError, match='cannot be read'): list(read_obo(tmp_path, GraphReport()))

# ---------------------------------------------------------------- linking

NAMES = ['aspirin', 'IL6', 'interleukin 6 receptor', 'CYP2C9', 'CYP2C19', 'prednisone', 'prednisolone', 'Hypertension', 'hypotension', 'hyperkalemia', 'hypokalemia', 'Diabetes Mellitus, Type 2', 'Diabetes Mellitus', 'heart failure', 'heart',
         'acetylsalicylic acid', 'methotrexate', 'interferon beta-1a', 'β-blocker', 'vinblastine', 'vincristine', 'Alzheimer disease', 'beta cell', 'the', 'fibrosis of lung']


@pytest.fixture(scope='module')
def names() -> GraphIndex:
    return build_graph(chain.from_iterable((Name(f'X:{n}', n), Relation(f'X:{n}', 'is treated with', 'X:aspirin', 'test')) for n in NAMES), None)


@pytest.mark.parametrize(['query', 'name', 'how'], [
    ('ASPIRIN?', 'aspirin', 'exact'), ('il-6', 'IL6', 'normalised'), ('interleukin-6 receptors', 'interleukin 6 receptor', 'normalised'), ('Alzheimer’s disease', 'Alzheimer disease', 'exact'), ('type 2 diabetes mellitus', 'Diabetes Mellitus, Type 2', 'normalised'),
    ('lung fibrosis', 'fibrosis of lung', 'normalised'), ('heart failures', 'heart failure', 'normalised'), ('hearts', 'heart', 'normalised'), ('beta blocker', 'β-blocker', 'exact'), ('methotrex', 'methotrexate', 'prefix'), ('metotrexate', 'methotrexate', 'fuzzy'), ('asprin', 'aspirin', 'fuzzy'),
    ('methotrexaet', 'methotrexate', 'fuzzy'), ('methotrexate', 'methotrexate', 'exact'), ('hypertensoin', 'Hypertension', 'fuzzy'), ('acetylsalicilic acid', 'acetylsalicylic acid', 'fuzzy'), ('hyperkalaemia', 'hyperkalemia', 'fuzzy')])
def test_levels(names, query, name, how):
    mention, = names.find(query)
    assert (names.concepts(mention.concepts)[0][1], mention.how) == (name, how)
    assert (mention.score == 1) == (how == 'exact') and mention.score >= 0.6


@pytest.mark.parametrize('query', ['CYP2C8', 'CYP2C190', 'IL-8', 'il7', 'predniso', 'prednisolne', 'hypertrophy', 'zolpidem', 'metho', 'meth', 'receptor', 'vin', 'vinristin', 'a', 'of the', '', ' ', '%', '*', 'treated', 'hyperlipidemia', 'hypotonia', 'tyep'])
def test_no_guess(names, query): assert names.find(query) == [] and names.search([query], 5) == [[]]


def test_longest_and_leftmost(names):
    assert [m.text for m in names.find('does heart failure hurt the heart in diabetes mellitus type 2 or diabetes mellitus?')] == ['heart failure', 'heart', 'diabetes mellitus type 2', 'diabetes mellitus']
    assert names.find('aspirin aspirin')[0] == names.find('aspirin')[0] and names.link('aspirin ASPIRIN') == names.link('aspirin')


def test_known_names_are_found_in_every_spelling(names):
    for n in NAMES:
        if n == 'the': continue
        for q in (n, n.upper(), f'what about {n}, please', n.replace('-', ' '), n.replace(' ', '-') if ' of ' not in n else n): assert f'X:{n}' in [c for m in names.find(q) for c, _ in names.concepts(m.concepts)], q


anything = st.text(st.characters(), max_size=60) | st.lists(st.sampled_from([*NAMES, 'what', 'treats', '-', 'asprin', "'; drop table edge; --", '\x00', '"', '%']), max_size=8).map(' '.join)


@given(anything)
@settings(max_examples=100, deadline=None)
def test_find_is_total_and_consistent(names, query):
    mentions = names.find(query)
    assert mentions == names.find(query)
    assert names.link(query) == list(dict.fromkeys(c for m in mentions for c in m.concepts))
    hits = names.search([query], 5)[0]
    assert all(0 < h.score <= 1 for h in hits) and [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
    if not mentions: assert not hits
    assert names.search([query, query], 5) == [hits, hits] and names.search([query], 2)[0] == hits[:2]


@given(st.text(string.ascii_lowercase, min_size=7, max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_one_edit_in_a_long_word_is_mended(word, data):
    g = build_graph([Name('X:1', word), Name('X:2', 'other thing'), Relation('X:1', 'joins', 'X:2')], None)
    i, c = data.draw(st.integers(0, len(word) - 1)), data.draw(st.sampled_from(string.ascii_lowercase))
    for other in (word[:i] + c + word[i+1:], word[:i] + word[i+1:], word[:i] + c + word[i:]):
        for m in g.find(other): assert m.score >= 0.6 and (m.how == 'exact') == (other == word)
        if len(other) >= 7 and other not in ('joins', 'other', 'thing') and not other.startswith('joins'): assert g.find(other), (word, other)


def test_too_long_queries_and_names():
    long = ' '.join(f'w{i}' for i in range(100))
    report = GraphReport()
    g = build_graph([Name('X:1', long), Name('X:2', ' '.join(long.split()[:64])), Relation('X:1', 'joins', 'X:2')], None, report)
    assert reasons(report) == {'name of more than 64 words: shown, not searched': 1}
    assert g.concepts(g.link(long))[0][0] == 'X:2'
    for graph in (g, GraphIndex([]), GraphIndex([Triple('a drug', 'is', 'fine', '1', 'text')])):
        with pytest.raises(MedAgentError, match='at most 20,000'): graph.search(['x ' * 5_000_000], 5)
        assert graph.search(['unseen words ' * 1500], 5) == [[]]


def test_a_long_query_is_read_in_reasonable_time(names):
    from time import process_time
    start = process_time()
    names.search([' '.join(random.Random(0).choices(NAMES, k=1000))], 5)
    names.search(['aspirin-' * 2400, 'zzzzzzz ' * 2400, ' '.join(f'unknownword{"abcdefghij"[i % 10]}{"abcdefghij"[i // 10 % 10]}x' for i in range(900))], 5)
    assert process_time() - start < 5


def test_small_graphs():
    assert GraphIndex([]).find('anything') == [] and build_graph([], None).search(['anything', ''], 5) == [[], []]
    one = build_graph([Name('X:1', 'Alone')], None)
    assert one.concepts(one.link('alone')) == [('X:1', 'Alone')] and one.search(['alone'], 5) == [[]] and one.facts('X:1') == []
    loop = build_graph([Name('X:1', 'Alone'), Relation('X:1', 'inhibits', 'X:1', 'test')], None)
    assert found(loop, 'alone') == ['X:1|inhibits|X:1'] and loop.paths('X:1', 'X:1') == []

# ---------------------------------------------------------------- building


RECORDS: list[Record] = [Name('A:1', 'Drug one', 0), Name('A:1', 'First drug', 1), Name('A:2', 'Drug two', 0), Name('E:1', 'Enzyme', 0), Name('H:1', 'Hub', 0), Name('I:1', 'Illness', 0), Kind('A:1', 'drug'), Kind('A:2', 'drug'), Kind('I:1', 'disease'),
    Alias('OLD:1', 'A:1'), Relation('OLD:1', 'is a substrate of', 'E:1', 'S', provenance='p1'), Relation('A:2', 'inhibits', 'E:1', 'S'), Relation('A:1', 'is in', 'H:1', 'S'), Relation('A:2', 'is in', 'H:1', 'S'), Relation('I:1', 'is in', 'H:1', 'S'),
    Relation('A:1', 'may treat', 'I:1', 'S'), Relation('A:1', 'may treat', 'I:1', 'T', provenance='x'), Note('A:1', 'half-life', 'Two hours.', 'S'), Relation('E:1', 'is a', 'H:1', 'S')]


def test_order_of_records_does_not_matter():
    g = build_graph(RECORDS, None)
    for seed in range(5):
        other = build_graph(random.Random(seed).sample(RECORDS, len(RECORDS)), None)
        assert other.hash == g.hash and other.search(['first drug and drug two', 'illness'], 9) == g.search(['first drug and drug two', 'illness'], 9)
    assert build_graph(RECORDS + RECORDS, None).hash == g.hash
    assert len({build_graph(RECORDS[:i] + RECORDS[i+1:], None).hash for i in range(len(RECORDS))} | {g.hash}) == len(RECORDS) + 1


def test_paths_between_drugs_and_illness_only():
    g = build_graph(RECORDS, None)
    assert found(g, 'drug one with drug two', 2) == ['A:1|is a substrate of|E:1 + A:2|inhibits|E:1', 'A:1|is in|H:1 + A:2|is in|H:1']
    assert found(g, 'drug two in illness')[0] in ('A:2|is in|H:1 + I:1|is in|H:1', 'A:1|may treat|I:1')
    assert not [i for i in found(g, 'enzyme hub', 9) if ' + ' in i]         # neither is a drug
    assert not [i for i in found(g, 'drug one', 9) if ' + ' in i]
    hit = g.paths('A:1', 'A:2')[0]
    assert hit.passage.text == 'Drug one is a substrate of Enzyme. Source: S (p1). Drug two inhibits Enzyme. Source: S.' and hit.passage.meta['via'] == 'Enzyme'


def test_triples_have_no_paths_and_exact_names():
    g = GraphIndex([Triple('drug', 'targets', 'enzyme', '1', 'Text one'), Triple('poison', 'targets', 'enzyme', '2', 'text two')])
    assert found(g, 'drug and poison') == ['1', '2'] and found(g, 'enzymes') == found(g, 'poisn') == [] and g.levels == ('exact',)
    assert [h.passage.text for h in g.search(['drug and poison'], 5)[0]] == ['Text one', 'text two']           # as written, no source added


def test_several_sources_are_one_passage():
    g = build_graph(RECORDS, None)
    hit = [h for h in g.search(['drug one may treat illness'], 9)[0] if h.passage.id == 'A:1|may treat|I:1']
    assert len(hit) == 1 and hit[0].passage.text == 'Drug one may treat Illness. Source: S; T (x).' and hit[0].passage.meta['sources'] == ['S', 'T']


def test_aliases_that_are_unclear_do_not_count():
    report = GraphReport()
    g = build_graph([*RECORDS, Alias('Q:1', 'A:1'), Alias('Q:1', 'A:2'), Alias('A:2', 'A:1'), Relation('Q:1', 'causes', 'I:1', 'S'), Alias('Z:1', 'NOBODY')], None, report)
    assert reasons(report) == {'relation to a concept without a name': 1} and {c for c, _ in g.concepts(g.link('drug two'))} == {'A:2'}


def test_records_that_say_nothing_are_counted():
    report = GraphReport()
    bad: list[Record] = [Name('', 'x'), Name('X:1', ''), Name('X:1', '!?'), Name('X:2', 'lone \ud800'), Relation('A:1', '', 'I:1'), Kind('A:1', ''), Note('A:1', 'definition', ' '), Note('NO:1', 'definition', 'x'), Name('X:3', ' two\n\tlines\x00here ')]
    g = build_graph(RECORDS + bad, None, report)
    assert sum(report.skipped.values()) == 8 and g.concepts(g.link('two lines here')) == [('X:3', 'two lines here')]
    for wrong in (7, None, ('A:1', 'x'), 'text'):
        with pytest.raises(MedAgentError, match='no graph record'): build_graph([wrong], None)
    with pytest.raises(MedAgentError, match="unknown level 'psychic'"): build_graph([], None, levels=('psychic',))


def test_a_failed_build_leaves_the_old_file_and_no_rubbish(tmp_path):
    path = tmp_path/'g.sqlite'
    first = build_graph(RECORDS, path).hash

    def stops():
        yield from RECORDS
        raise MedAgentError('the source breaks off')

    def interrupted():
        yield RECORDS[0]
        raise KeyboardInterrupt

    with pytest.raises(MedAgentError, match='breaks off'): build_graph(stops(), path)
    with pytest.raises(KeyboardInterrupt): build_graph(interrupted(), path)
    assert GraphIndex.open(path).hash == first and [p.name for p in tmp_path.iterdir()] == ['g.sqlite']
    (tmp_path/'file').write_text('x')
    with pytest.raises(MedAgentError, match='cannot be written'): build_graph(RECORDS, tmp_path/'file'/'g.sqlite')


def test_an_open_graph_survives_its_replacement(tmp_path):
    g = build_graph(RECORDS, tmp_path/'g')
    before = g.search(['drug one'], 9)
    build_graph(RECORDS[:3], tmp_path/'g')
    assert g.search(['drug one'], 9) == before and GraphIndex.open(tmp_path/'g').search(['drug one'], 9) == [[]]


def test_other_files_are_refused(tmp_path):
    path = tmp_path/'g'
    build_graph(RECORDS, path)
    whole = path.read_bytes()
    sqlite3.connect(tmp_path/'other').executescript('create table t(x); insert into t values (1)')
    for data, match in ((b'', 'no SQLite'), (b'x' * 500, 'no SQLite'), ((tmp_path/'other').read_bytes(), 'another program'), (whole[:50], 'no SQLite'), (whole[:-4096], 'cut off'), (whole[:60] + (99).to_bytes(4) + whole[64:], 'layout 99'),
                        (whole[:4096] + b'\xff' * (len(whole) - 4096), 'cannot be read as a graph')):
        path.write_bytes(data)
        with pytest.raises(MedAgentError, match=match): GraphIndex.open(path)
    with pytest.raises(MedAgentError, match='cannot be read as a graph'): GraphIndex.open(tmp_path)


def test_building_takes_the_memory_of_a_batch(tmp_path, monkeypatch):
    "Python's own share; SQLite has a cache of fixed size."
    monkeypatch.setattr(graph_store, '_BATCH', 50)
    def many(n): return chain.from_iterable((Name(f'X:{i}', f'name {i} of {i % 97}'), Relation(f'X:{i}', 'joins', f'X:{i//2}', 'S')) for i in range(n))
    small, large = (peak(lambda n=n: build_graph(many(n), tmp_path/'g', progress=False)) for n in (1_000, 3_000))
    assert large < small * 1.3


def test_hubs_are_read_in_part_and_what_was_asked_is_found():
    many = [r for i in range(3000) for r in (Name(f'X:{i}', f'thing{i} zz'), Relation('X:hub', f'relation {i % 3}' if i != 1234 else 'heals', f'X:{i}', 'S'))]
    g = build_graph([Name('X:hub', 'hub'), *many], None)
    assert found(g, 'what does hub heal?', 1) == ['X:hub|heals|X:1234']
    assert found(g, 'hub thing2999 zz', 1) == ['X:hub|relation 2|X:2999']
    assert found(g, 'hub', 5) == sorted(found(g, 'hub', 5))


def test_thousands_of_lookups_are_quick(tmp_path):
    "A floor against quadratic plans, not a benchmark: that is benchmarks/graph.py."
    from time import process_time
    rng = random.Random(0)
    g = build_graph(chain.from_iterable((Name(f'X:{i:05d}', f'word{i % 700} part{i % 997} n{i}'), Kind(f'X:{i:05d}', 'drug'), Relation(f'X:{i:05d}', 'joins', f'X:{rng.randrange(8_000):05d}', 'S')) for i in range(8_000)), tmp_path/'g')
    start = process_time()
    for i in range(0, 8_000, 16): assert g.find(f'word{i % 700} part{i % 997} n{i}')
    assert process_time() - start < 2
