"Claims: sentence ends, citation links, kinds, spans, speed. Expected values by hand."
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medagent import claims
from medagent.claims import Claim, abbreviations, classify, read_claims, substantive
from medagent.settings import MedAgentError
from medagent.trajectory import neutralise, restore

FUZZ = 50 if 'slow' in os.environ.get('TST_FLAGS', '') else 1


def sentences(text): return [c.text for c in read_claims(text)]
def links(text): return [(c.text.split()[0].rstrip('.'), c.citations) for c in read_claims(text)]


@pytest.mark.parametrize('text', [   # one sentence each
    'Give 1 g i.v. every 12 h in severe infection [#1].',
    'Vancomycin 15 mg/kg i.v. b.i.d. is given for MRSA.',
    'Potassium was 5.5 mmol/L and INR 2.3 on day 3.',
    'Metformin vs. Placebo lowered HbA1c by 1.1% (95% CI 0.8-1.4, p<0.001).',
    'Agents such as ACE inhibitors, e.g. Ramipril, raise potassium.',
    'Agents that prolong QT, i.e. Sotalol, are avoided.',
    'E. coli and C. difficile are covered, S. aureus is not.',
    'As Dr. J. P. Smith et al. (2015) reported, survival rose.',
    'See Fig. 2 and No. 5 of the label.',
    'Approved by the U.S. Food and Drug Administration for gout.',
    'Take one tablet q.d. with food, approx. 30 min before meals.',
    'Candida spp. are resistant to some azoles.',
    'Lithium, cf. the label, needs a level of .8 mmol/L.',
    'The label (see www.fda.gov/drugs) lists gout.',
    'Dose 5 mg. daily in renal failure.',
    'Salmonella enterica subsp. Enterica and var. Typhimurium were found.',
    'Doses of approx. 5 mg... are low.',
    'Hold metformin at an eGFR below 30 mL/min/1.73 m2.',
    'Streptococcus spp., incl. S. pyogenes, respond.',
    '2. Warfarin needs INR monitoring.',
    'ADA 2024 recommends metformin plus\na CV-benefit agent for\nASCVD [#1].',
    'Lithium is monitored by serum level,\nThyroid function and calcium [#1].',
    'The level was low (0.2 mmol/L).',
    'Staph. aureus was isolated.',
    'HbA1c fell more with metformin vs.\nPlacebo in adults.',
    'Durvalumab 10 mg/kg q2wk. is given for a year.',
    'C. diff. infection recurs.',
    'Median age was 76 yr. (IQR [69-82]).',
    '"Treat to target!" is how one author put it [#3].',
    'The U.S. Advisory group starts at 50.',
    'Loading doses of ０．５ mg are given.',
])
def test_one_sentence(text): assert len(read_claims(text)) == 1, sentences(text)


