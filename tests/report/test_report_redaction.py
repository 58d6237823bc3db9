"""Foreign text: what leaves a recording, and what never does."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from golden_files import Golden
from hypothesis import given
from hypothesis import strategies as st
from recorded_builder import MANIFEST, FakeRecording, analysis_inputs, diagnosis
from vocabulary_builder import VOCABULARY, spoken_words

from spyreprof.recording.manifest import Manifest
from spyreprof.recording.schema import ModelFacts
from spyreprof.report import build as build_module
from spyreprof.report import redact
from spyreprof.report.build import build_report
from spyreprof.report.redact import Redactor, vocabulary
from spyreprof.report.terminal import render
from spyreprof.report.writer import dump

HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "\x9b31mred",
    "<script>alert(1)</script>",
    "[red]markup[/red]",
    "\u202egnp.exe",
    "sk-live-4242424242424242",
    "hunter2",
    "/home/alice/private/model",
    "C:\\Users\\alice",
    "node17.corp.example",
    "alice@corp.example",
    "https://user:word@node17.corp.example/v1?token=abc",
    "10.1.2.3",
    "4111111111111111",
    "\uff11\uff12\uff13",
    "line\nforged verdict\r",
    "\x00\x07",
)


def hostile_manifest(text: str) -> Manifest:
    """The ordinary manifest with one text put wherever the manifest holds text."""

    def spoiled(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoiled(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [spoiled(part) for part in value]
        return text if isinstance(value, str) and key not in {"state", "mode"} else value

    content = spoiled(msgspec.to_builtins(MANIFEST))
    content["command"] = [text, f"--{text}", text, f"--model={text}", "--host", text, f"-x{text}", f"{text}={text}"]
    content["notes"] = [text, f"Process {text} ended.", f"({text})", f"a={text}"]
    return msgspec.convert(content, Manifest)


def everything_written(recording: FakeRecording, **inputs: Any) -> str:
    report = build_report(recording, diagnosis(), analysis_inputs(**inputs))
    assert "redaction" in dump(report).decode()
    written = dump(report).decode() + render(report, 1000, show_all=True) + render(report, 1000, color=True)
    # a hash may spell any short word by chance
    return written.replace(report.report_id, "")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_a_manifest_reaches_neither_json_nor_terminal(text: str) -> None:
    recording = FakeRecording(manifest=hostile_manifest(text), versions={"torch": text, text: "1.0"})
    recording.quality.notes = [text]
    recording.quality.counts = {text: 1}
    written = everything_written(recording, device_kind=text, model=ModelFacts(dtype=text))
    assert text not in written
    for piece in ("alice", "private", "node17", "corp", "hunter2", "sk-live", "alert", "forged", "abc", "gnp", "\x9b"):
        assert piece not in written


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=5, max_size=30))
def test_no_unknown_text_passes_wherever_it_stands(text: str) -> None:
    secret = f"Zq{text}qZ"
    recording = FakeRecording(manifest=hostile_manifest(secret), versions={secret: secret})
    written = everything_written(recording, device_kind=secret, model=ModelFacts(dtype=secret))
    assert "Zq" not in written


def test_the_same_text_has_one_pseudonym_and_counts_once() -> None:
    redactor = Redactor()
    first = redactor.text("sentence", "cannot open /home/alice/a: and /home/bob/b and /home/alice/a")
    assert first == "cannot open path-1: and path-2 and path-1"
    assert redactor.text("sentence", "(/home/alice/a)") == "(path-1)"
    assert redactor.summary().removed == {"path": 2}


def test_pseudonyms_do_not_depend_on_the_process() -> None:
    reports = [
        build_report(FakeRecording(manifest=hostile_manifest("/home/alice")), diagnosis(), analysis_inputs())
        for _ in range(2)
    ]
    assert dump(reports[0]) == dump(reports[1])


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("Process 4711 was killed by SIGKILL after 3.2 s.", None),
        ("The engine exports http://127.0.0.1:8000/metrics", "The engine name-1 http://127.0.0.1:8000/metrics"),
        ("[Errno 13] Permission denied: '/root/x'", "[Errno 13] Permission denied: 'path-1'"),
        ("no answer from node17", "no name-1 from name-2"),
        ("no answer from 10.1.2.3 or alice@corp", "no name-1 from path-1 or address-1"),
        ("1,204 rows, 12 % of rows in 20ms", "1,204 rows, 12 % of rows in 20ms"),
        ("account 12345678901", "account name-1"),
    ],
)
def test_sentences_keep_our_own_words_and_numbers_only(
    sentence: str, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = "process was killed by sigkill after the engine errno permission denied no from or rows of in account"
    monkeypatch.setattr(redact, "vocabulary", lambda: frozenset(ours.split()))
    assert Redactor().text("sentence", sentence) == (shown or sentence)


@pytest.mark.parametrize(
    ("command", "shown", "complete"),
    [
        ("python samples/serve.py --scenario decode --seed 7", None, True),
        ("python3.11 -u serve.py --max-num-seqs 8 --dtype=bfloat16 --compile", None, True),
        ("vllm serve ibm-granite/granite-3.3-8b-instruct --quantization fp8 -tp 4", None, False),
        ("vllm serve ibm-granite/granite-3.3-8b-instruct --max-num-batched-tokens 2048", None, True),
        ("python -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.1-8B-Instruct", None, True),
        ("python serve.py --model /models/acme-llm", "python serve.py --model model-1", False),
        ("vllm serve acme/granite-3.3-8b", "vllm serve model-1", False),
        ("vllm serve granite-acme-8b", "vllm serve model-1", False),
        ("python serve.py --api-key sk-1 --pin 1234", "python serve.py --api-key value-1 --pin value-2", False),
        ("python serve.py --max-tokens 12", None, True),
        ("python serve.py --host node17", "python serve.py --host value-1", False),
        ("python serve.py --host 127.0.0.1 --port 8000", None, True),
        ("python serve.py --acme-mode 1", "python serve.py option-1 1", False),
        ("python acme_serve.py", "python script-1", False),
        ("python src/serve.py", "python serve.py", False),
        ("python /home/alice/acme.py", "python script-1", False),
        ("/home/alice/venv/bin/python serve.py", "python serve.py", False),
        (".venv/bin/python samples/serve.py --prompt-tokens 16:64 --result r.json", None, False),
        (".venv/bin/python samples/serve.py --prompt-tokens 16:64 --load-seconds 20", None, True),
        ("/home/alice/bin/acme", "program-1", False),
        ("python -phunter2 serve.py", "python -pvalue-1 serve.py", False),
        ("python -m acme.run", "python -m module-1", False),
        ("env TOKEN=abc python serve.py", "env script-1 python value-1", False),
        ("python serve.py --seed [redacted]", "python serve.py --seed value-1", False),
    ],
)
def test_commands_keep_known_options_and_listed_values(command: str, shown: str | None, complete: bool) -> None:
    redacted = Redactor().command(command.split())
    if shown is not None or complete:
        assert redacted.text == (shown or command)
    assert redacted.complete is complete


def test_every_option_of_the_samples_keeps_its_name() -> None:
    samples = Path(__file__).parents[2] / "samples"
    options = {
        option for source in samples.rglob("*.py") for option in re.findall(r'"(--[a-z-]+)"', source.read_text("utf-8"))
    }
    assert "--max-num-seqs" in options
    for option in sorted(options):
        assert option in Redactor().command(["python", "samples/serve.py", option]).text


def test_a_folder_that_is_left_out_is_counted() -> None:
    redactor = Redactor()
    redactor.command(["/home/alice/venv/bin/python", "src/serve.py"])
    assert redactor.summary().removed == {"folder": 2}


def test_code_on_the_command_line_is_withheld() -> None:
    assert Redactor().command(["python", "-c", "print('x')"]).text == "python -c value-1"


def test_model_and_quantisation_are_read_from_the_command_when_they_are_public() -> None:
    redacted = Redactor().command(["vllm", "serve", "ibm-granite/granite-3.3-8b-instruct", "--quantization=fp8"])
    assert (redacted.model, redacted.quantisation) == ("ibm-granite/granite-3.3-8b-instruct", "fp8")
    assert Redactor().command(["vllm", "serve", "/models/x"]).model == "model-1"
    assert Redactor().command(["python", "serve.py"]).model is None


@pytest.mark.parametrize(
    ("kind", "public", "private"),
    [
        ("version", "2.13.0+cpu", "2.13.0+acme"),
        ("version", "0.11.1.dev12", "nightly-alice"),
        ("processor", "AMD EPYC 7B13 64-Core Processor", "Acme Secret Processor"),
        ("processor", "Intel(R) Xeon(R) CPU @ 2.20GHz", "alice"),
        ("machine", "s390x", "alice"),
        ("device", "spyre", "acme"),
        ("dtype", "bfloat16", "acme"),
        ("run_id", "7f3a01c2", "alice"),
    ],
)
def test_facts_pass_by_their_own_list_only(kind: Any, public: str, private: str) -> None:
    assert Redactor().text(kind, public) == public
    assert Redactor().text(kind, private) == f"{kind.replace('_', '-')}-1"


def test_build_makes_no_public_text_of_its_own_accord() -> None:
    source = Path(build_module.__file__).read_text(encoding="utf-8")
    made = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Public"
    ]
    assert not made


def test_every_word_that_our_messages_use_is_in_the_vocabulary(golden: Golden) -> None:
    spoken = spoken_words()
    if golden.update:
        VOCABULARY.write_text("\n".join(sorted(spoken)) + "\n", encoding="utf-8")
        vocabulary.cache_clear()
    missing = sorted(spoken - vocabulary())
    assert not missing, f"words of our messages would be withheld: {missing}; pytest --update-golden adds them"
