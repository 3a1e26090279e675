"""Finds the power cut that breaks a program, in a test: the fixture ``crashlab``."""

import pytest

from .checks import Check
from .lab import CrashlabError, Lab, Program

__all__ = ["Check", "CrashlabError", "Lab", "Program", "crashlab"]


@pytest.fixture(scope="session")
def crashlab(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Records programs, and checks the files that power cuts leave."""
    return Lab(lambda: tmp_path_factory.mktemp("crashlab"), pytestconfig.rootpath)
