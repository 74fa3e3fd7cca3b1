"""Check the fact tables of the starter world against open data.

    python benchmarks/check_facts.py FOLDER

FOLDER holds `kg/` and `labels/` (see data/starter/README.md for the files). Each source is compared with the rows
it can speak about; the output gives per source how many rows that is, how many agree and every row that does not.
A source that lists other things than our row has not proved the row wrong: the lines are for a human to look into.

Looked at and left out, because they say nothing about any row: OnSIDES sample (prasugrel only), TWOSIDES sample
(pairs with calcitriol and leuprolide only), openFDA samples (fluoride and paracetamol), the random Hetionet subgraph
(a sample of edges, so a missing edge means nothing) and the Hetionet node list (names, no edges).
"""
import argparse, csv, gzip, json, lzma, re, sys
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import yaml

from medagent.settings import MedAgentError
from medagent.starter.facts import Fact, load_facts, not_wrong

# Names ------------------------------------------------------------------------------------------------------------

DRUGS = {  # other names of the drugs in the tables and in TREATMENTS -> our name
    'albuterol': 'salbutamol', 'rifampicin': 'rifampin', 'aciclovir': 'acyclovir', 'valaciclovir': 'valacyclovir', 'ciclosporin': 'cyclosporine',
    'cefalexin': 'cephalexin', 'chlortalidone': 'chlorthalidone', 'valproic acid': 'valproate', 'divalproex': 'valproate', 'alendronic acid': 'alendronate',
    'zoledronic acid': 'zoledronate', 'lithium cation': 'lithium', 'torasemide': 'torsemide', 'mesalamine': 'mesalazine', 'coumadin': 'warfarin', 'jantoven': 'warfarin',
}
SALTS = re.compile(r' (?:(?:hydro)?chloride|hydrobromide|hydrochloride|bromide|sodium|potassium|calcium|carbonate|maleate|mesylate|besylate|succinate|tartrate|fumarate|sulfate|sulphate|etexilate|cilexetil|medoxomil|decanoate|acetate|hyclate|hydrate|monohydrate)\b')

