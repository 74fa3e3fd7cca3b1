"Answers: a table of responses with the reading a careful person gives; None where no single option was chosen."
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medagent.evaluation.answers import normalise, read_answer
from medagent.settings import MedAgentError

DRUGS = dict(A='Heparin', B='Vitamin K', C='Vitamin C', D='Protamine sulfate')
FIVE = DRUGS | dict(E='Idarucizumab')
TEN = {k: f'{w} syndrome' for k, w in zip('ABCDEFGHIJ', 'Alport Barlow Cushing Dressler Ehlers Felty Gitelman Horner Ivemark Jacod'.split())}
CHECKS = dict(A='renal function', B='thyroid function', C='liver enzymes', D='blood pressure')
YNM = dict(A='yes', B='no', C='maybe')
HEART = dict(A='Heart failure', B='Acute heart failure', C='Myocarditis', D='Pericarditis')
GERMS = dict(A='E. coli', B='C. difficile', C='H. pylori', D='Group B streptococcus')
DOSES = dict(A='0.5 mg', B='5 mg', C='2.5 mg', D='50 mg')
BLOOD = dict(A='AB', B='A', C='B', D='O')
PERCENT = dict(A='5%', B='12%', C='50%', D='75%')
BETA = dict(A='ACE inhibitor', B='Beta blocker', C='Loop diuretic', D='Statin')
TWINS = dict(A='Aspirin', B='Aspirin', C='Clopidogrel', D='Warfarin')
UNITS = dict(A='5 units', B='10 units', C='20 units', D='40 units')
STAGES = dict(A='Stage 1', B='Stage 2', C='Stage 3', D='Stage 4')
SHOCK = dict(A='Heart failure', B='Heart failure with shock', C='Sepsis', D='Stroke')
ALL = dict(A='Fever', B='Rash', C='All of the above', D='None of the above')