@pytest.mark.parametrize('text, firsts', [
    ('Lithium needs TSH. Warfarin needs INR.', 'Lithium Warfarin'),
    ('It reverses with vitamin K. Warfarin is stopped.', 'It Warfarin'),
    ('She has hepatitis B. Vaccinate contacts.', 'She Vaccinate'),
    ('It is stage C. Avoid it.', 'It Avoid'),
    ('Give it b.i.d. Monitor potassium.', 'Give Monitor'),
    ('The dose is 10 mg. Monitor potassium.', 'The Monitor'),
    ('The eGFR is 72. Empagliflozin is safe.', 'The Empagliflozin'),
    ('INR rose to 5.5. Warfarin was held.', 'INR Warfarin'),
    ('It is safe. eGFR was 72.', 'It eGFR'),
    ('It was so. eGFR was 72.', 'It eGFR'),
    ('The sign is x. Warfarin needs INR.', 'The Warfarin'),
    ('It is avoided. mTOR inhibitors too.', 'It mTOR'),
    ('lithium needs thyroid checks [#1]. warfarin needs an inr [#2].', 'lithium warfarin'),
    ('lithium needs monitoring. warfarin needs monitoring.', 'lithium warfarin'),
    ('Function is checked.Warfarin needs INR.', 'Function Warfarin'),
    ('Is it safe? Yes! It is.', 'Is Yes! It'),
    ('- Lithium: TSH\n- Warfarin: INR\n* Digoxin: level', 'Lithium: Warfarin: Digoxin:'),
    ('1. Lithium needs TSH.\n2. Warfarin needs INR.', 'Lithium Warfarin'),
    ('(a) Lithium needs TSH\n(b) Warfarin needs INR', 'Lithium Warfarin'),
    ('Lithium needs TSH [#1]\nWarfarin needs INR [#2]', 'Lithium Warfarin'),
    ('lithium needs tsh [#1]\nwarfarin needs inr [#2]', 'lithium warfarin'),
    ('Lithium needs TSH\n\nwarfarin needs INR', 'Lithium warfarin'),
    ('Lithium needs TSH\r\nWarfarin needs INR', 'Lithium Warfarin'),
    ('"Lithium needs TSH." Warfarin needs INR.', '"Lithium Warfarin'),
    ('Lithium (a salt.) Warfarin (a coumarin).', 'Lithium Warfarin'),
    ('It is given p.r.n. [#1] Warfarin needs INR.', 'It Warfarin'),
    ('The answer is no. Warfarin needs INR.', 'The Warfarin'),
    ('Lithium needs TSH。Warfarin needs INR。', 'Lithium Warfarin'),
    ('Lithium needs TSH... Warfarin needs INR.', 'Lithium Warfarin'),
    ('β-blockers slow the heart. β-agonists do not.', 'β-blockers β-agonists'),
    ('Pregnancy: avoid.\nÉtude data are few.', 'Pregnancy: Étude'),
    ('It interacts with NSAIDs.¹ It also lowers INR.²', 'It It'), ('He had penicillin G. Resistance is rising.', 'He Resistance'), ('The volume is 21 L. No change is needed.', 'The No'),
    ('HbA1c was >7.0%.Start insulin.', 'HbA1c Start'), ('It was 38.5 °C. A seizure followed.', 'It A'), ('It was approved in the U.S. Europe followed.', 'It Europe'), ('The risk fell by 0.8.Then it rose.', 'The Then'),
])
def test_several_sentences(text, firsts): assert [s.split()[0] for s in sentences(text)] == firsts.split()