# our value or condition -> (names that mean the same, wider or narrower names), `;` between names
DISEASES = {
    'hypertension': ('hypertensive disorder; essential hypertension', ''),
    'heart failure': ('congestive heart failure; left ventricular dysfunction', 'dilated cardiomyopathy; left ventricular failure'),
    'angina': ('angina pectoris', 'prinzmetal angina; chronic stable angina; vasospastic angina; coronary artery disease'),
    'supraventricular tachycardia': ('tachycardia, supraventricular', 'atrial fibrillation; atrial flutter'),
    'ventricular arrhythmias': ('ventricular arrhythmia', 'ventricular fibrillation; ventricular tachycardia; life threatening recurrent ventricular arrhythmias'),
    'primary hyperaldosteronism': ('', 'aldosteronism; hyperaldosteronism'),
    'hyperlipidemia': ('dyslipidemia', 'hypercholesterolemia; mixed hyperlipidemia; primary hyperlipidemia; mixed dyslipidemia; hyperlipidemia, familial combined'),
    'acute coronary syndrome': ('', 'coronary artery disease; myocardial infarction'),
    'mechanical heart valve': ('', 'cardiac valve replacement'),
    'nonvalvular atrial fibrillation': ('', 'atrial fibrillation'),
    'type 2 diabetes': ('type 2 diabetes mellitus; diabetes mellitus type 2', 'diabetes; niddm'),
    'hyperthyroidism': ('', "graves' disease; thyrotoxic crisis"),
    'hypothyroidism': ('', ''), 'primary hypothyroidism': ('', 'hypothyroidism'),
    'osteoporosis': ('', 'postmenopausal osteoporosis'),
    'hypercalcemia of malignancy': ('humoral hypercalcemia of malignancy', 'hypercalcemia'),
    'chronic gout': ('', 'gout; articular gout; hyperuricemia'), 'gout flare': ('gout flares; acute gout flares', 'gout; articular gout'),
    'gastroesophageal reflux disease': ('gerd; gastroesophageal reflux; peptic reflux disease', ''),
    'diabetic gastroparesis': ('', 'gastric stasis'),
    'chemotherapy-induced nausea': ('nausea and vomiting', 'nausea; vomiting'),
    'acute bronchospasm': ('', 'bronchospasm; asthma'), 'asthma': ('bronchial asthma', ''), 'persistent asthma': ('', 'asthma'),
    'COPD': ('chronic obstructive pulmonary disease; chronic obstructive lung disease; pulmonary disease, chronic obstructive', ''),
    'chronic obstructive lung disease': ('chronic obstructive pulmonary disease; pulmonary disease, chronic obstructive', ''),
    'major depressive disorder': ('mdd; depressive disorder, major', 'depressive disorder; depression; endogenous depression'),
    'atypical depression': ('', 'depressive disorder; depression; endogenous depression'),
    'bipolar disorder': ('', 'bipolar i disorder; mania; manic episodes of bipolar disorder'),
    'epilepsy': ('epilepsy syndrome; seizures', 'epilepsies, partial; partial onset seizures; simple partial seizure; grand mal; tonic-clonic epilepsy; epilepsy, tonic-clonic'),
    'postherpetic neuralgia': ('neuralgia, postherpetic; phn', ''),
    'schizophrenia': ('', 'psychotic disorder; psychotic disorders'), 'treatment-resistant schizophrenia': ('', 'schizophrenia'),
    'acute anxiety': ('', 'anxiety; anxiety disorders; panic disorder'),
    'severe pain': ('', 'pain; chronic pain; moderate to severe pain'),
    'acute migraine': ('migraine; migraine attacks', ''),
    'benign prostatic hyperplasia': ('bph', ''),
    'acute otitis media': ('otitis media', 'infections of the ear'), 'cellulitis': ('', 'skin and skin structure infections; skin infections'),
    'Listeria meningitis': ('meningitis, listeria', 'meningitis, bacterial; bacterial meningitis; listeriosis'),
    'bacterial meningitis': ('meningitis, bacterial; meningitis', ''),
    'community-acquired pneumonia': ('', 'bacterial pneumonia; pneumonia, bacterial; pneumococcal pneumonia; pneumonia'),
    'Helicobacter pylori infection': ('h. pylori infection', 'duodenal ulcer; duodenal ulcer disease'),
    'pertussis': ('whooping cough', ''), 'pyelonephritis': ('', 'urinary tract infections; urinary tract infectious disease'),
    'gonorrhea': ('uncomplicated gonorrhea', ''), 'acne vulgaris': ('', 'acne; severe acne'),
    'gram-negative sepsis': ('', 'neonatal sepsis; bacterial septicemia; septicemia; enterobacteriaceae infections'),
    'MRSA infection': ('', 'infection due to staphylococcus aureus; staphylococcal infections; staphylococcal pneumonia'),
    'uncomplicated cystitis': ('', 'cystitis; urinary tract infections'),
    'bacterial vaginosis': ('vaginosis, bacterial', ''), 'vaginal candidiasis': ('candidal vulvovaginitis', ''),
    'invasive aspergillosis': ('', 'invasive pulmonary aspergillosis'),
    'herpes simplex encephalitis': ('herpes encephalitis; encephalitis, herpes simplex', ''), 'herpes zoster': ('shingles', ''),
    'tuberculosis': ('active tuberculosis', 'pulmonary tuberculosis'), 'pulmonary tuberculosis': ('tuberculosis, pulmonary', ''),
    'systemic lupus erythematosus': ('lupus erythematosus, systemic', ''), 'rheumatoid arthritis': ('arthritis, rheumatoid', ''),
    'organ transplant rejection': ('', 'renal transplantation; kidney transplant rejection; graft rejection; organ rejection'),
    'pulmonary embolism': ('', 'pulmonary thromboembolism'), 'deep vein thrombosis': ('deep venous thrombosis', 'venous thrombosis'),
    'hypertrophic cardiomyopathy': ('cardiomyopathy, hypertrophic', ''), 'severe hyperkalemia': ('', 'hyperkalemia'), 'severe hyponatremia': ('', 'hyponatremia'),
    'primary adrenal insufficiency': ('addison disease', 'adrenal insufficiency'), 'erosive esophagitis': ('esophagitis, peptic', ''),
    'Clostridioides difficile infection': ('clostridium difficile infection', ''),
    'subarachnoid hemorrhage': ('subarachnoid intracranial hemorrhage', ''), 'acute ischemic stroke': ('ischemic stroke', 'stroke; cerebrovascular accident'),
    'generalized myasthenia gravis': ('', 'myasthenia gravis'), 'idiopathic intracranial hypertension': ('benign intracranial hypertension', ''),
    'acute angle-closure glaucoma': ('angle-closure glaucoma; glaucoma, angle-closure', 'glaucoma'),
    'severe falciparum malaria': ('', 'falciparum malaria; malaria, falciparum; malaria'),
    'acetaminophen poisoning': ('poisoning by acetaminophen; paracetamol poisoning; acetaminophen overdose', ''),
    'severe preeclampsia': ('', 'pre-eclampsia; preeclampsia; eclampsia'), 'torsades de pointes': ('torsades de pointes', ''),
}

