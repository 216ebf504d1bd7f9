"""The language server: the protocol's side of ``shardlang.editor``. Needs pygls (``pip install 'shardlang[lsp]'``).

No model is built here: what a text says is checked without running anybody's code.
"""

from __future__ import annotations

import asyncio
from pathlib import PurePath
from urllib.parse import unquote, urlparse

from lsprotocol import types
from pygls.lsp.server import LanguageServer

import shardlang
from shardlang.diagnostics import Diagnostic, Label, ShardlangError, sl09_internal
from shardlang.editor.complete import ItemKind, complete
from shardlang.editor.definition import definition
from shardlang.editor.document import Document
from shardlang.editor.hover import hover
from shardlang.editor.positions import Encoding, Lines
from shardlang.source import Source, Span
from shardlang.syntax.format import format_source

PAUSE = 0.05
"""Seconds after a change before the text is checked: of changes that come faster, only the last one is."""
MOST = 500
"""How many diagnostics of one text are shown."""

_KINDS: dict[ItemKind, types.CompletionItemKind] = {
    "keyword": types.CompletionItemKind.Keyword,
    "axis": types.CompletionItemKind.EnumMember,
    "size": types.CompletionItemKind.Variable,
    "link": types.CompletionItemKind.Interface,
    "mesh": types.CompletionItemKind.Struct,
    "model": types.CompletionItemKind.Module,
    "dtype": types.CompletionItemKind.TypeParameter,
    "option": types.CompletionItemKind.Property,
    "value": types.CompletionItemKind.Value,
    "step": types.CompletionItemKind.Event,
    "path": types.CompletionItemKind.Reference,
}


class ShardlangServer(LanguageServer):
    """A server that keeps one ``Document`` for each text that is open, as of its latest change."""

    def __init__(self) -> None:
        super().__init__("shardlang", shardlang.__version__, text_document_sync_kind=types.TextDocumentSyncKind.Full)
        self._documents: dict[str, Document] = {}

    def document(self, uri: str) -> Document:
        """The document of a text, made anew where its text has changed."""
        text = self.workspace.get_text_document(uri).source
        kept = self._documents.get(uri)
        if kept is None or kept.text != text:
            kept = self._documents[uri] = Document(_name(uri), text)
        return kept

    def latest(self, uri: str) -> int | None:
        """The version of an open text; ``None`` where it is closed."""
        return self.workspace.get_text_document(uri).version

    def forget(self, uri: str) -> None:
        self._documents.pop(uri, None)

    def lines(self, document: Document) -> Lines:
        """The text's lines, with columns in the units that client and server agreed on."""
        encodings: dict[str, Encoding] = {"utf-8": "utf-8", "utf-32": "utf-32"}
        return Lines(document.text, encodings.get(str(self.workspace.position_encoding), "utf-16"))

    def publish(self, uri: str) -> None:
        """Sends the diagnostics of a text. A fault of ours is one of them, so that the editor still gets an answer."""
        document = self.document(uri)
        try:
            found = document.diagnostics
        except Exception as error:
            found = (sl09_internal.internal(type(error).__name__, str(error)[:200], ""),)
        lines = self.lines(document)
        version = self.workspace.get_text_document(uri).version
        shown = [_diagnostic(d, uri, document.source, lines) for d in found[:MOST]]
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, shown, version))


def _name(uri: str) -> str:
    """What diagnostics call a text: the name of its file."""
    return PurePath(unquote(urlparse(uri).path)).name or uri


