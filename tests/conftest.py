"Tests write their runs to a folder of their own: nothing finished earlier is taken for a result of this code, and nothing is left behind."
import os
import shutil
import tempfile


def pytest_configure(config):
    config.outputs = tempfile.mkdtemp(prefix='medagent-tests-')
    os.environ['MEDAGENT_OUTPUTS_PATH'] = config.outputs


def pytest_unconfigure(config):
    shutil.rmtree(config.outputs, ignore_errors=True)