# first-line treatment -> drugs that stand for it; a treatment that is no drug is not here
TREATMENTS = {
    'beta blocker therapy': 'metoprolol propranolol atenolol bisoprolol', 'intravenous magnesium sulfate': 'magnesium_sulfate',
    'direct oral anticoagulant': 'apixaban rivaroxaban dabigatran edoxaban', 'inhaled corticosteroid plus formoterol': 'budesonide formoterol',
    'LABA plus LAMA': 'vilanterol umeclidinium olodaterol tiotropium indacaterol glycopyrronium formoterol', 'rifampin-based combination therapy': 'rifampin',
    'systemic glucocorticoids': 'prednisone prednisolone methylprednisolone dexamethasone', 'intravenous calcium gluconate': 'calcium_gluconate',
    'hypertonic saline bolus': 'sodium_chloride', 'oral levothyroxine': 'levothyroxine', 'hydrocortisone replacement': 'hydrocortisone',
    'proton pump inhibitor therapy': 'omeprazole esomeprazole pantoprazole', 'oral fidaxomicin': 'fidaxomicin', 'oral mesalamine': 'mesalazine',
    'intravenous thrombolysis': 'alteplase tenecteplase', 'oral nimodipine': 'nimodipine', 'oral pyridostigmine': 'pyridostigmine',
    'weight loss plus acetazolamide': 'acetazolamide', 'pressure-lowering eye drops': 'timolol apraclonidine pilocarpine brimonidine dorzolamide',
    'ceftriaxone plus vancomycin': 'ceftriaxone vancomycin', 'intravenous artesunate': 'artesunate', 'oral iron supplementation': 'iron ferrous_sulfate ferrous_gluconate',
    'intravenous acetylcysteine': 'acetylcysteine', 'intravenous sodium bicarbonate': 'sodium_bicarbonate',
}