def build() -> ShardlangServer:
    """A server with all that it answers, not started yet."""
    server = ShardlangServer()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def did_open(ls: ShardlangServer, params: types.DidOpenTextDocumentParams) -> None:
        ls.publish(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def did_change(ls: ShardlangServer, params: types.DidChangeTextDocumentParams) -> None:
        await asyncio.sleep(PAUSE)
        if ls.latest(params.text_document.uri) == params.text_document.version:
            ls.publish(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(ls: ShardlangServer, params: types.DidCloseTextDocumentParams) -> None:
        ls.forget(params.text_document.uri)
        ls.text_document_publish_diagnostics(types.PublishDiagnosticsParams(params.text_document.uri, []))

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def on_hover(ls: ShardlangServer, params: types.HoverParams) -> types.Hover | None:
        document = ls.document(params.text_document.uri)
        lines = ls.lines(document)
        found = hover(document, _offset(lines, params.position))
        if found is None:
            return None
        content = types.MarkupContent(types.MarkupKind.Markdown, found.markdown)
        return types.Hover(content, _range(lines, found.span))

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def on_definition(ls: ShardlangServer, params: types.DefinitionParams) -> types.Location | None:
        document = ls.document(params.text_document.uri)
        lines = ls.lines(document)
        span = definition(document, _offset(lines, params.position))
        return None if span is None else types.Location(params.text_document.uri, _range(lines, span))

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=["/", "[", "@", "{", "~", ".", " "])
    )
    def on_completion(ls: ShardlangServer, params: types.CompletionParams) -> types.CompletionList:
        document = ls.document(params.text_document.uri)
        lines = ls.lines(document)
        found = complete(document, _offset(lines, params.position))
        place = _range(lines, document.source.span(found.start, found.end))
        items = [
            types.CompletionItem(
                item.text,
                kind=_KINDS[item.kind],
                detail=item.detail or item.kind,
                text_edit=types.TextEdit(place, item.text),
                sort_text=f"{index:04}",
            )
            for index, item in enumerate(found.items)
        ]
        return types.CompletionList(is_incomplete=False, items=items)

    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    def on_formatting(ls: ShardlangServer, params: types.DocumentFormattingParams) -> list[types.TextEdit] | None:
        document = ls.document(params.text_document.uri)
        try:
            text = format_source(document.source)
        except ShardlangError:
            return None
        if text == document.text:
            return []
        return [types.TextEdit(_range(ls.lines(document), document.source.whole()), text)]

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix]),
    )
    def on_code_action(ls: ShardlangServer, params: types.CodeActionParams) -> list[types.CodeAction]:
        document = ls.document(params.text_document.uri)
        lines = ls.lines(document)
        start, end = _offset(lines, params.range.start), _offset(lines, params.range.end)
        return [
            action
            for fault in document.diagnostics
            if fault.span is not None and fault.span.start <= end and start <= fault.span.end
            for action in _fixes(fault, params.text_document.uri, document.source, lines)
        ]

    return server


def _fixes(fault: Diagnostic, uri: str, source: Source, lines: Lines) -> list[types.CodeAction]:
    """The edit that a diagnostic is sure of, if it has one."""
    if fault.fix is None:
        return []
    old, new = fault.fix.span.text, fault.fix.replacement
    title = f"replace `{old}` with `{new}`" if old and new else f"insert `{new}`" if new else f"remove `{old}`"
    edit = types.WorkspaceEdit(changes={uri: [types.TextEdit(_range(lines, fault.fix.span), new)]})
    shown = _diagnostic(fault, uri, source, lines)
    return [types.CodeAction(title, types.CodeActionKind.QuickFix, diagnostics=[shown], is_preferred=True, edit=edit)]


def _diagnostic(fault: Diagnostic, uri: str, source: Source, lines: Lines) -> types.Diagnostic:
    """The protocol's form: notes and helps after the message, labels as related places."""
    text = "\n".join(
        [fault.message, *(f"note: {note}" for note in fault.notes), *(f"help: {text}" for text in fault.helps)]
    )
    severity = types.DiagnosticSeverity.Error if fault.severity == "error" else types.DiagnosticSeverity.Warning
    related = [_related(label, uri, lines) for label in fault.labels]
    span = source.span(0, 0) if fault.span is None else fault.span
    return types.Diagnostic(
        _range(lines, span),
        text,
        severity=severity,
        code=fault.code,
        source="shardlang",
        related_information=related or None,
    )


def _related(label: Label, uri: str, lines: Lines) -> types.DiagnosticRelatedInformation:
    return types.DiagnosticRelatedInformation(types.Location(uri, _range(lines, label.span)), label.text)


def _offset(lines: Lines, position: types.Position) -> int:
    return lines.offset(position.line, position.character)


def _range(lines: Lines, span: Span) -> types.Range:
    (line, column), (end_line, end_column) = lines.range(span)
    return types.Range(types.Position(line, column), types.Position(end_line, end_column))


__all__ = ["ShardlangServer", "build"]
