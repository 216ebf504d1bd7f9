"""What people read is looked at when it changes: the messages of all mistakes are kept beside the tests."""

from tests.syntax.messages import GOLDEN, shown


def test_the_messages_of_all_mistakes_are_those_kept() -> None:
    assert shown() == GOLDEN.read_text(encoding="utf-8"), "run `python -m tests.syntax.messages` and read what changed"