LETTERS = [
    # bare and decorated
    ('B', DRUGS, 'B'), ('b', DRUGS, 'B'), (' B. ', DRUGS, 'B'), ('(B)', DRUGS, 'B'), ('[B]', DRUGS, 'B'), ('B)', DRUGS, 'B'), ('(b)', DRUGS, 'B'), ('**B**', DRUGS, 'B'), ('**B.**', DRUGS, 'B'),
    ('*B*', DRUGS, 'B'), ('`B`', DRUGS, 'B'), ('"B"', DRUGS, 'B'), ('Ｂ', DRUGS, 'B'), (r'\boxed{B}', DRUGS, 'B'), (r'$\boxed{\text{B}}$', DRUGS, 'B'), (r'\boxed{B. Vitamin K}', DRUGS, 'B'),
    (r'\boxed{\text{Vitamin K}}', DRUGS, 'B'), (r'The answer is \boxed{D}.', DRUGS, 'D'), ('Option B', DRUGS, 'B'), ('answer: b', DRUGS, 'B'), ('A', DRUGS, 'A'), ('a', DRUGS, 'A'), ('I', TEN, 'I'), ('J.', TEN, 'J'),
    # letter with text
    ('B. Vitamin K', DRUGS, 'B'), ('B) Vitamin K', DRUGS, 'B'), ('(B) Vitamin K', DRUGS, 'B'), ('B: Vitamin K', DRUGS, 'B'), ('B - Vitamin K', DRUGS, 'B'), ('B – vitamin k.', DRUGS, 'B'), ('B, vitamin K', DRUGS, 'B'),
    ('B\nVitamin K', DRUGS, 'B'), ('B.Vitamin K', DRUGS, 'B'), ('**B. Vitamin K**', DRUGS, 'B'), ('**(B)** Vitamin K', DRUGS, 'B'), ('Vitamin K (B)', DRUGS, 'B'), ('b) vitamin K', DRUGS, 'B'), ('A. E. coli', GERMS, 'A'),
    ('D. Group B streptococcus', GERMS, 'D'), ('B. It carboxylates clotting factors.', DRUGS, 'B'), ('B because it restores clotting factors', DRUGS, 'B'), ('B, since heparin is not involved', DRUGS, 'B'),
    # stated
    ('The answer is B', DRUGS, 'B'), ('The answer is (B).', DRUGS, 'B'), ('The correct answer is: B. Vitamin K', DRUGS, 'B'), ('Answer: B', DRUGS, 'B'), ('**Answer:** B', DRUGS, 'B'), ('Final answer: **B**', DRUGS, 'B'),
    ('The answer is option D.', DRUGS, 'D'), ('The answer is b.', DRUGS, 'B'), ('Answer B', DRUGS, 'B'), ('The best answer would be B, vitamin K.', DRUGS, 'B'), ('I choose B', DRUGS, 'B'), ('I would go with option C.', DRUGS, 'C'),
    ('I think the answer is B.', DRUGS, 'B'), ('Option B is correct.', DRUGS, 'B'), ('B is the correct answer.', DRUGS, 'B'), ('B is the most appropriate choice, A is not.', DRUGS, 'B'), ('The correct option is D', DRUGS, 'D'),
    ('Antwort: C', DRUGS, 'C'), ('Antwort:\n\nAntwort: C', DRUGS, 'C'), ('La respuesta es B.', DRUGS, 'B'), ('Réponse : D', DRUGS, 'D'), ('答案：B', DRUGS, 'B'), ('The answer to the question is vitamin K.', DRUGS, 'B'),
    ('It is B.', DRUGS, 'B'), ('The answer is A.', DRUGS, 'A'), ('The answer is F.', TEN, 'F'), ('The patient bleeds under warfarin.\n\nAnswer: B', DRUGS, 'B'), ('Warfarin is reversed within hours. The answer is B because heparin is reversed by protamine sulfate.', DRUGS, 'B'),
    # elimination and negation
    ('not A but C', DRUGS, 'C'), ('Not A, but B.', DRUGS, 'B'), ('A is wrong, so B', DRUGS, 'B'), ('A is wrong, B is right', DRUGS, 'B'), ('B, not A', DRUGS, 'B'), ('It is B, not A.', DRUGS, 'B'), ('A and D are incorrect; therefore B.', DRUGS, 'B'),
    ('A, C and D are wrong. The answer is B.', DRUGS, 'B'), ('Rule out A and D. B.', DRUGS, 'B'), ('B rather than A', DRUGS, 'B'), ('Neither A nor C, so it must be D.', DRUGS, 'D'), ('Not heparin but vitamin K', DRUGS, 'B'),
    ('Vitamin K, not protamine sulfate.', DRUGS, 'B'), ('Heparin is incorrect. Vitamin K reverses warfarin.', DRUGS, 'B'), ('The answer is not A; the answer is D.', DRUGS, 'D'), ('Between A and B, I choose B.', DRUGS, 'B'),
    ('(A) is wrong, (B) is right.', DRUGS, 'B'), ("It isn't A, it's C.", DRUGS, 'C'), ('Wrong answers are A and C. Correct answer: D', DRUGS, 'D'), ('A is less likely than B, so B.', DRUGS, 'B'), ('B\n\nA is wrong because it prevents clots.', DRUGS, 'B'),
    # option text
    ('vitamin k', DRUGS, 'B'), ('Vitamin  K.', DRUGS, 'B'), ('thyroid function', CHECKS, 'B'), ('Thyroid function should be checked.', CHECKS, 'B'), ('Monitor liver enzymes during treatment.', CHECKS, 'C'), ('Acute heart failure', HEART, 'B'),
    ('This is acute heart failure.', HEART, 'B'), ('This is heart failure.', HEART, 'A'), ('E. coli', GERMS, 'A'), ('Infection with C. difficile', GERMS, 'B'), ('group b streptococcus', GERMS, 'D'), ('a beta blocker', BETA, 'B'), ('A beta blocker', BETA, 'B'),
    ('A loop diuretic', BETA, 'C'), ('5 mg', DOSES, 'B'), ('The answer is 0.5 mg.', DOSES, 'A'), ('12%', PERCENT, 'B'), ('The answer is 12%', PERCENT, 'B'), ('AB', BLOOD, 'A'), ('O', BLOOD, 'D'), ('All of the above', ALL, 'C'), ('Clopidogrel', TWINS, 'C'),
    ('Thyroid function, because lithium impairs it; renal function is watched too.', CHECKS, 'B'), ('“Vitamin K”', DRUGS, 'B'), ('The answer is thyroid function', CHECKS, 'B'), ('VITAMIN K', DRUGS, 'B'), ('so: so, vitamin\nK', DRUGS, 'B'),
    ('This is heart failure with shock.', SHOCK, 'B'), ('Give 5 units now.', UNITS, 'A'), ('It is stage 2 disease.', STAGES, 'B'),
    # yes, no, maybe
    ('yes', YNM, 'A'), ('No.', YNM, 'B'), ('Maybe', YNM, 'C'), ('Yes, there is no difference between the arms.', YNM, 'A'), ('No, because the trial was small.', YNM, 'B'), ('The answer is no.', YNM, 'B'), ('The answer is yes', YNM, 'A'),
    ('A', YNM, 'A'), ('B. no', YNM, 'B'), ('(A) yes', YNM, 'A'), ('yes (A)', YNM, 'A'), ('**Maybe**', YNM, 'C'), ('Answer: maybe, the evidence is mixed', YNM, 'C'), ('No - the rates were equal.', YNM, 'B'),
    # mixtures
    ('The answer is A because B is a cofactor.', DRUGS, 'A'), ('Answer: B (not C)', DRUGS, 'B'), ('My answer: C\nReasoning: it reduces iron.', DRUGS, 'C'), ('C is the answer.', DRUGS, 'C'), ('Choice B: vitamin K', DRUGS, 'B'),
    ('The correct answer is B. Option A is incorrect because it prevents clots, and option C is an antioxidant.', DRUGS, 'B'), ('A is not correct; B is.', DRUGS, 'B'), ('Vitamin K is the answer.', DRUGS, 'B'), ('The drug of choice is vitamin K.', DRUGS, 'B'),
    ('A. Heparin\nB. Vitamin K\nC. Vitamin C\nD. Protamine sulfate\n\nAnswer: D', DRUGS, 'D'), ('Answer: None of the above', ALL, 'D'), ('The answer is yes, not no.', YNM, 'A'), ('Because lithium impairs it, thyroid function is checked.', CHECKS, 'B'),
    ('Give idarucizumab, which spares heparin.', FIVE, 'E'), ('C\n\nExplanation: A and B act elsewhere.', DRUGS, 'C'), ('The answer is B. Vitamin K, whereas A. Heparin is an anticoagulant.', DRUGS, 'B'),
    ('The options are A, B, C and D. The answer is C.', DRUGS, 'C'), ('B or B', DRUGS, 'B'),
    # whole responses
    ('[Think] A or C?\n[Evidence] B is not used [#1].\n[Answer] D', DRUGS, 'D'), ('[Answer] A\n[Think] wait\n[Answer] B', DRUGS, 'B'), ('[Answer] vitamin K\n', DRUGS, 'B'), ('[Think] The answer is A.\n  [Answer] **B**', DRUGS, 'B'),
    ('[Answer]\nB. Vitamin K\nIt restores clotting factors.', DRUGS, 'B'),
]

