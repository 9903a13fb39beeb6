from megatron_mep.data.progress import Progress


def test_progress_says_speed_and_time_left(monkeypatch):
    clock = iter([0.0, 1.0, 6.0, 7.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    lines: list[str] = []
    progress = Progress(lines.append, "encoding", total=100, interval_s=5.0)
    progress.advance(10, 1_000_000, position=10)
    assert not lines
    progress.advance(20, 11_000_000, position=60)
    progress.advance(1, 1_000_000, position=70)
    assert lines == ["encoding: 30 documents, 12.0 MB, 2.0 MB/s, 4 s left"]