@pytest.mark.parametrize('text, expected', [
    ('A b [#1]. C d [#2].', [('A', (1,)), ('C', (2,))]),
    ('Ab cd. [#1] Cd ef. [#2]', [('Ab', (1,)), ('Cd', (2,))]),
    ('Ab cd.[#1] Cd ef.[#2]', [('Ab', (1,)), ('Cd', (2,))]),
    ('Ab cd.[#1][#2] Cd ef.', [('Ab', (1, 2)), ('Cd', ())]),
    ('Ab cd. [#1], Cd ef.', [('Ab', (1,)), ('Cd', ())]),
    ('Ab cd. [#1]. Cd ef.', [('Ab', (1,)), ('Cd', ())]),
    ('Ab cd [#1]. [#2] adds that cd rises.', [('Ab', (1,)), ('adds', (2,))]),
    ('Ab cd [#1]. [#2] Cd ef.', [('Ab', (1, 2)), ('Cd', ())]),
    ('[#1] reports ab. Cd ef [#2].', [('reports', (1,)), ('Cd', (2,))]),
    ('Ab cd ([#1]; [#3]).', [('Ab', (1, 3))]),
    ('Ab [#2] cd [#1], ef [#2].', [('Ab', (2, 1))]),
    ('Ab cd [#1-3].', [('Ab', (1, 2, 3))]),
    ('Ab cd [#3-1].', [('Ab', (3, 1))]),
    ('Ab cd [1, 2].', [('Ab', (1, 2))]),
    ('Ab cd [1], as in 2019 [2019].', [('Ab', (1,))]),
    ('Ab cd [Observation #2].', [('Ab', (2,))]),
    ('Ab cd [Observations #1 and #2].', [('Ab', (1, 2))]),
    ('Ab cd [ # 1 , # 2 ].', [('Ab', (1, 2))]),
    ('Ab cd [#１，#２].', [('Ab', (1, 2))]),
    ('Ab cd.\n[#1]', [('Ab', (1,))]),
    ('Ab cd.\n[#1]\nEf gh.', [('Ab', (1,)), ('Ef', ())]),
    ('- Ab cd [#1]\n- Ef gh', [('Ab', (1,)), ('Ef', ())]),
    ('Ab cd [#12]. Ef.', [('Ab', (12,)), ('Ef', ())]),
    (r'Ab cd [\#1] and [\2].', [('Ab', ())]),
    ('Ab cd [#0]. Ef [#2024].', [('Ab', (0,)), ('Ef', (2024,))]),
    ('Ab [#1, #2, and #4]. Cd [#1, guideline]. Ef [#3: "INR rises"].', [('Ab', (1, 2, 4)), ('Cd', (1,)), ('Ef', (3,))]),
    ('1. Start it [#1]. 2. Add that [#2]. 3. Stop [#3].', [('Start', (1,)), ('Add', (2,)), ('Stop', (3,))]),
    ('a. Start it [#1]. b. Add that [#2].', [('Start', (1,)), ('Add', (2,))]),
    ('Ab is used in all three [1]–[3].', [('Ab', (1, 2, 3))]), ('Ab cd [Obs. 4]. Ef [Source 2].', [('Ab', (4,)), ('Ef', (2,))]),
    ('Ab was below 30 [1-3].', [('Ab', (1, 2, 3))]), ('Ab cd.[3]Plasma fell.[4]', [('Ab', (3,)), ('Plasma', (4,))]),
    ('The stay was 4 days [2-5].', [('The', (2, 3, 4, 5))]),
    ('The stay was 4 [2-5] days.', [('The', ())]),
    ('Sodium was 140 [135-145].', [('Sodium', ())]),
    ('The drug [1]benzoxazine is new.', [('The', ())]),
    ('The eGFR was 72 [1].', [('The', (1,))]),
    ('"Ab cd." [#1] Ef gh.', [('"Ab', (1,)), ('Ef', ())]),
    ('[#1]', []),
    ('', []), ('---\n...\n', []),
])
def test_links(text, expected): assert links(text) == expected


@pytest.mark.parametrize('text, plain', [
    ('Lithium needs TSH [#1].', 'Lithium needs TSH.'), ('Lithium needs TSH. [#1]', 'Lithium needs TSH.'), ('Lithium needs TSH. [#1].', 'Lithium needs TSH.'),
    ('Lithium [#1] needs TSH ([#2]).', 'Lithium needs TSH.'), ('[#1]: Lithium needs TSH', 'Lithium needs TSH'), ('*  Lithium\n  needs TSH [#1] ', 'Lithium needs TSH'),
    ('Lithium [#1], a salt, needs TSH.', 'Lithium, a salt, needs TSH.'), ('Level 0.8 [2019] is fine [#1].', 'Level 0.8 [2019] is fine.')])
def test_text_is_clean(text, plain): assert sentences(text) == [plain]


