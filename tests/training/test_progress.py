import io

from megatron_mep.training.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(stream: io.StringIO, shown: bool = True) -> str:
    progress = Progress(2, 4, shown, stream)
    progress.say("starts")
    progress.advance()
    progress.tell(3, {"loss": "5.5", "tokens_per_s": "1200"}, left_s=100_000)
    progress.close()
    return stream.getvalue()


def test_plain_lines_where_nobody_sits_at_a_terminal():
    assert told(io.StringIO()) == "starts\nstep 3/4  loss 5.5  tokens_per_s 1200  left 27:46:40\n"


def test_a_bar_on_a_terminal():
    text = told(Terminal())
    assert "starts\n" in text
    assert "3/4" in text
    assert "loss=5.5" in text
    assert "left 27:46:40" not in text


def test_other_ranks_are_silent():
    assert told(io.StringIO(), shown=False) == ""
    assert told(Terminal(), shown=False) == ""


def test_standard_output_is_the_one_in_force(capsys):
    Progress(0, 4, shown=True).say("starts")
    assert capsys.readouterr().out == "starts\n"
