"The entailment verifier and its training, on tiny models made here."
import errno
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, RobertaConfig

from medagent.settings import MedAgentError
from medagent.verifier.finetune import Pair, _rows, error_rates, read_pairs, train_verifier
from medagent.verifier.nli import (PROBES, FunctionVerifier, ScoreCache, Verifier, check_probes, entailment_index, folder_revision, premise_windows, probe_pairs,
                                   two_segments, window)

WORDS = ('lithium warfarin clozapine digoxin thyroid function INR neutrophil count serum potassium requires does not require monitoring of '
         'checked in patients on the dose is below 30 mL min adults bleeding was associated with').split()
DRUGS = {'lithium': 'thyroid function', 'warfarin': 'INR', 'clozapine': 'neutrophil count', 'digoxin': 'serum potassium'}


def word_tokenizer(words=WORDS):
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(dict.fromkeys(['[PAD]', '[UNK]', '[CLS]', '[SEP]', *words, '.', '[', ']']))}, unk_token='[UNK]'))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single='[CLS] $A [SEP]', pair='[CLS] $A [SEP] $B:1 [SEP]:1',
                                                             special_tokens=[('[CLS]', 2), ('[SEP]', 3)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token='[PAD]', unk_token='[UNK]', cls_token='[CLS]', sep_token='[SEP]')


def tiny_config(labels=('not_entailment', 'entailment'), **more):
    return BertConfig(**dict(vocab_size=len(word_tokenizer()), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                             max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=.5,
                             id2label=dict(enumerate(labels)), label2id={label: i for i, label in enumerate(labels)}) | more)


def save(path, config, seed=0):
    torch.manual_seed(seed)
    BertForSequenceClassification(config).save_pretrained(path)
    word_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp('nli')/'tiny', tiny_config())


def some_pairs(n, seed):
    rng = random.Random(seed)
    return [(' '.join(rng.choices(WORDS, k=rng.randint(1, 90))), ' '.join(rng.choices(WORDS, k=rng.randint(1, 12)))) for _ in range(n)]


# labels

@pytest.mark.parametrize('labels, index', [
    (['entailment', 'neutral', 'contradiction'], 0), (['CONTRADICTION', 'NEUTRAL', 'ENTAILMENT'], 2), (['not_entailment', 'entailment'], 1),
    (['Entailed', 'Not Entailed'], 0), (['non-entailment', 'entail'], 1), (['notEntailment', 'entailment'], 1), (['no entailment', 'entailment'], 1)])
def test_entailment_label_is_found(labels, index):
    assert entailment_index(dict(enumerate(labels))) == index


@pytest.mark.parametrize('labels', [['LABEL_0', 'LABEL_1'], ['LABEL_0'], ['positive', 'negative'], ['not_entailment', 'other'], ['entailment', 'ENTAILMENT']])
def test_labels_that_establish_nothing_are_refused(labels, tmp_path):
    with pytest.raises(MedAgentError, match='id2label') as caught:
        Verifier.from_folder(save(tmp_path/'model', tiny_config(labels)))
    assert labels[0] in str(caught.value)


def test_three_labels_in_any_order(tmp_path):
    pair = [('lithium requires monitoring of thyroid function', 'lithium requires monitoring')]
    model = BertForSequenceClassification(tiny_config(('contradiction', 'entailment', 'neutral'))).eval()
    with torch.no_grad():
        expected = model(**word_tokenizer()(*pair[0], return_tensors='pt', return_token_type_ids=True)).logits.softmax(-1)[0, 1].item()
    assert Verifier(model, word_tokenizer(), 'three').score(pair)[0] == pytest.approx(expected, abs=1e-6)