@pytest.mark.parametrize('kind, text', [
    ('meta', 'Based on the evidence above.'), ('meta', 'Based on the retrieved observations, the answer is B.'), ('meta', 'Therefore, the correct answer is thyroid function.'),
    ('meta', 'Option B is correct.'), ('meta', 'Thus, option (C) is the best answer.'), ('meta', 'I searched the guidelines for lithium monitoring.'), ('meta', 'We will now summarise the evidence.'),
    ('meta', 'This evidence supports the answer.'), ('meta', 'Observation 1 states it.'), ('meta', 'The evidence is summarised below.'), ('meta', 'Summary of the evidence:'),
    ('meta', 'Evidence'), ('meta', 'Here is the evidence:'), ('meta', 'In conclusion.'), ('meta', 'See the evidence above.'), ('meta', 'The answer is B [#1].'), ('meta', '**Evidence:**'),
    ('insufficient', 'The observations do not state the renal dose [#1].'), ('insufficient', 'The retrieved evidence is insufficient to answer.'), ('insufficient', 'Evidence is insufficient to determine the dose.'),
    ('insufficient', 'No relevant information was found.'), ('insufficient', 'I could not find the dose.'), ('insufficient', 'The dose cannot be determined.'), ('insufficient', 'The evidence is conflicting.'),
    ('insufficient', 'Observation 2 does not mention lithium.'), ('insufficient', 'No observations address pregnancy, none of the passages cannot say.'),
    ('question', 'Is lithium safe?'), ('question', 'Is lithium safe [#1]?'),
    ('claim', 'Based on the evidence above, lithium requires thyroid checks [#1].'), ('claim', 'The answer is B because lithium impairs the thyroid.'),
    ('claim', 'The best option is metformin.'), ('claim', 'The most appropriate choice is metformin [#1].'), ('claim', 'Evidence is insufficient to recommend routine screening [#1].'),
    ('claim', 'The evidence is insufficient, but warfarin causes gout.'), ('claim', 'The observations do not state it, so warfarin is safe [#1].'), ('claim', 'I cannot determine the dose; lithium is safe.'),
    ('claim', 'Warfarin is contraindicated in pregnancy.'), ('claim', 'Trial results favour warfarin [#1].'), ('claim', 'Clinical observations do not support routine use [#2].'),
    ('claim', 'Sources of vitamin K include spinach.'), ('claim', 'We recommend metformin first [#1].'), ('claim', 'Key adverse effects include gout.'), ('claim', 'Monitoring [#1]:'),
    ('claim', 'In summary, lithium needs thyroid checks.'), ('claim', 'Therefore lithium needs thyroid checks.'), ('claim', 'Observation 1 states that lithium needs thyroid checks.'),
    ('claim', 'The evidence supports metformin [#1].'), ('claim', 'I used lithium because it prevents suicide.'), ('claim', 'The answer is lithium, which causes tremor.'),
    # what a policy could hide behind
    ('claim', 'We used lithium to reduce mortality by 30%.'), ('claim', 'I rely on lithium reducing suicide by half.'), ('claim', 'We retrieved stones from 20 patients with a 90% success rate.'), ('claim', 'Lithium cures gout, right?'),
    ('claim', 'To determine efficacy: drug X halves mortality.'), ('claim', 'Evidence suggests that lithium helps:'), ('claim', 'Lithium raises TSH in 40% of patients, for which the evidence is limited.'), ('claim', 'Warfarin is teratogenic, which cannot be determined.'),
    ('claim', 'No information was found on lithium, which is teratogenic.'), ('claim', 'Observation 2 does not allow doses above 40 mg daily.'), ('claim', 'The passages cannot exceed 5 cm in width.'), ('claim', 'The answer is warfarin 5 mg daily for life.'),
    ('claim', 'We used PubMed for protamine reverses heparin.'), ('claim', 'We retrieved guidelines recommending metformin first line.'), ('claim', 'I explain lithium toxicity as renal failure from sodium depletion.'), ('claim', 'To describe lithium toxicity as benign is wrong.'),
    ('claim', 'No evidence was found that ACE inhibitors cause harm [#1].'), ('insufficient', 'No evidence was found.'),
    ('claim', 'Lithium first line'), ('insufficient', 'The abstracts do not mention the dose.'), ('insufficient', 'These records do not state the dose.'), ('insufficient', 'It is not known whether lithium helps.'), ('meta', 'To assess whether lithium helps.'), ('meta', 'Next, I turn to the allergy history.')])
def test_kinds(kind, text):
    (c,) = read_claims(text)
    assert c.kind == kind
    assert substantive([c]) == ([c] if kind == 'claim' else [])


def test_rules_are_named():
    assert classify('Evidence:', False) == ('meta', 'heading') and classify('The answer is B.', False) == ('meta', 'answer')
    assert classify('I do not know.', False) == ('insufficient', 'writer') and classify('Lithium needs TSH.', False) == ('claim', 'claim')


GOLD = [json.loads(line) for line in (Path(__file__).resolve().parents[1]/'data'/'gold'/'claims.jsonl').read_text(encoding='utf-8').splitlines()]


def test_the_quick_way_of_claims_changes_no_kind():
    sentences = [c for row in GOLD for c in read_claims(row['text'])]
    assert len(sentences) > 700
    for c in sentences: assert classify(c.text, bool(c.citations)) == classify(c.text, bool(c.citations), quick=False), c.text


