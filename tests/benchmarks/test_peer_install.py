from benchmarks.peers import install


def test_every_peer_of_the_extra_is_constrained_and_ffcv_comes_last():
    names = [peer.partition(">")[0] for peer in install.peers()]
    pinned = {line.partition("==")[0] for line in install.CONSTRAINTS.read_text().splitlines()}
    assert set(names) | set(install.BASE) <= pinned
    assert names[-1] == "ffcv"  # the one that may have to be compiled


def test_peer_that_fails_is_named_and_the_others_are_installed(monkeypatch, capsys):
    asked = []

    def pip(arguments):
        asked.append(arguments)
        return "litdata" not in arguments

    monkeypatch.setattr(install, "peers", lambda: ["spdl", "litdata", "webdataset"])
    monkeypatch.setattr(install, "_pip", pip)
    assert install.main(["--extra-index-url", "there"]) == 0
    assert [arguments[2] for arguments in asked[1:]] == ["spdl", "litdata", "webdataset"]
    assert all(arguments[-1] == "there" for arguments in asked)
    assert "left out, see the messages above: litdata\n" in capsys.readouterr().err


def test_without_torch_nothing_else_is_tried(monkeypatch):
    asked = []
    monkeypatch.setattr(install, "_pip", asked.append)  # None: it failed
    assert install.main([]) == 1
    assert asked == [["torch", "numpy"]]


def test_missing_system_libraries_are_named(monkeypatch, capsys):
    monkeypatch.setattr(install, "_found", lambda libraries: False)
    monkeypatch.setattr(install, "_pip", lambda arguments: True)
    assert not install._install("ffcv>=1.0.2", [])
    assert "sudo apt-get install pkg-config libturbojpeg0-dev" in capsys.readouterr().err
    assert install._install("spdl>=0.1", [])