def test_a_model_with_two_segments_is_told_which_text_a_token_is_in(tmp_path):
    "A tokenizer saved without token types must not turn premise and claim into one text, neither in scoring nor in training."
    tokenizer, model = word_tokenizer(), BertForSequenceClassification(tiny_config(('not_entailment', 'entailment'))).eval()
    assert 'token_type_ids' not in tokenizer.model_input_names
    pair = ('lithium requires monitoring of thyroid function', 'lithium requires monitoring')
    with torch.no_grad():
        score = lambda **kw: model(**tokenizer(*pair, return_tensors='pt', **kw)).logits.softmax(-1)[0, 1].item()
        told, untold = score(return_token_type_ids=True), score()
    assert abs(told - untold) > 1e-4 and Verifier(model, tokenizer, 'two').score([pair])[0] == pytest.approx(told, abs=1e-6)
    assert [r['token_type_ids'] for r in _rows([Pair(*pair, 1)], tokenizer, 64, two_segments(model))] == [tokenizer(*pair, return_token_type_ids=True)['token_type_ids']]
    model.config.type_vocab_size = 0  # as in DeBERTa-v3
    assert two_segments(model) is None


# scores

def test_alone_equals_in_any_batch(folder):
    pairs = some_pairs(60, seed=1)
    alone = np.concatenate([Verifier.from_folder(folder).score([p]) for p in pairs[:5]] + [Verifier.from_folder(folder, batch_size=1).score(pairs[5:])])
    assert alone.std() > .05
    for batch_size in (7, 64):
        for order in (range(60), random.Random(batch_size).sample(range(60), 60)):
            together = Verifier.from_folder(folder, batch_size=batch_size).score([pairs[i] for i in order])
            assert np.abs(together - alone[list(order)]).max() < 1e-5


def test_scores_are_float64_probabilities_in_order(folder):
    scores = Verifier.from_folder(folder).score(some_pairs(20, seed=2))
    assert scores.dtype == np.float64 and scores.shape == (20,) and ((scores >= 0) & (scores <= 1)).all()


def test_duplicates_run_once_and_the_cache_is_used(folder, monkeypatch):
    verifier = Verifier.from_folder(folder, batch_size=4, premises='truncate')
    rows = []
    forward = verifier.model.forward
    monkeypatch.setattr(verifier.model, 'forward', lambda **batch: (rows.append(len(batch['input_ids'])), forward(**batch))[1])
    pairs = some_pairs(10, seed=3)
    first = verifier.score(pairs*8)
    assert sum(rows) == 10 == verifier.scored and verifier.asked == 80
    assert (verifier.score(pairs[::-1]) == first[9::-1]).all() and sum(rows) == 10
    verifier.score([*pairs[:3], ('warfarin', 'INR')])
    assert sum(rows) == 11 == verifier.scored


def test_premise_and_claim_are_not_interchanged_in_the_cache(folder):
    verifier = Verifier.from_folder(folder)
    one = verifier.score([('lithium', 'warfarin INR')])
    assert verifier.score([('warfarin INR', 'lithium')]) != one and verifier.scored == 2


def test_the_cache_stays_bounded(folder):
    verifier = Verifier.from_folder(folder)
    verifier.cache_size = 4
    pairs = some_pairs(9, seed=4)
    scores = verifier.score(pairs)
    assert list(verifier.cache) == pairs[-4:] and (Verifier.from_folder(folder).score(pairs) == scores).all()


def test_the_premise_is_cut_and_never_the_claim(folder):
    verifier = Verifier.from_folder(folder, premises='truncate')
    claim = 'lithium requires monitoring of thyroid function'
    premise = ' '.join(some_pairs(1, seed=5)[0][0].split()*40)
    base, longer, shorter, other = verifier.score([(premise, claim), (premise + ' warfarin', claim), ('warfarin ' + premise, claim), (premise, claim + ' not')])
    assert base == pytest.approx(longer, abs=1e-6) and abs(base - shorter) > 1e-5 and abs(base - other) > 1e-5


def test_a_claim_longer_than_its_passage_is_still_read_to_the_end(folder):
    claim, premise = 'warfarin ' * 45, 'lithium ' * 40
    cut, other = Verifier.from_folder(folder).score([(premise, claim + 'INR'), (premise, claim + 'thyroid')])
    assert abs(cut - other) > 1e-5


def test_a_smaller_window_reads_less(folder):
    pair = [(' '.join(['lithium']*10 + ['warfarin']*10), 'INR')]
    assert Verifier.from_folder(folder, max_length=14, premises='truncate').score(pair) == pytest.approx(Verifier.from_folder(folder).score([('lithium '*10, 'INR')])[0], abs=1e-6)