# drug class -> (pattern for the target's name, genes of the target)
BETALACTAM, RIBO = 'penicillin.binding|transpeptidase', 'ribosom'
CLASSES = {
    'ACE inhibitor': ('angiotensin-converting enzyme', 'ACE'), 'angiotensin receptor blocker': ('type-1 angiotensin ii receptor', 'AGTR1'),
    'beta blocker': ('beta-[12] adrenergic receptor', 'ADRB1 ADRB2'), 'dihydropyridine calcium channel blocker': ('l-type', 'CACNA1C CACNA1D'),
    'nondihydropyridine calcium channel blocker': ('l-type', 'CACNA1C CACNA1D'), 'thiazide diuretic': ('solute carrier family 12 member 3', 'SLC12A3'),
    'loop diuretic': ('solute carrier family 12 member 1', 'SLC12A1 SLC12A2'), 'mineralocorticoid receptor antagonist': ('mineralocorticoid receptor', 'NR3C2'),
    'statin': ('3-hydroxy-3-methylglutaryl', 'HMGCR'), 'cholesterol absorption inhibitor': ('npc1-like', 'NPC1L1'), 'P2Y12 inhibitor': ('p2y purinoceptor 12', 'P2RY12'),
    'vitamin K antagonist': ('vitamin k', 'VKORC1'), 'factor Xa inhibitor': ('factor x', 'F10'), 'direct thrombin inhibitor': ('thrombin', 'F2'),
    'cardiac glycoside': ('sodium/potassium-transporting', 'ATP1A1'), 'class III antiarrhythmic': ('potassium channel', 'KCNH2'), 'biguanide': ('amp-activated', 'PRKAB1'),
    'sulfonylurea': ('cassette sub-family c member 8|atp-sensitive', 'ABCC8 KCNJ11'), 'thiazolidinedione': ('proliferator-activated receptor gamma', 'PPARG'),
    'DPP-4 inhibitor': ('dipeptidyl peptidase 4', 'DPP4'), 'SGLT2 inhibitor': ('glucose cotransporter 2', 'SLC5A2'), 'GLP-1 receptor agonist': ('glucagon-like peptide 1 receptor', 'GLP1R'),
    'thyroid hormone': ('thyroid hormone receptor', 'THRA THRB'), 'thionamide': ('thyroid peroxidase', 'TPO'), 'corticosteroid': ('glucocorticoid receptor', 'NR3C1'),
    'bisphosphonate': ('farnesyl', 'FDPS'), 'RANKL inhibitor': ('ligand superfamily member 11', 'TNFSF11'), 'selective estrogen receptor modulator': ('estrogen receptor', 'ESR1 ESR2'),
    'xanthine oxidase inhibitor': ('xanthine dehydrogenase', 'XDH'), 'antigout alkaloid': ('tubulin', 'TUBB TUBB1'), 'uricosuric': ('solute carrier family 22', 'SLC22A12 SLC22A6'),
    'proton pump inhibitor': ('potassium-transporting atpase', 'ATP4A'), 'H2 blocker': ('histamine h2', 'HRH2'), 'dopamine antagonist': ('dopamine receptor', 'DRD2'),
    '5-HT3 antagonist': ('5-hydroxytryptamine receptor 3', 'HTR3A'), 'short-acting beta agonist': ('beta-2 adrenergic', 'ADRB2'),
    'long-acting muscarinic antagonist': ('muscarinic acetylcholine', 'CHRM3'), 'methylxanthine': ('phosphodiesterase|adenosine receptor', 'ADORA1 PDE4A'),
    'SSRI': ('serotonin transporter|slc6a4', 'SLC6A4'), 'SNRI': ('noradrenaline transporter', 'SLC6A2'), 'tricyclic antidepressant': ('noradrenaline transporter', 'SLC6A2'),
    'MAO inhibitor': ('amine oxidase', 'MAOA MAOB'), 'norepinephrine-dopamine reuptake inhibitor': ('dopamine transporter', 'SLC6A3'),
    'tetracyclic antidepressant': ('alpha-2a adrenergic', 'ADRA2A'), 'sodium channel anticonvulsant': ('sodium channel', 'SCN1A SCN5A'), 'SV2A modulator': ('glycoprotein 2a', 'SV2A'),
    'sulfamate anticonvulsant': ('sodium channel|gaba', 'CA2 GABRA1'), 'gabapentinoid': ('alpha-2/delta', 'CACNA2D1'),
    'first-generation antipsychotic': ('dopamine receptor', 'DRD2'), 'second-generation antipsychotic': ('dopamine receptor', 'DRD2'), 'benzodiazepine': ('gaba|aminobutyric', 'GABRA1'),
    'opioid agonist': ('opioid receptor', 'OPRM1'), 'NSAID': ('prostaglandin g/h synthase', 'PTGS2'), 'triptan': ('receptor 1[bd]', 'HTR1B'),
    'alpha-1 blocker': ('alpha-1', 'ADRA1A'), 'aminopenicillin': (BETALACTAM, ''), 'first-generation cephalosporin': (BETALACTAM, ''),
    'third-generation cephalosporin': (BETALACTAM, ''), 'fourth-generation cephalosporin': (BETALACTAM, ''), 'macrolide': (RIBO + '.*(23s|50s)|(23s|50s).*' + RIBO, ''),
    'fluoroquinolone': ('gyrase|topoisomerase', ''), 'aminoglycoside': (RIBO + '.*16s|(16s|30s).*' + RIBO, ''), 'tetracycline': (RIBO + '.*16s|(16s|30s).*' + RIBO, ''),
    'glycopeptide antibiotic': ('d-alanyl', ''), 'oxazolidinone': (RIBO, ''), 'nitroimidazole': ('dna', ''), 'azole antifungal': ('lanosterol', ''),
    'nucleoside antiviral': ('dna polymerase', ''), 'mycolic acid inhibitor': ('mycolic', ''), 'rifamycin antibiotic': ('rna polymerase', ''),
    'arabinosyltransferase inhibitor': ('arabinosyltransferase', ''), 'folate antagonist': ('dihydrofolate reductase', 'DHFR'), 'purine antimetabolite': ('purine|thioguan', ''),
    'calcineurin inhibitor': ('fk506|fkbp|calcineurin|cyclophilin|cis-trans isomerase', 'PPP3CA PPIA FKBP1A'),
}
ENZYMES = {'strong CYP3A4 inhibitors': 'CYP3A4', 'CYP2D6 inhibitors': 'CYP2D6', 'CYP1A2 inhibitors': 'CYP1A2'}  # interaction -> enzyme the drug must bind

