"Settings: conversion, search, atomic writes on a failing disk, identity with pyproject.toml."
import configparser
import errno
import os
import random
import tomllib
from pathlib import Path

import numpy as np
import pytest

from medagent import settings
from medagent.settings import (MedAgentError, code_revision, file_hash, load_settings, pick_device, run_dir, seed_everything,
                               text_hash, write_atomic)

ROOT = Path(__file__).resolve().parent.parent
GOOD = dict(lib_name='medagent', data_path='data', outputs_path='outputs', seed='42', threads='2', device='auto')


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for key in list(os.environ):
        if key.startswith('MEDAGENT_'): monkeypatch.delenv(key)


def write_ini(folder: Path, **changes: str | None) -> Path:
    values = {k: v for k, v in (GOOD | changes).items() if v is not None}
    (folder/'settings.ini').write_text('[DEFAULT]\n' + ''.join(f'{k} = {v}\n' for k, v in values.items()))
    return folder


def test_identity_equals_pyproject():
    ini = configparser.ConfigParser()
    ini.read(ROOT/'settings.ini')
    toml = tomllib.loads((ROOT/'pyproject.toml').read_text())
    assert ini['DEFAULT']['lib_name'] == toml['project']['name']
    assert ini['DEFAULT']['lib_path'] == toml['tool']['nbdev']['lib_path']
    assert ini['DEFAULT']['nbs_path'] == toml['tool']['nbdev']['nbs_path']


def test_own_file_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)                      # no settings.ini above: the package's own folder decides
    assert load_settings().root == ROOT


def test_upward_search_skips_other_projects(tmp_path, monkeypatch):
    write_ini(tmp_path)
    (inner := tmp_path/'other'/'deep').mkdir(parents=True)
    write_ini(tmp_path/'other', lib_name='another_library', seed='1')
    monkeypatch.chdir(inner)
    assert load_settings().root == tmp_path.resolve() and load_settings().seed == 42


def test_paths_are_absolute_and_relative_to_root(tmp_path, monkeypatch):
    write_ini(tmp_path, outputs_path='/somewhere/else')
    monkeypatch.setenv('MEDAGENT_DATA_PATH', 'moved')
    s = load_settings(tmp_path)
    assert s.data_path == tmp_path.resolve()/'moved' and s.outputs_path == Path('/somewhere/else')


@pytest.mark.parametrize('changes, message', [
    (dict(seed='4.2'), 'seed'), (dict(seed='-1'), 'seed'), (dict(seed=str(2**32)), 'seed'), (dict(seed=''), 'seed'),
    (dict(threads='0'), 'threads'), (dict(device='gpu'), 'device'), (dict(data_path=''), 'data_path'),
    (dict(sed='1'), "unknown key 'sed'"), (dict(threads=None), "'threads' is missing"), (dict(seed='9' * 5000), 'seed')])
def test_bad_values_name_file_and_key(tmp_path, changes, message):
    write_ini(tmp_path, **changes)
    with pytest.raises(MedAgentError, match=message) as e: load_settings(tmp_path)
    assert str(tmp_path) in str(e.value)


def test_bad_variable_names_the_variable(tmp_path, monkeypatch):
    write_ini(tmp_path)
    monkeypatch.setenv('MEDAGENT_THREADS', 'many')
    with pytest.raises(MedAgentError, match='MEDAGENT_THREADS'): load_settings(tmp_path)


def test_broken_file_is_a_clear_error(tmp_path):
    (tmp_path/'settings.ini').write_bytes(b'\xff\xfe not text')
    with pytest.raises(MedAgentError, match='settings.ini'): load_settings(tmp_path)
    (tmp_path/'settings.ini').write_text('seed = 1\n')          # no section
    with pytest.raises(MedAgentError, match='DEFAULT'): load_settings(tmp_path)


@pytest.mark.parametrize('call', ['write', 'fsync', 'replace', 'open'])
def test_full_disk_keeps_the_old_file(tmp_path, monkeypatch, call):
    path = write_atomic(tmp_path/'metrics.json', 'old')
    def full(*args, **kwargs): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as m:
        m.setattr(os, call, full)
        with pytest.raises(MedAgentError, match='No space left'): write_atomic(path, 'new')
    assert path.read_text() == 'old' and os.listdir(tmp_path) == ['metrics.json']