def test_a_very_long_passage_is_read_to_the_window(folder):
    scores = Verifier.from_folder(folder, premises='truncate').score([('lithium requires monitoring ' * 4000, 'lithium'), ('lithium requires monitoring ' * 40, 'lithium')])
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


# windows

@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(['Lithium', 'was', 'given', 'to', '40', 'adults', '.', '. ', '!', 'INR rose', '\n', '0.5', 'e.g.']), min_size=1, max_size=60).map(' '.join), st.integers(1, 30))
def test_windows_cover_the_text_and_fit(text, room):
    tokens = [m.span() for m in re.finditer(r'\w+|[^\w\s]', text)]
    found = premise_windows(text, tokens, room)
    if len(tokens) <= room: assert found == [(0, len(text))]
    else:
        for a, b in found: assert 0 < sum(a <= x < b for x, _ in tokens) <= room
        assert all(any(a <= x and y <= b for a, b in found) for x, y in tokens) and found == sorted(found) and len(set(found)) == len(found)


def test_the_score_of_a_long_passage_is_that_of_its_best_window(folder):
    "Wherever the decisive words stand: windows find them, truncation only at the start."
    verifier, cut = Verifier.from_folder(folder), Verifier.from_folder(folder, premises='truncate')
    filler, claim = 'patients on the dose . ' * 40, 'warfarin requires INR'
    candidates = {t: verifier.score([(t, claim)])[0] for t in (' '.join(random.Random(i).choices(WORDS, k=6)) + ' .' for i in range(40))}
    best = max(candidates, key=candidates.get)
    for at in (0, 2, 4):
        text = filler*at + best + ' ' + filler*(4 - at)
        reading, = verifier.read([(text, claim)])
        inside = verifier.score([(text[reading.start:reading.end], claim)])[0]
        assert reading.score == pytest.approx(inside, abs=1e-6) and reading.score >= cut.score([(text, claim)])[0] - 1e-6
    assert verifier.read([('lithium', claim)])[0][1:] == (0, 7)


def test_a_hundred_thousand_characters_are_read_to_the_end(folder):
    text = 'lithium requires monitoring . ' * 3500
    assert len(text) > 100_000
    reading, = Verifier.from_folder(folder).read([(text, 'lithium requires monitoring')])
    assert 0 <= reading.score <= 1 and reading.end - reading.start < 400


# probes

def test_probes_refuse_a_swapped_head(tmp_path):
    "A model that reads the probe words and was saved with its two labels exchanged."
    words = sorted({w for pair in probe_pairs() for text in pair for w in re.findall(r'\w+|[^\w\s]', text)})
    tokenizer = word_tokenizer(words)
    pairs = [(p, c, int(i < len(PROBES))) for i, (p, c) in enumerate(probe_pairs())]
    train_verifier(pairs, tmp_path/'good', tiny_config(vocab_size=len(tokenizer)), tokenizer, steps=150, lr=3e-3, batch_size=8, max_length=64, progress=False)
    assert Verifier.from_folder(tmp_path/'good').probed
    config = json.loads((tmp_path/'good'/'config.json').read_text())
    config['id2label'], config['label2id'] = {'0': 'entailment', '1': 'not_entailment'}, {'entailment': 0, 'not_entailment': 1}
    (tmp_path/'good'/'config.json').write_text(json.dumps(config))
    with pytest.raises(MedAgentError, match="output 1 \\('not_entailment'\\) behaves like it"): Verifier.from_folder(tmp_path/'good')


def test_a_verifier_that_does_not_know_the_words_is_not_probed(folder):
    assert not Verifier.from_folder(folder).probed


def test_probes_of_a_model_that_says_always_the_same():
    with pytest.raises(MedAgentError, match='does not tell what follows'): check_probes(np.tile([.3, .7], (2*len(PROBES), 1)), 1, ['not_entailment', 'entailment'])


# cache on disk