# label sections (LOINC) that speak about an attribute, and how a label words a value
SECTIONS = {
    'class': '34089-3 34090-1 43679-0 42232-9 34067-9', 'indication': '34067-9', 'contraindication': '34070-3', 'renal dosing': '34068-7 43684-0', 'interaction': '34073-7 42232-9 34071-1 43685-7',
    'monitoring': '43685-7 34071-1 42232-9 34068-7', 'adverse effect': '34084-4 43685-7 34071-1 34066-1', 'pregnancy': '42228-7 34070-3 43684-0 34071-1 42232-9',
}
WORDS = {
    'statin': 'HMG-?\\s?CoA reductase', 'first-generation antipsychotic': 'butyrophenone', 'severe hepatic impairment': 'active liver disease|acute liver failure|decompensated cirrhosis',
    'no dose reduction': 'renal (?:dysfunction|impairment) is\\s+not necessary', 'strong CYP3A4 inhibitors': 'strong (?:inhibitors of )?CYP ?3A4', 'liver enzymes': 'liver enzyme',
    'avoidance throughout pregnancy': 'may cause fetal harm', 'use only if needed': 'only if the (?:potential )?benefit', 'QT-prolonging drugs': 'QT-prolonging', 'QT interval': 'QT',
}


@lru_cache(None)
def words(name: str) -> frozenset[str]:
    "A name as a set of words, so that `Diabetes Mellitus, Type 2` and `type 2 diabetes mellitus` are the same."
    return frozenset(re.findall(r'[a-z0-9]+', name.lower().replace("'s", '').replace('’s', ''))) - {'of', 'the', 'due', 'to', 'with', 'and', 's'}


def drug(name: str) -> str:
    "The name our tables use for a drug: lower case, without salt, synonyms resolved."
    name = ' '.join(name.lower().replace('_', ' ').split())
    name = DRUGS.get(name, name)
    return name if name in {'calcium gluconate', 'calcium chloride', 'magnesium sulfate', 'ferrous sulfate', 'ferrous gluconate', 'sodium chloride', 'sodium bicarbonate'} else DRUGS.get(SALTS.sub('', name), SALTS.sub('', name))


@lru_cache(None)
def names(disease: str) -> tuple[set[frozenset[str]], set[frozenset[str]]]:
    "The names that mean the disease, and the wider or narrower ones."
    same, near = DISEASES.get(disease, ('', ''))
    return {words(n) for n in (disease, *same.split(';')) if n.strip()}, {words(n) for n in near.split(';') if n.strip()}

# Comparing --------------------------------------------------------------------------------------------------------

@dataclass
class Verdict:
    fact: Fact
    verdict: str  # agree, near (a wider or narrower name), other (lists other things), against (says it is not so)
    says: str = ''  # what the source says


def short(items, n=8) -> str:
    items = sorted(set(items))
    return '; '.join(items[:n]) + (f'; and {len(items) - n} more' if len(items) > n else '')