NUMBERS = dict(A='0.5 mg', B='5 mg', C='≥5 mg/kg', D='10⁵ CFU/mL')
MORE = dict(A='5 mg', B='> 5 mg', C='5 mg/kg', D='50 mg')
LETTERS += [
    ('> 5 mg', MORE, 'B'), ('5 mg', MORE, 'A'), ('>= 5 mg/kg', NUMBERS, 'C'), ('≥ 5 mg/kg', NUMBERS, 'C'), ('10⁵ CFU/mL', NUMBERS, 'D'), ('Give 5 mg/day.', NUMBERS, 'B'), ('The dose is 5mg.', NUMBERS, 'B'),
    ('Antwort B', DRUGS, 'B'), ('Die Antwort lautet B.', DRUGS, 'B'), ('Richtig ist B.', DRUGS, 'B'), ('选B', DRUGS, 'B'), ('B (most likely)', DRUGS, 'B'), ('B is more likely than A.', DRUGS, 'B'), ('{"answer": ["B"]}', DRUGS, 'B'), (r'\(B\)', DRUGS, 'B'), ('{B}', DRUGS, 'B'), 
    ('Q: which one? A: B', DRUGS, 'B'), ('Do not give heparin; give vitamin K instead.', DRUGS, 'B'), ('Switch from heparin to protamine sulfate.', DRUGS, 'D'), ('The answer is C. Wait, the answer is D.', DRUGS, 'D'), ('<think>A or B?</think>\nC', DRUGS, 'C'), ('A. No wait, C.', DRUGS, 'C'), ('A (not B)', DRUGS, 'A'),
]
RISKY = 'Cease heparin.|Contraindicated: heparin|Heparin is harmful.|Heparin antibodies|An alternative to heparin|Reverse heparin|If renal function is normal, heparin|Discontinue heparin.|Hold heparin.|He must not get heparin.|Heparin has no role.|There is no role for heparin.|Heparin does not help.|I would never use heparin.|The answer is anything but heparin.|Everything other than heparin|Low molecular weight heparin|Heparin overdose|Vitamin K should be avoided.|The patient should not receive vitamin K.|Vitamin K deficiency|Answer: Vitamin K antagonist|A is the best answer if the patient is on heparin; otherwise B.'

