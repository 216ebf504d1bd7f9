"""The language server as editors meet it: a process, pipes, the protocol."""

from collections.abc import Iterator
from typing import Any

import pytest

from shardlang.source import Source
from shardlang.syntax.format import format_source
from tests.editor.client import URI, Client
from tests.syntax import corpus

TEXT = """\
link ib = 50 GB/s, 12 us
mesh pod = dp:2@ib * tp:4
let d = 4096, f = 4*d
fn mlp on pod (x: bf16[batch/dp seq d], w: bf16[d f/tp]) -> bf16[batch/dp seq f/tp]
"""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    started = Client()
    yield started
    assert started.close() == 0


def place(text: str, part: str, skip: int = 0) -> tuple[int, int]:
    """The 0-based line and UTF-16 column of a part of a text, in its middle."""
    offset = text.index(part, skip) + len(part) // 2
    line = text.count("\n", 0, offset)
    before = text[text.rfind("\n", 0, offset) + 1 : offset]
    return line, len(before.encode("utf-16-le")) // 2


def spot(text: str, found: dict[str, Any]) -> str:
    """The text of a protocol's range, its columns read as UTF-16."""
    lines = text.split("\n")
    start, end = found["start"], found["end"]
    if start["line"] != end["line"]:
        return text
    units = lines[start["line"]].encode("utf-16-le")
    return units[2 * start["character"] : 2 * end["character"]].decode("utf-16-le")


def test_a_text_without_faults_has_no_diagnostics(client: Client) -> None:
    assert client.open(TEXT) == []


def test_every_fault_is_published_with_its_code_and_place_and_again_after_a_change(client: Client) -> None:
    text = TEXT.replace("seq d]", "seq/tb d]", 1)
    (fault,) = client.open(text)
    assert (fault["code"], fault["severity"], fault["source"]) == ("SL0201", 1, "shardlang")
    assert spot(text, fault["range"]) == "tb"
    assert fault["message"].startswith("mesh `pod` has no axis `tb`")
    assert "note: the axes of mesh `pod`: `dp` and `tp`" in fault["message"]
    assert client.change(TEXT, 2) == []
    twice = TEXT.replace("f/tp]) ->", "f/dp]) ->").replace("[d f", "[d/dp f")
    (fault,) = client.change(twice, 3)
    assert fault["code"] == "SL0203"
    (related,) = fault["relatedInformation"]
    assert related["message"] == "first used here"
    assert spot(twice, related["location"]["range"]) == "dp"


def test_columns_count_utf16_units_behind_signs_beyond_the_first_plane(client: Client) -> None:
    text = "# 𝄞𝄞 ä\nmesh pod = dp:2 # 𝄞\nlet x = 𝄞 + 1\n"
    (fault,) = client.open(text)
    assert fault["range"]["start"] == {"line": 2, "character": 8}
    assert fault["range"]["end"] == {"line": 2, "character": 10}


def test_a_client_that_prefers_utf8_gets_utf8() -> None:
    other = Client(["utf-8", "utf-16"])
    try:
        assert other.capabilities["capabilities"]["positionEncoding"] == "utf-8"
        (fault,) = other.open("let x = 𝄞 + 1\n")
        assert fault["range"]["end"] == {"line": 0, "character": 12}
    finally:
        assert other.close() == 0


def test_hover_shows_an_axis_a_size_and_the_local_shape(client: Client) -> None:
    client.open(TEXT)
    answer = client.at("hover", *place(TEXT, "tp", TEXT.index("f/tp")))
    assert "axis `tp` of mesh `pod`: 4 ranks" in answer["contents"]["value"]
    assert "a rank holds `bf16[4096 4096]` of `w`: 32 MiB" in answer["contents"]["value"]
    assert spot(TEXT, answer["range"]) == "tp"
    answer = client.at("hover", *place(TEXT, "f", TEXT.index("d f/tp")))
    assert "`f` = 16384, by `let`, line 3" in answer["contents"]["value"]
    answer = client.at("hover", *place(TEXT, "@ib"))
    assert answer["contents"]["value"] == "link `ib`: 50 GB/s, 12 us"
    assert client.at("hover", 0, 11) is None


def test_definition_goes_to_axis_let_link_mesh_and_model(client: Client) -> None:
    text = TEXT + "model m from a:b on pod {}\ntransfer m => m\nbudget m { forbid all_gather on ib }\n"
    client.open(text)
    uses = {"tp]": "tp:4", "f/tp]": "f =", "ib * tp": "ib = 50", "pod (x": "pod =", "m => m": "m from", "on ib": "ib ="}
    for use, declared in uses.items():
        offset = text.index(use) + use.startswith("on") * 3
        line = text.count("\n", 0, offset)
        answer = client.at("definition", line, offset - text.rfind("\n", 0, offset) - 1)
        start = answer["range"]["start"]
        assert text.split("\n")[start["line"]][start["character"] :].startswith(declared), use
        assert answer["uri"] == URI
    assert client.at("definition", 0, 20) is None