def by_indication(facts: list[Fact], treats: dict[str, set[str]], against: dict[str, set[str]], complete: bool) -> list[Verdict]:
    "Compare `indication` and `first-line treatment` rows with drug -> diseases. With `complete` false only diseases the source knows are checkable."
    known = {words(d) for ds in (*treats.values(), *against.values()) for d in ds}
    whom = defaultdict(set)  # disease words -> drugs
    for d, ds in treats.items():
        for x in ds: whom[words(x)].add(d)
    out = []
    for f in facts:
        if f.attribute == 'indication':
            same, near = names(f.value)
            if f.subject not in treats and f.subject not in against or not complete and not (same | near) & known: continue
            has = {words(x) for x in treats.get(f.subject, ())}
            says = f'lists {short(treats[f.subject])}' if treats.get(f.subject) else 'lists no use of it'
            if same & has: out.append(Verdict(f, 'agree'))
            elif near & has: out.append(Verdict(f, 'near'))
            elif (same | near) & {words(x) for x in against.get(f.subject, ())}: out.append(Verdict(f, 'against', f'says it is no indication; {says}'))
            else: out.append(Verdict(f, 'other', says))
        elif f.attribute == 'first-line treatment' and f.value in TREATMENTS:
            same, near = names(f.subject)
            if not (same | near) & known: continue
            ours = {drug(d) for d in TREATMENTS[f.value].split()}
            if any(ours & whom[n] for n in same): out.append(Verdict(f, 'agree'))
            elif any(ours & whom[n] for n in near): out.append(Verdict(f, 'near'))
            else: out.append(Verdict(f, 'other', f'lists for the disease {short(set().union(*(whom[n] for n in same | near)))}'))
    return out


def pharmacotherapydb(path: Path, facts: list[Fact]) -> list[Verdict]:
    treats, against = defaultdict(set), defaultdict(set)
    with path.open(encoding='utf-8', newline='') as f:
        for row in csv.DictReader(f, delimiter='\t'):
            (against if row['category'] == 'NOT' else treats)[drug(row['drug'])].add(row['disease'])
    return by_indication(facts, treats, against, complete=False)


@lru_cache
def read_paths(path: Path) -> tuple[dict[str, set[str]], dict[str, set[str]]]:  # drug -> diseases, drug -> molecules on the way
    with gzip.open(path, 'rt', encoding='utf-8') as f: paths = yaml.load(f, getattr(yaml, 'CSafeLoader', yaml.SafeLoader))
    treats, nodes, molecular = defaultdict(set), defaultdict(set), {'Protein', 'GeneFamily', 'MacromolecularComplex', 'MolecularActivity', 'ChemicalSubstance'}
    for p in paths:
        name = drug(p['graph']['drug'])
        treats[name].add(p['graph']['disease'])
        nodes[name] |= {str(n['name']) for n in p['nodes'] if n['label'] in molecular}
    return treats, nodes


def drugmechdb(path: Path, facts: list[Fact]) -> list[Verdict]:
    treats, nodes = read_paths(path)
    out = by_indication(facts, treats, {}, complete=True)
    for f in facts:
        if f.attribute == 'class' and nodes.get(f.subject) and f.value in CLASSES:
            hit = any(re.search(CLASSES[f.value][0], n.lower()) for n in nodes[f.subject])
            out.append(Verdict(f, 'agree') if hit else Verdict(f, 'other', f'mechanism goes through {short(nodes[f.subject])}'))
    return out


def hetionet(path: Path, facts: list[Fact]) -> list[Verdict]:
    "Compound-binds-gene edges: does the drug bind the target of its class, and the enzyme whose inhibitors it must avoid? Only genes in the subgraph count."
    with lzma.open(path, 'rt', encoding='utf-8') as f: graph = json.load(f)
    name = {(n['kind'], n['identifier']): n['name'] for n in graph['nodes']}
    binds = defaultdict(set)
    for e in graph['edges']:
        if e['kind'] == 'binds': binds[drug(name[tuple(e['source_id'])])].add(name[tuple(e['target_id'])])
    known, out = set().union(*binds.values()), []
    for f in facts:
        genes = CLASSES.get(f.value, ('', ''))[1] if f.attribute == 'class' else ENZYMES.get(f.value, '') if f.attribute == 'interaction' else ''
        if f.subject not in binds or not (genes := set(genes.split()) & known): continue
        out.append(Verdict(f, 'agree') if genes & binds[f.subject] else Verdict(f, 'other', f'no edge to {short(genes)}'))
    return out


FORM = r'(?:\W+(?!and\b|or\b|with\b|plus\b)[\w.,%()]+){0,9}?'
TOPICAL = re.compile(r'\b(gel|cream|lotion|ointment|ophthalmic|otic|vaginal|topical|foam|shampoo)\b', re.I)