def test_disk_full_half_way(tmp_path, monkeypatch):
    path = write_atomic(tmp_path/'rows.jsonl', 'old')
    real, calls = os.write, []
    def half(fd, data):
        calls.append(len(data))
        if len(calls) > 1: raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, bytes(data)[:3])
    with monkeypatch.context() as m:
        m.setattr(os, 'write', half)
        with pytest.raises(MedAgentError): write_atomic(path, 'abcdefgh')
    assert calls == [8, 5] and path.read_text() == 'old' and os.listdir(tmp_path) == ['rows.jsonl']


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, 'write', lambda fd, data: real(fd, bytes(data)[:7]))
    assert write_atomic(tmp_path/'a.txt', 'µ' * 1000).read_text(encoding='utf-8') == 'µ' * 1000


def test_interrupt_leaves_no_neighbour(tmp_path, monkeypatch):
    path = write_atomic(tmp_path/'a.txt', 'old')
    def stop(fd): raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(os, 'fsync', stop)
        with pytest.raises(KeyboardInterrupt): write_atomic(path, 'new')
    assert path.read_text() == 'old' and os.listdir(tmp_path) == ['a.txt']


def test_mode_and_link_are_kept(tmp_path):
    path = write_atomic(tmp_path/'a.txt', 'old')
    path.chmod(0o640)
    (link := tmp_path/'link.txt').symlink_to(path)
    write_atomic(link, b'new')
    assert link.is_symlink() and path.read_bytes() == b'new' and path.stat().st_mode & 0o777 == 0o640


def test_lone_surrogate_is_a_clear_error(tmp_path):
    with pytest.raises(MedAgentError, match='UTF-8'): write_atomic(tmp_path/'a.txt', '\ud800')


def test_hashes():
    assert text_hash('abc') == 'ba7816bf8f01cfea'               # FIPS 180-2, first test vector
    assert len(file_hash(ROOT/'settings.ini')) == 16
    with pytest.raises(MedAgentError, match='no_such'): file_hash('no_such_file')


def test_seeds_reach_all_generators():
    import torch
    draw = lambda: (random.random(), float(np.random.rand()), torch.rand(1).item())
    seed_everything(1); a = draw()
    seed_everything(2); b = draw()
    seed_everything(1)
    assert draw() == a and all(x != y for x, y in zip(a, b))
    with pytest.raises(MedAgentError): seed_everything(-1)


def test_devices(monkeypatch):
    import torch
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    assert pick_device('auto').type == 'cpu'
    with pytest.raises(MedAgentError, match='cuda:0'): pick_device('cuda:0')
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    assert pick_device('auto').type == 'cuda' and pick_device('cuda:1').index == 1
    with pytest.raises(MedAgentError, match='cuda:2'): pick_device('cuda:2')


def test_run_dir_stays_inside(tmp_path, monkeypatch):
    monkeypatch.setenv('MEDAGENT_OUTPUTS_PATH', str(tmp_path))
    assert run_dir('starter').is_dir() and run_dir('starter') == tmp_path.resolve()/'starter'
    with pytest.raises(MedAgentError): run_dir('../x')


def test_code_revision(monkeypatch):
    answers = {'rev-parse --show-toplevel': str(load_settings().root), 'rev-parse --verify HEAD': 'a' * 40,
               'status --porcelain --untracked-files=no': ' M x.py'}
    monkeypatch.setattr(settings, '_git', lambda root, *args: answers[' '.join(args)])
    assert code_revision() == 'a' * 12 + '+changes'
    answers['status --porcelain --untracked-files=no'] = ''
    assert code_revision() == 'a' * 12
    answers['rev-parse --show-toplevel'] = '/another/repository'
    assert code_revision().startswith('version ')


def test_a_parent_that_is_a_file_is_a_message(tmp_path):
    from medagent.settings import write_atomic
    (tmp_path/'file').write_text('x')
    with pytest.raises(MedAgentError, match='cannot be written'): write_atomic(tmp_path/'file'/'below.txt', 'y')
    assert (tmp_path/'file').read_text() == 'x'