NONE = [
    *((text, DRUGS) for text in RISKY.split('|')), *((text, NUMBERS) for text in ('.5 mg', 'less than 5 mg', '5 mg/dL', '1/5 mg', '2 × 5 mg', '2.5 to 5 mg', '105 CFU/mL', 'at least 5 mg', 'up to 5 mg', 'below 5 mg', '5 mg or less', 'not exceeding 5 mg')), ('The answer is C. Wait, that is not right.', DRUGS), ('hepatitis B and C', DRUGS), ('Yes — maybe', YNM),
    ('', DRUGS), ('   \n', DRUGS), (None, DRUGS), ('E', DRUGS), ('Z', DRUGS), ('F. Something', FIVE), ('The answer is E.', DRUGS), ('?', DRUGS), ('None of these.', DRUGS), ('I do not know.', TEN), ('I am not sure.', TEN), ('N/A', DRUGS), ('A-D', DRUGS),
    ('A or B', DRUGS), ('A and C', DRUGS), ('A, B', DRUGS), ('A/B', DRUGS), ('A. B. C. D.', DRUGS), ('(A) (B)', DRUGS), ('Both A and B are correct.', DRUGS), ('The answer is A or B.', DRUGS), ('B. The answer is C.', DRUGS), ('The answer is A. No, the answer is B.', DRUGS),
    (r'\boxed{A} \boxed{B}', DRUGS), (r'\boxed{A and B}', DRUGS), ('Options B and C', DRUGS), ('Heparin and vitamin K', DRUGS), ('Heparin or protamine sulfate.', DRUGS), ('A: B', DRUGS), ('D, E and K are stored in fat', FIVE),
    ('A. Vitamin K', DRUGS), ('The answer is A, vitamin K.', DRUGS), ('Vitamin K (A)', DRUGS), ('C) Protamine sulfate', DRUGS),
    ('A beta blocker', DRUGS), ('A 55-year-old man bleeds.', DRUGS), ('a drug', DRUGS), ('The answer is a beta blocker.', DRUGS), ('A', BLOOD), ('B', BLOOD),
    ('vitamin A', DRUGS), ('Hepatitis B', DRUGS), ('hepatitis A, B and C', DRUGS), ('Give vitamins A, D and E.', FIVE), ('factor V Leiden', DRUGS), ('group B streptococcus', DRUGS), ('Streptococcus group B', DRUGS), ('B cells', DRUGS), ('E. coli', FIVE), ('C. difficile', DRUGS),
    ('c. difficile infection', DRUGS), ('C-reactive protein', DRUGS), ('D-dimer', DRUGS), ('vitamin B12', DRUGS), ('given i.v. or I.V.', TEN), ('37 C', DRUGS), ('B.i.d. dosing', DRUGS), ('E.g. warfarin', FIVE), ('Type A personality', DRUGS), ('Child-Pugh C', DRUGS),
    ('Unable to decide: Both', DRUGS), ('Diagnosis: Cushing syndrome', DRUGS), ('Amphotericin B is given', DRUGS), ('stage C heart failure', DRUGS), ('HLA-B27', DRUGS), ('I', DRUGS), ('haemophilia A', DRUGS),
    ('A is wrong', DRUGS), ('not B', DRUGS), ('A, C and D are wrong', DRUGS), ('Not vitamin K.', DRUGS), ('Neither A nor B', DRUGS), ('Rule out D', DRUGS), ('It cannot be heparin, vitamin K is unlikely', DRUGS),
    ('The answer cannot be A.', DRUGS), ("The answer can't be A.", DRUGS), ('The answer could not be vitamin K.', DRUGS), ('The answer is neither A nor B.', DRUGS), ('The answer is definitely not B.', DRUGS), ('I doubt it is B.', DRUGS),
    ('All except B', DRUGS), ('If B is correct, the INR falls.', DRUGS), ('Is it B?', DRUGS), ('(A) heparin, (B) vitamin K', DRUGS), ('A. Heparin\nB. Vitamin K\nC. Vitamin C\nD. Protamine sulfate', DRUGS), ('Give protamine, since it binds heparin.', DRUGS),
    ('Give andexanet, which does not bind heparin.', DRUGS), ('Yes/No', YNM), ('The answer is unknown. A trial is needed.', DRUGS), ('As in group A, B was stopped.', DRUGS),
    ('A 30-year-old was transfused.', BLOOD), ('Vitamin A is the correct answer.', DRUGS), ('Hepatitis B is right.', DRUGS), ('The answer is A beta blocker.', DRUGS), ('Answer: A 55-year-old needs it.', DRUGS),
    ('N/A is the right answer', DRUGS), ('37 C is the right choice.', DRUGS), ('Give 2.5 units.', UNITS), ('Stage 2.5 disease', STAGES), ('Stage 1-like disease', STAGES),
    ('Give warfarin.', DRUGS), ('Aspirin', TWINS), ('grade 5 toxicity', PERCENT), ('15 mg', DOSES), ('1.5 mg', DOSES), ('0.55 mg', DOSES), ('beta-blocker-like heart failures', HEART), ('antithyroid functions', CHECKS),
    ('No evidence supports a difference.', YNM), ('There is no difference.', YNM), ('yes and no', YNM), ('Not yes', YNM), ('A. no', YNM), ('Possibly', YNM), ('Nobody knows', YNM), ('Maybe yes, maybe no.', YNM), ('perhaps', YNM),
    ('[Think] The answer is A.', DRUGS), ('[Think] B\n[Evidence] It is B [#1].', DRUGS), ('[Answer]', DRUGS), ('[Answer] B\n[Answer]', DRUGS), ('[Observation #1] Answer: C', DRUGS),
    ('B', {}), ('The answer is B.', {}),
]


