import pytest
import syncline


@pytest.fixture
def fs():
    with syncline.Filesystem.in_memory() as fs:
        yield fs


@pytest.fixture
def image(tmp_path):
    """Where an image may be made."""
    return tmp_path / "disk.img"