def labeledin(path: Path, facts: list[Fact]) -> list[Verdict]:
    "US label indications with annotated disease names. The file names no drug, so it is read off the sentence `<drug> tablets are indicated`."
    subjects = {f.subject for f in facts if f.attribute == 'indication'}
    known = {n: s for s in subjects for n in (s, *(k for k, v in DRUGS.items() if v == s))}
    pattern = re.compile(rf'(?<!and )(?<!with )(?<!as )(?<!of )(?<!plus )\b({"|".join(sorted(map(re.escape, known), key=len, reverse=True))})\b({FORM})\W+(?:is|are)\W+(?:\w+ ){{0,2}}(?:indicated|recommended|effective|useful|used)\b', re.I)
    found, texts = defaultdict(set), defaultdict(str)
    with gzip.open(path, 'rt', encoding='utf-8', errors='replace') as f:
        for line in f:
            cells = line.split('|')
            if len(cells) < 3: continue
            text = ' '.join(re.sub(r'<[^>]*>', ' ', cells[2]).split())
            m = pattern.search(text)
            if not m or TOPICAL.search(m[2]): continue
            texts[known[m[1].lower()]] += ' ' + text.lower()
            found[known[m[1].lower()]] |= {' '.join(t.lower().split()) for t in re.findall(r'<annotation[^>]*>([^<]*)</annotation>', cells[2])}
    out = []
    for f in facts:
        if f.attribute != 'indication' or not found.get(f.subject): continue
        has, (same, near), wide = [words(t) for t in found[f.subject]], names(f.value), DISEASES.get(f.value, ('', ''))[1].split(';')
        if any(n <= h for n in same for h in has): out.append(Verdict(f, 'agree'))
        elif f.value.lower() in texts[f.subject]: out.append(Verdict(f, 'agree'))
        elif any(n <= h for n in near for h in has) or any(' ' in n.strip() and n.strip() in texts[f.subject] for n in wide): out.append(Verdict(f, 'near'))
        else: out.append(Verdict(f, 'other', f'annotates {short(found[f.subject])}'))
    return out


def spl(folder: Path, facts: list[Fact]) -> list[Verdict]:
    "Structured product labels of our drugs: is the value worded in the section that speaks about the attribute?"
    try: from lxml import etree
    except ImportError as e: raise MedAgentError('lxml is not installed, so the labels were not read: pip install lxml') from e
    ns, out = {'h': 'urn:hl7-org:v3'}, []
    for path in sorted(folder.glob('*.xml.gz')):
        with gzip.open(path) as f: root = etree.fromstring(f.read(), etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False))
        generic = {drug(' '.join(' '.join(n.itertext()).split())) for n in root.iterfind('.//h:genericMedicine/h:name', ns)}
        sections = defaultdict(str)
        for s in root.iterfind('.//h:section', ns):
            if (code := s.find('h:code', ns)) is not None: sections[code.get('code')] += ' ' + ' '.join(' '.join(s.itertext()).split())
        for f in facts:
            if {f.subject} != generic: continue
            text = ' '.join(sections[c] for c in SECTIONS[f.attribute].split() if c in sections)
            if not text or f.attribute == 'renal dosing' and not re.search('renal|kidney|creatinine', text, re.I): continue
            want = WORDS.get(f.value) or re.escape(f.value).replace(r'\ ', r"(?:['’]s)? ")
            wide = [n.strip() for n in DISEASES.get(f.value, ('', ''))[1].split(';') if n.strip()] if f.attribute == 'indication' else []
            if re.search(want, text, re.I): out.append(Verdict(f, 'agree'))
            elif any(n in text.lower() for n in wide): out.append(Verdict(f, 'near'))
            else: out.append(Verdict(f, 'other', f'label {path.name}: {text[:120]}...'))
    return out


SOURCES = [  # name, path in FOLDER, function
    ('PharmacotherapyDB 1.0 (CC0)', 'kg/pharmacotherapydb_indications.tsv', pharmacotherapydb),
    ('DrugMechDB (CC0)', 'kg/drugmechdb_indication_paths.yaml.gz', drugmechdb),
    ('Hetionet subgraph around bupropion (CC0, parts CC BY-NC)', 'kg/hetionet_bupropion-CbGpPWpGaD-subgraph.json.xz', hetionet),
    ('LabeledIn, US label indications (public domain)', 'labels/LabeledIn_annotated_XML.txt.gz', labeledin),
    ('DailyMed structured labels (CC0)', 'labels/spl', spl),
]