def test_table_size(): assert len(LETTERS) + len(NONE) >= 80 and len({(t, str(o)) for t, o, *_ in LETTERS + NONE}) == len(LETTERS) + len(NONE)


@pytest.mark.parametrize('text, options, letter', LETTERS)
def test_letter(text, options, letter):
    a = read_answer(text, options)
    assert a.letter == letter, a


@pytest.mark.parametrize('text, options', NONE)
def test_none(text, options):
    a = read_answer(text, options)
    assert a.letter is None, a


@pytest.mark.parametrize('text, options, rule', [
    ('', DRUGS, 'empty'), ('[Think] B', DRUGS, 'no-answer-block'), ('A or B', DRUGS, 'several'), ('not B', DRUGS, 'eliminated'), ('E', DRUGS, 'not-an-option'), ('Give warfarin.', DRUGS, 'unreadable'),
    ('vitamin K', DRUGS, 'option-text'), ('(B)', DRUGS, 'letter'), ('The answer is B', DRUGS, 'stated'), ('not A but C', DRUGS, 'cue'), ('Give vitamin K now', DRUGS, 'text-within')])
def test_rule(text, options, rule): assert read_answer(text, options).rule == rule


def test_text_is_what_was_read():
    assert read_answer('[Think] x\n[Answer]  B. Vitamin K \n', DRUGS).text == 'B. Vitamin K'


def test_options_are_checked():
    for bad in ({'a': 'x'}, {'AB': 'x'}, {'': 'x'}, {'K': 'x'}):
        with pytest.raises(MedAgentError, match='A to J'): read_answer('B', bad)


def test_normaliser_keeps_what_medicine_needs():
    assert normalise('≥ 0.5 µg/mL.') == '≥ 0.5 μg/ml' and normalise('Ca²⁺') != normalise('Ca') and normalise('-2') != normalise('2') and normalise('A') != normalise('')


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.lists(st.sampled_from(['A', 'B', '(C)', 'not', 'is wrong', 'the answer is', ',', '.', '\n', 'vitamin K', 'vitamin', 'heparin', '[Answer]', '⟦A⟧', '\\boxed{', '}', '**', 'so']), max_size=12).map(' '.join))
def test_any_text(text):
    a = read_answer(text, DRUGS)
    assert a.letter is None or a.letter in DRUGS
    assert (a.letter is None) == (a.rule in ('empty', 'no-answer-block', 'several', 'eliminated', 'undecided', 'not-an-option', 'unreadable'))


@given(st.permutations(['Heparin', 'Vitamin K', 'Protamine sulfate', 'Idarucizumab']), st.integers(0, 3))
def test_order_of_options_does_not_matter(texts, i):
    options = dict(zip('ABCD', texts))
    assert read_answer(f'Give {texts[i].lower()} at once.', options).letter == 'ABCD'[i]
    assert read_answer(f'{"ABCD"[i]}. {texts[i]}', options).letter == 'ABCD'[i]


@pytest.mark.parametrize('piece', ['A ', 'A, ', 'not A ', 'the answer is ', 'vitamin K, ', '(', '**', 'answer: ', 'option B ', '\n', 'is '])
def test_time_is_bounded(piece):
    start = time.process_time()
    read_answer(piece * 2000, DRUGS)
    assert time.process_time() - start < 3.0