def test_completion_offers_axes_after_a_slash_and_keywords_at_the_margin(client: Client) -> None:
    text = TEXT + "fn g on pod (x: [batch/"
    client.open(text)
    answer = client.at("completion", 4, 23)
    assert [i["label"] for i in answer["items"]] == ["dp", "tp"]
    assert answer["items"][0]["textEdit"]["range"]["start"] == {"line": 4, "character": 23}
    client.change(TEXT + "re", 2)
    assert [i["label"] for i in client.at("completion", 4, 2)["items"]] == ["reshard"]


def test_formatting_is_that_of_fmt_and_leaves_a_broken_text_alone(client: Client) -> None:
    text = "mesh   pod=dp:2   *tp:4\nlet d=4"
    client.open(text)
    options = {"textDocument": {"uri": URI}, "options": {"tabSize": 2, "insertSpaces": True}}
    (edit,) = client.ask("textDocument/formatting", options)
    assert edit["newText"] == format_source(Source("x", text))
    assert edit["range"] == {"start": {"line": 0, "character": 0}, "end": {"line": 1, "character": 7}}
    client.change(edit["newText"], 2)
    assert client.ask("textDocument/formatting", options) == []
    client.change("mesh pod = [", 3)
    assert client.ask("textDocument/formatting", options) is None


def test_a_quick_fix_makes_the_edit_that_is_surely_right(client: Client) -> None:
    text = TEXT.replace("x: bf16", "x: bfloat16")
    (fault,) = client.open(text)
    context = {"diagnostics": [fault]}
    params = {"textDocument": {"uri": URI}, "range": fault["range"], "context": context}
    (action,) = client.ask("textDocument/codeAction", params)
    assert (action["title"], action["kind"]) == ("replace `bfloat16` with `bf16`", "quickfix")
    (edit,) = action["edit"]["changes"][URI]
    assert (spot(text, edit["range"]), edit["newText"]) == ("bfloat16", "bf16")
    elsewhere = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 1}}
    assert client.ask("textDocument/codeAction", {**params, "range": elsewhere}) == []


def test_of_many_quick_changes_the_last_one_is_checked(client: Client) -> None:
    client.open(TEXT)
    document = {"uri": URI}
    for version in range(2, 80):
        changes = [{"text": TEXT + f"let x{version} = y\n"}]
        client.tell(
            "textDocument/didChange", {"textDocument": {**document, "version": version}, "contentChanges": changes}
        )
    (fault,) = client.change(TEXT + "let last = y\n", 80)
    assert "`y`" in fault["message"]


def test_of_a_flood_of_faults_some_hundreds_are_shown(client: Client) -> None:
    text = "mesh m = a:2\n" + "".join(f"fn f{i}(x: [d/b]) -> [d]\n" for i in range(600))
    assert len(client.open(text)) == 500


def hostile() -> list[str]:
    texts = [
        "",
        "\ufeffmesh m = a:2",
        "\x00\x1b[31m",
        "\r\r\n\n\r",
        "mesh m = a:2\r\n let",
        "\ud800 [",
        "(" * 2000,
        "[" * 5000,
    ]
    texts += [
        "fn f (x: " + "(" * 40 + "d" + ")" * 40,
        "let d = " + "+".join(["1"] * 3000),
        "𝄞" * 300,
        "# " + "x" * 200000,
    ]
    texts += [corpus.walk(seed)[: seed * 7] for seed in range(25)]
    return texts


def test_no_text_and_no_position_stops_the_server(client: Client) -> None:
    for version, text in enumerate(hostile(), 2):
        if version == 2:
            client.open("")
        client.change(text, version)
        for line, column in ((0, 0), (0, 10**6), (3, 7), (10**9, 10**9)):
            for method in ("hover", "definition", "completion"):
                client.at(method, line, column)
        everywhere = {"start": {"line": 0, "character": 0}, "end": {"line": 10**6, "character": 0}}
        context = {"textDocument": {"uri": URI}, "range": everywhere, "context": {"diagnostics": []}}
        client.ask("textDocument/codeAction", context)
    assert client.open(TEXT) == []


def test_messages_that_are_none_do_not_stop_the_server(client: Client) -> None:
    client.send_bytes(b"{ this is no JSON")
    client.send_bytes(b'{"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"nothing": 1}}')
    client.send_bytes(b'{"jsonrpc": "2.0", "id": 999, "method": "no/such"}')
    assert client.open(TEXT) == []
