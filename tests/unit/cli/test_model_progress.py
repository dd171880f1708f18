import io

from atomesh.cli.model_progress import ProgressLine
from atomesh.model_files.fetch import FetchProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_twenty_percent() -> None:
    sink = io.StringIO()
    line = ProgressLine(sink)
    for done in range(0, 10_000_001, 100_000):
        line(FetchProgress("download", done, 10_000_000))
    assert [text.split("(")[0].strip() for text in sink.getvalue().splitlines()] == [
        f"downloading the model {percent:3d} %" for percent in (0, 20, 40, 60, 80, 100)
    ]


def test_a_terminal_gets_one_line() -> None:
    sink = Terminal()
    line = ProgressLine(sink)
    line(FetchProgress("wait", 0, 5_000_000))
    line(FetchProgress("unpack", 2_500_000, 5_000_000))
    line(FetchProgress("unpack", 5_000_000, 5_000_000))
    assert sink.getvalue() == (
        "\r\033[Kwaiting for another process to fetch the model"
        "\r\033[Kunpacking the model  50 % (2 of 5 MB)"
        "\r\033[Kunpacking the model 100 % (5 of 5 MB)\n"
    )