def test_scores_on_disk_serve_another_process(folder, tmp_path):
    path, pairs = tmp_path/'cache'/'scores.sqlite', some_pairs(20, seed=7)
    expected = Verifier.from_folder(folder).score(pairs)
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_verifier import some_pairs
from medagent.verifier.nli import Verifier
v = Verifier.from_folder({str(folder)!r}, cache_file={str(path)!r})
v.score(some_pairs(20, seed=7)[:15])
print(v.scored)
"""
    both = [subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True) for _ in range(2)]      # at the same time
    assert all(int(p.communicate()[0].split()[-1]) <= 15 for p in both) and [p.returncode for p in both] == [0, 0]
    third = Verifier.from_folder(folder, cache_file=path)
    assert np.abs(third.score(pairs) - expected).max() < 1e-6 and third.scored == 5
    other = Verifier.from_folder(save(tmp_path/'other', tiny_config(), seed=1), cache_file=path)
    other.score(pairs)
    assert other.scored == 20      # other weights


def test_a_damaged_cache_file_is_a_message(folder, tmp_path):
    (tmp_path/'scores.sqlite').write_bytes(b'no database' * 1000)
    with pytest.raises(MedAgentError, match='cannot be used as a cache'): Verifier.from_folder(folder, cache_file=tmp_path/'scores.sqlite')
    with pytest.raises(MedAgentError, match='weights that have a revision'): Verifier(BertForSequenceClassification(tiny_config()), word_tokenizer(), 'x', cache_file=tmp_path/'c')


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_keys_of_the_cache_tell_pairs_apart(a, b):
    assert (ScoreCache.key('r', a) == ScoreCache.key('r', b)) == (a == b) and ScoreCache.key('r', a) != ScoreCache.key('s', a)


# memory

def test_a_batch_too_large_for_the_memory_is_halved(folder, monkeypatch):
    pairs = some_pairs(30, seed=8)
    expected = Verifier.from_folder(folder).score(pairs)
    verifier = Verifier.from_folder(folder, batch_size=16)
    forward = verifier.model.forward
    def small(**batch):
        if len(batch['input_ids']) > 3: raise torch.OutOfMemoryError('too much')
        return forward(**batch)
    monkeypatch.setattr(verifier.model, 'forward', small)
    assert np.abs(verifier.score(pairs) - expected).max() < 1e-5 and verifier.batch_size == 2 and verifier.shrunk == 3
    monkeypatch.setattr(verifier.model, 'forward', lambda **_: (_ for _ in ()).throw(torch.OutOfMemoryError('none left')))
    with pytest.raises(MedAgentError, match='too small for a single pair'): verifier.score([('lithium', 'INR INR')])


@pytest.mark.parametrize('pair', [('', 'lithium'), ('lithium', ''), (' \n', 'lithium'), ('lithium', 'lithium ' * 200)])
def test_unreadable_pairs_score_zero_and_are_counted(folder, pair):
    verifier = Verifier.from_folder(folder)
    assert verifier.score([pair, ('lithium', 'lithium')])[0] == 0 and (verifier.unreadable, verifier.scored) == (1, 1)


def test_the_longest_claim_that_fits_is_read(folder):
    verifier = Verifier.from_folder(folder)
    assert verifier.score([('lithium INR', 'warfarin ' * 60), ('lithium INR', 'warfarin ' * 61)]).astype(bool).tolist() == [True, False]


def test_separators_in_text_are_plain_text(folder):
    verifier = Verifier.from_folder(folder)
    model, tokenizer = verifier.model, verifier.tokenizer
    pair = ('lithium is [SEP] warfarin INR [PAD]', 'warfarin INR')
    with torch.no_grad():
        plain, special = (model(**tokenizer(*pair, return_tensors='pt', return_token_type_ids=True, split_special_tokens=split)).logits.softmax(-1)[0, 1].item() for split in (True, False))
    assert abs(plain - special) > 1e-3 and verifier.score([pair])[0] == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize('pairs', [[('lithium', None)], [(1, 'lithium')], [('lithium',)], ['lithium']])
def test_what_is_no_pair_of_texts_is_refused(folder, pairs):
    with pytest.raises(MedAgentError, match='pairs of texts'):
        Verifier.from_folder(folder).score(pairs)


def test_no_pairs_give_no_scores(folder):
    assert Verifier.from_folder(folder).score([]).shape == (0,)


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_logits_that_are_no_numbers_are_a_failure(folder, value):
    verifier = Verifier.from_folder(folder)
    verifier.model.classifier.bias.data[:] = value
    with pytest.raises(MedAgentError, match='no finite score'):
        verifier.score([('lithium', 'INR')])
    assert not verifier.cache


def test_window_of_models_that_count_positions_after_the_padding():
    class Model:
        config = RobertaConfig(max_position_embeddings=514, pad_token_id=1)
    tokenizer = word_tokenizer()
    assert window(Model, tokenizer, 1000) == 512 and window(Model, tokenizer, 128) == 128
    tokenizer.model_max_length = 100
    assert window(Model, tokenizer, 1000) == 100


def test_function_verifier():
    verifier = FunctionVerifier(lambda premise, claim: len(premise)/10, 'length')
    assert verifier.score([('lithium', 'x'), ('INR', 'x')]).tolist() == [.7, .3] and verifier.name == 'length' and verifier.score([]).shape == (0,)


# checkpoints

def test_revision_follows_the_content(folder, tmp_path):
    same, other = save(tmp_path/'same', tiny_config()), save(tmp_path/'other', tiny_config(), seed=1)
    assert folder_revision(folder) == folder_revision(same) == Verifier.from_folder(same).revision != folder_revision(other)
    (same/'README.md').write_text('notes')
    assert folder_revision(folder) == folder_revision(same)
    config = json.loads((same/'config.json').read_text())
    (same/'config.json').write_text(json.dumps(config | {'id2label': {'0': 'entailment', '1': 'not_entailment'}}))
    assert folder_revision(folder) != folder_revision(same)


def cut(path): path.write_bytes(path.read_bytes()[:1000])
def drop(path): path.unlink()
def garble(path): path.write_text('{"model_type": ')

@pytest.mark.parametrize('harm, file', [(cut, 'model.safetensors'), (drop, 'model.safetensors'), (drop, 'config.json'), (garble, 'config.json'),
                                        (drop, 'tokenizer.json'), (garble, 'tokenizer.json')])
def test_damaged_checkpoints_give_a_message(tmp_path, harm, file):
    harm(save(tmp_path/'damaged', tiny_config())/file)
    with pytest.raises(MedAgentError, match='damaged'):
        Verifier.from_folder(tmp_path/'damaged')


def test_missing_checkpoints_give_a_message(tmp_path, monkeypatch):
    for path in (tmp_path/'nothing', 'outputs/a/b'):
        with pytest.raises(MedAgentError, match='no such folder'):
            Verifier.from_folder(path)
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    with pytest.raises(MedAgentError, match='cannot be loaded'):
        Verifier.from_folder('no-such-owner-here/no-such-model')


def test_an_encoder_without_a_head_is_refused(tmp_path):
    BertForSequenceClassification(tiny_config()).bert.save_pretrained(tmp_path/'encoder')
    word_tokenizer().save_pretrained(tmp_path/'encoder')
    with pytest.raises(MedAgentError, match='lacks the weights'):
        Verifier.from_folder(tmp_path/'encoder')


# training

def monitoring(n, seed):
    rng, pairs = random.Random(seed), []
    for i in range(n):
        drug = rng.choice(sorted(DRUGS))
        other = rng.choice([t for t in DRUGS.values() if t != DRUGS[drug]])
        claim = f'{drug} requires monitoring of {DRUGS[drug]} .'
        pairs.append([(f'patients on {drug} : {drug} requires monitoring of {DRUGS[drug]} .', claim, 1, 'stated'), (f'{drug} does not require monitoring of {DRUGS[drug]} .', claim, 0, 'negated'),
                      (f'{DRUGS[drug]} is checked in patients on {drug} .', claim, 1, 'stated'), (f'{drug} requires monitoring of {other} .', claim, 0, 'other test')][i % 4])
    return pairs


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    config = tiny_config(hidden_size=64, num_attention_heads=4, initializer_range=.02)
    return train_verifier(monitoring(200, seed=1), tmp_path_factory.mktemp('train')/'verifier', config, word_tokenizer(), steps=60, lr=3e-3, progress=False)


def test_training_learns_and_saves_a_verifier(trained):
    assert trained.counts == {'not_entailment': 100, 'entailment': 100}
    assert trained.losses[-1][0] == 60 and trained.losses[-1][1] < .5*trained.losses[0][1]
    rates = error_rates(Verifier.from_folder(trained.folder), monitoring(80, seed=2), tau=.5).set_index('kind')
    assert rates.false_accept['all'] < .25 and rates.false_reject['all'] < .25        # a guess has .5
    untrained = Verifier(BertForSequenceClassification(tiny_config(initializer_range=.02)), word_tokenizer(), 'untrained')
    assert error_rates(untrained, monitoring(80, seed=2), tau=.5).iloc[-1][['false_accept', 'false_reject']].max() > .5


def test_training_prints_nothing(tmp_path, capfd):
    train_verifier(monitoring(40, seed=1), tmp_path/'v', tiny_config(), word_tokenizer(), steps=2, progress=False)
    assert capfd.readouterr().out == ''


def test_same_seed_same_verifier(tmp_path):
    runs = {name: train_verifier(monitoring(40, seed=1), tmp_path/name, tiny_config(), word_tokenizer(), steps=3, seed=seed, progress=False).folder
            for name, seed in [('a', 1), ('b', 1), ('c', 2)]}
    revisions = [folder_revision(runs[name]) for name in 'abc']
    assert revisions[0] == revisions[1] != revisions[2]


def test_training_goes_on_from_a_folder(trained, tmp_path):
    more = train_verifier(monitoring(80, seed=3), tmp_path/'more', trained.folder, steps=10, lr=1e-4, progress=False)
    assert more.losses[0][1] < .8*trained.losses[0][1]
    three = train_verifier([*monitoring(40, seed=1), ('digoxin', 'INR', 2)], tmp_path/'three', trained.folder, steps=1, progress=False,
                           labels=('contradiction', 'entailment', 'neutral'))
    assert Verifier.from_folder(three.folder).index == 1 and three.counts['neutral'] == 1


def test_epochs_set_the_number_of_steps(tmp_path):
    assert train_verifier(monitoring(40, seed=1), tmp_path/'v', tiny_config(), word_tokenizer(), epochs=2, batch_size=16, progress=False).losses[-1][0] == 5


@pytest.mark.parametrize('pairs, more, said', [
    ([('lithium', 'INR', 1)]*4, {}, 'every label needs'), ([], {}, 'no pairs'), ([('lithium', 'INR', 5)], {}, 'pair 0'), ([('lithium', '', 1)], {}, 'pair 0'),
    ([('lithium', 'INR', 'yes')], {}, 'pair 0'), ([('lithium', 'INR')], {}, 'pair 0'), ([('lithium', 'INR ' * 99, 1), ('lithium', 'INR', 0)], {}, '99 tokens'),
    (None, dict(tokenizer=None), 'needs a tokenizer'), (None, dict(init=tiny_config(vocab_size=9)), 'only 9'), (None, dict(init='no/such/folder'), 'no model to start'),
    (None, dict(lr=1e30, steps=4, warmup=0.0), 'loss is no number')])
def test_training_that_cannot_work_is_refused_before_anything_is_written(tmp_path, pairs, more, said):
    arguments = dict(init=tiny_config(), tokenizer=word_tokenizer(), steps=1, progress=False) | more
    with pytest.raises(MedAgentError, match=said):
        train_verifier(monitoring(40, seed=1) if pairs is None else pairs, tmp_path/'v', **arguments)
    assert not list(tmp_path.iterdir())


def test_other_work_is_not_replaced(tmp_path):
    (tmp_path/'notes.txt').write_text('keep')
    with pytest.raises(MedAgentError, match='would be replaced'):
        train_verifier(monitoring(40, seed=1), tmp_path, tiny_config(), word_tokenizer(), steps=1, progress=False)
    assert (tmp_path/'notes.txt').read_text() == 'keep'


@pytest.mark.parametrize('failing', ['transformers.PreTrainedTokenizerFast.save_pretrained', 'os.replace'])
def test_a_full_disk_keeps_the_previous_verifier(tmp_path, monkeypatch, failing):
    out = save(tmp_path/'v', tiny_config())
    before, calls = folder_revision(out), []
    import os
    replace = os.replace
    def full(*args, **kwargs):
        calls.append(args)
        if failing == 'os.replace' and len(calls) != 2:      # the first moves the old one aside, the second fails, the third moves it back
            return replace(*args, **kwargs)
        raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(failing, full)
    with pytest.raises(MedAgentError, match='could not be saved.*No space left'):
        train_verifier(monitoring(40, seed=1), out, tiny_config(), word_tokenizer(), steps=1, progress=False)
    assert calls and folder_revision(out) == before and [p.name for p in tmp_path.iterdir()] == ['v']


# error rates

@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([.1, .5, .7, .9]), st.integers(0, 1), st.sampled_from(['stated', 'negated', 'drug swap'])), min_size=1, max_size=30))
def test_error_rates_count_what_they_say(cases):
    pairs = [(f'passage {i}', f'claim {i}', label, kind) for i, (_, label, kind) in enumerate(cases)]
    table = error_rates(FunctionVerifier(lambda premise, claim: cases[int(claim.split()[1])][0], 'given'), pairs, tau=.7).set_index('kind')
    for kind in [*{k for _, _, k in cases}, 'all']:
        part = [(p, label) for p, label, k in cases if kind in (k, 'all')]
        wrong, right = [p for p, label in part if not label], [p for p, label in part if label]
        assert (table.not_entailed[kind], table.entailed[kind]) == (len(wrong), len(right))
        assert table.false_accept[kind] == pytest.approx(sum(p == .9 for p in wrong)/len(wrong) if wrong else np.nan, nan_ok=True)
        assert table.false_reject[kind] == pytest.approx(sum(p != .9 for p in right)/len(right) if right else np.nan, nan_ok=True)


def test_plain_triples_have_a_kind(): assert read_pairs([('lithium', 'INR', 0)])[0].kind == 'pair'


def test_interrupted_training_goes_on_to_the_same_weights(tmp_path):
    pairs, more = [(f'{d} requires monitoring of {t} .', f'{d} requires {x}', int(t == x)) for d, t in DRUGS.items() for x in DRUGS.values()]*4, dict(steps=12, batch_size=8, micro_batch=4, lr=1e-3, max_length=32)
    whole = train_verifier(pairs, tmp_path/'whole', tiny_config(), word_tokenizer(), save_every=4, progress=False, **more)
    def cut(step):
        if step == 9: raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): train_verifier(pairs, tmp_path/'cut', tiny_config(), word_tokenizer(), save_every=4, progress=cut, **more)
    assert (tmp_path/'cut.steps'/'checkpoint-8').is_dir() and not (tmp_path/'cut').exists()
    seen = []
    train_verifier(pairs, tmp_path/'cut', tiny_config(), word_tokenizer(), save_every=4, progress=seen.append, **more)
    assert seen[0] == 9 and not (tmp_path/'cut.steps').exists() and whole.folder == tmp_path/'whole'
    asked = [(p, c) for p, c, _ in pairs[:16]]
    assert np.abs(Verifier.from_folder(tmp_path/'cut').score(asked) - Verifier.from_folder(tmp_path/'whole').score(asked)).max() < 1e-6
    with pytest.raises(KeyboardInterrupt): train_verifier(pairs, tmp_path/'other', tiny_config(), word_tokenizer(), save_every=4, progress=cut, **more)
    seen.clear()
    train_verifier(pairs, tmp_path/'other', tiny_config(), word_tokenizer(), save_every=4, progress=seen.append, **more | dict(lr=2e-3))
    assert seen[0] == 1      # other settings begin anew
    with pytest.raises(MedAgentError, match='micro_batch 3 does not divide'): train_verifier(pairs, tmp_path/'x', tiny_config(), word_tokenizer(), **more | dict(micro_batch=3))