def control(facts: list[Fact]) -> list[Fact]:
    "The same rows, each with the next value of its attribute that `not_wrong` allows as a wrong option: a check that means something agrees with few of them."
    taken, pool, out = not_wrong(), defaultdict(list), []
    for f in facts: pool[f.attribute].append(f.value)
    for i, f in enumerate(facts):
        values = list(dict.fromkeys(pool[f.attribute]))
        at = values.index(f.value)
        wrong = [v for v in values[at + 1:] + values[:at] if v not in taken[f.key]]
        out.append(replace(f, value=wrong[i % len(wrong)]) if wrong else f)
    return out


def also_true(facts: list[Fact], folder: Path) -> list[tuple[str, str, str]]:
    "Indications that a wrong option could name although a source lists exactly that disease for the drug."
    taken, values = not_wrong(), sorted({f.value for f in facts if f.attribute == 'indication'})
    tries = [replace(f, value=v) for f in facts if f.attribute == 'indication' for v in values if v not in taken[f.key]]
    found = defaultdict(list)
    for name, where, check in SOURCES:
        if check in (pharmacotherapydb, drugmechdb, labeledin) and (folder/where).exists():
            for v in check(folder/where, tries):
                if v.verdict == 'agree': found[v.fact.subject, v.fact.value].append(name.split(',')[0].split(' (')[0])
    return [(s, v, ', '.join(by)) for (s, v), by in found.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description='Check the starter fact tables against open data.')
    parser.add_argument('folder', type=Path, help='folder with kg/ and labels/')
    parser.add_argument('--also-true', action='store_true', help='list further indications that could be offered as wrong although a source lists them')
    args = parser.parse_args()
    folder = args.folder
    if not folder.is_dir():
        print(f'{folder} is not a folder; give the folder that holds kg/ and labels/.')
        return 2
    try: facts, wrong = list(load_facts()), control(list(load_facts()))
    except MedAgentError as e:
        print(e)
        return 2
    seen, missing = defaultdict(list), 0
    for name, where, check in SOURCES:
        print(f'\n{name}: {where}')
        if not (folder/where).exists():
            print(f'  missing: {folder/where}; this source was skipped.')
            missing += 1
            continue
        try: verdicts = check(folder/where, facts)
        except MedAgentError as e:
            print(f'  {e}')
            missing += 1
            continue
        for v in verdicts: seen[v.fact.key].append(v)
        n = {k: sum(v.verdict == k for v in verdicts) for k in ('agree', 'near', 'other', 'against')}
        parts = defaultdict(int)
        for v in verdicts: parts[v.fact.attribute] += 1
        print(f'  checkable {len(verdicts)} ({", ".join(f"{a} {c}" for a, c in parts.items())}), agree {n["agree"] + n["near"]}'
              f' ({n["near"]} of them by a wider or narrower name), disagree {n["other"] + n["against"]}')
        fake = check(folder/where, wrong)
        print(f'  control with wrong values: {sum(v.verdict in ("agree", "near") for v in fake)} of {len(fake)} agree')
        for v in verdicts:
            if v.says: print(f'  - {v.fact.subject} | {v.fact.attribute} | {v.fact.value}: {v.says}')
    agreed = {k for k, vs in seen.items() if any(v.verdict in ('agree', 'near') for v in vs)}
    print(f'\nAll sources: {len(facts)} rows, {len(seen)} checkable by at least one source, {len(agreed)} of these agree with at least one, {len(seen) - len(agreed)} with none.')
    for attribute in dict.fromkeys(f.attribute for f in facts):
        keys = [f.key for f in facts if f.attribute == attribute]
        print(f'  {attribute}: {len(keys)} rows, {sum(k in seen for k in keys)} checkable, {sum(k in agreed for k in keys)} agree')
    for k in seen:
        if k not in agreed: print(f'  no source agrees: {k[0]} | {k[1]} | {seen[k][0].fact.value}')
    if args.also_true:
        print('\nCould be offered as wrong, but a source lists it:')
        for subject, value, by in also_true(facts, folder): print(f'  {subject} | indication | {value} ({by})')
    return 1 if missing else 0


if __name__ == '__main__': sys.exit(main())