words = st.sampled_from(['the', 'evidence', 'observations', 'abstracts', 'do not state', 'is', 'limited', 'I', 'we', 'searched', 'lithium', 'cannot be determined', 'therefore', 'answer', 'B', 'no', 'data', 'on', 'unclear', 'to assess', 'none of them', 'summary', 'but', ','])


@settings(max_examples=500*FUZZ, deadline=None)
@given(st.lists(words, min_size=1, max_size=8).map(' '.join), st.booleans())
def test_the_quick_way_of_claims_is_no_other_reading(sentence, cites):
    assert classify(sentence + '.', cites) == classify(sentence + '.', cites, quick=False)


markers = st.lists(st.sampled_from(['[', '［', '【', ']', '］', '#', '1', '2', '１', ', ', '-', '–', ' and ', ' to ', '&', 'Observation ', 'Obs. ', 'Obs', 'Source ', 'Source', 'Doc', 'Passages',  'Documents ', 'Doc ', 'passage ', ': "x"', ' ', '(', ')', 'word', '.', '\\']), max_size=14).map(''.join)


@settings(max_examples=1000*FUZZ, deadline=None)
@given(markers)
def test_no_citation_survives_in_retrieved_text(text):
    "One grammar: what reads as a citation is made inert before it enters the context, and comes back unchanged for the reader's page."
    assert claims._citations(neutralise(text)) == []
    assert restore(neutralise(text)).split() == text.split()


pieces = st.sampled_from(['Lithium', 'needs', 'e.g.', 'i.v.', 'vitamin K', '.', '. ', '? ', '\n', '\n- ', '[#1]', '[#2, #3]', ' [1]', '(', ')', '0.8', 'E. coli', '2. ', '。', '…', '"', ' ', '[2019]', '\r\n', 'β'])


@settings(max_examples=400, deadline=None)
@given(st.lists(pieces, max_size=20).map(''.join) | st.text(max_size=60))
def test_any_string(text):
    found = read_claims(text)
    at = 0
    for c in found:
        assert at <= c.start < c.end <= len(text)
        assert text[c.start:c.end] == text[c.start:c.end].strip()
        assert any(map(str.isalnum, c.text)) and len(set(c.citations)) == len(c.citations)
        at = c.end
    if found:                                                    # behind the first claim nothing that reads as a citation is lost
        assert {n for a, _, ns in claims._citations(text) if a >= found[0].start for n in ns} == {n for c in found for n in c.citations}
    words = sum(map(str.isalpha, text))
    for a, b, _ in claims._citations(text): words -= sum(map(str.isalpha, text[a:b]))
    assert sum(sum(map(str.isalpha, c.text)) for c in found) >= words - 2 * text.count(')')      # only bullets such as "a)" are left out


def test_spans_point_into_the_block():
    text = 'Intro line.\n- Lithium needs TSH. [#1]  \n- Warfarin needs INR [#2].'
    assert [text[c.start:c.end] for c in read_claims(text)] == ['Intro line.', 'Lithium needs TSH. [#1]', 'Warfarin needs INR [#2].']
    assert isinstance(read_claims(text)[0], Claim)


def test_abbreviation_list(monkeypatch, tmp_path):
    assert len(abbreviations()) >= 150 and {'i.v', 'b.i.d', 'vs', 'e.g'} <= abbreviations().keys()
    monkeypatch.setenv('MEDAGENT_DATA_PATH', str(tmp_path))
    abbreviations.cache_clear()
    try:
        with pytest.raises(MedAgentError, match='abbreviations.txt'): abbreviations()
        (tmp_path/'abbreviations.txt').write_text('# list\nvs open\ne.g. sometimes\n')
        with pytest.raises(MedAgentError, match=':3:'): abbreviations()
    finally: abbreviations.cache_clear()


@pytest.mark.parametrize('piece', ['Ab cd. ', '[#1]', '[', '\n', 'a.', ' ', 'the evidence ', 'it is and that is ', '1, ', '. [#1', '([#1] '])
def test_time_is_about_linear(piece):
    start = time.process_time()
    read_claims(piece * 3000)
    assert time.process_time() - start < 2.0
