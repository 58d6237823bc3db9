"""Secrets of a command line are on no disk afterwards; what explains a run's speed stays legible."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from recording_run import environment, python, record

from spyreprof_collectors.secrets import (
    REDACTED,
    allowed_environment,
    is_secret_name,
    redact_command,
    redact_text,
    strip_userinfo,
)

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.abcDEF123_-x"


@pytest.mark.parametrize(
    ("argv", "secret"),
    [
        (["--api-key", "hunter2"], "hunter2"),
        (["--api-key=hunter2"], "hunter2"),
        (["--hf-token", "hunter2"], "hunter2"),
        (["--hf_token=hunter2"], "hunter2"),
        (["--password", "-hunter2"], "hunter2"),
        (["--db.passwd=a=hunter2"], "hunter2"),
        (["--client-secret", "hunter2"], "hunter2"),
        (["--credential", "hunter2"], "hunter2"),
        (["--auth", "user:hunter2"], "hunter2"),
        (["--cookie", "sid=hunter2"], "hunter2"),
        (["-token", "hunter2"], "hunter2"),
        (["API_KEY=hunter2"], "hunter2"),
        (["HF_TOKEN=hunter2", "python", "x.py"], "hunter2"),
        (["https://user:hunter2@host/path"], "hunter2"),
        (["https://hunter2@host/path"], "hunter2"),
        (["https://user:hunt@er2@host/path"], "er2@"),
        (["https://user:hun/ter2@host/path"], "hun/ter2"),
        (["--url=postgres://u:hunter2@db:5432/x"], "hunter2"),
        (["--url", "http://h/x?api_key=hunter2&n=3"], "hunter2"),
        (["-H", "Authorization: Bearer hunter2"], "hunter2"),
        (["-H", "Authorization: hunter2"], "hunter2"),
        (["-H", "X-Api-Key: hunter2"], "hunter2"),
        (["--header=Cookie: a=hunter2"], "hunter2"),
        (["-c", 'connect(token="hunter2", n=3)'], "hunter2"),
        (["--config", '{"api_key": "hunter2", "port": 3}'], "hunter2"),
        (["--config", "{'hf_token': 'hunter2'}"], "hunter2"),
        (["sh", "-c", "HF_TOKEN=hunter2 python serve.py"], "hunter2"),
        (["sh", "-c", "python serve.py --api-key hunter2 --port 1"], "hunter2"),
        (["sh", "-c", "python serve.py --api-key 'hunter2 x' --port 1"], "hunter2"),
        (["x", "sk-abc123DEF456ghi789"], "sk-abc123"),
        (["x", "hf_AbCdEfGhIjKlMnOpQr"], "hf_AbCd"),
        (["x", "ghp_0123456789abcdefghij"], "ghp_0123"),
        (["x", "github_pat_11ABCDEFG0123456789"], "github_pat_11"),
        (["x", "AKIAIOSFODNN7EXAMPLE"], "AKIAIOS"),
        (["x", JWT], "eyJhbG"),
        (["x", "prefix:" + JWT], "eyJhbG"),
        (["x", "glpat-abcdefgh12345678"], "glpat-abc"),
        (["x", "xoxb-1234567890-abcdefghij"], "xoxb-123"),
        (["x", "0123456789abcdef0123456789abcdef"], "0123456789abcdef"),
        (["x", "q7Zt9LmX2vBw4RkP8sHd3NfY6jCg"], "q7Zt9Lm"),
        (["x", "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\n"], "MIIEabc"),
    ],
)
def test_a_secret_does_not_survive(argv: list[str], secret: str) -> None:
    redacted = redact_command(argv)
    assert secret not in " ".join(redacted)
    assert REDACTED in " ".join(redacted)


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "serve.py", "--max-num-batched-tokens", "8192", "--max-num-seqs=16"],
        ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct", "--tokenizer", "org/tok", "--tokenizer-mode", "auto"],
        ["python", "-m", "vllm.entrypoints.openai.api_server", "--port", "8000"],
        ["x", "--long-prefill-token-threshold", "512", "--max-tokens", "5", "--num-key-value-heads", "8"],
        ["x", "--model", "/models/granite-3.3-8b-instruct-2024-12-01/snapshots/main", "--seed=12345678901234567890"],
        ["x", "https://host:8000/v1/completions?n=3", "--lora-modules", "a=/path/to/lora", "user@host"],
        ["python", "samples/hf_generate.py", "--batch", "4"],
        ["x", "http://127.0.0.1:8000/v1/a@b", "https://host/@scope/name"],
        ["x", "--trust-remote-code", "--enforce-eager", "-O3", "--dtype=float16", "--eos-token-id", "2"],
        ["x", "--kv-cache-memory-bytes", "64M", "thisisaverylongnamewithoutanydigitsinit", "execute_context_1"],
    ],
)
def test_what_explains_the_run_stays(argv: list[str]) -> None:
    assert redact_command(argv) == argv


def test_the_option_after_a_secret_option_without_value_stays() -> None:
    assert redact_command(["--auth", "--port", "80"]) == ["--auth", "--port", "80"]


def test_a_secret_of_the_environment_is_recognised_in_the_command_line() -> None:
    environ = {"DB_PASSWORD": "correct horse", "MODEL_TOKEN": "x1", "HOME": "/root"}
    argv = ["run", "--dsn", "db=correct horse battery", "/root/x1"]
    assert redact_command(argv, environ) == ["run", "--dsn", f"db={REDACTED} battery", "/root/x1"]


@pytest.mark.parametrize(
    "name",
    ["--api-key", "HF_TOKEN", "password", "x-auth", "AWS_SECRET_ACCESS_KEY", "set-cookie", "--new-api-key", "hfToken"],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["--max-tokens", "--tokenizer", "--num-batched-tokens", "--port", "--stop-token-ids"])
def test_names_of_sizes_are_not_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_only_variables_that_explain_speed_are_taken_and_none_with_a_secrets_name() -> None:
    environ = {
        "OMP_NUM_THREADS": "2",
        "VLLM_USE_V1": "1",
        "VLLM_API_KEY": "hunter2",
        "VLLM_HOST": "https://u:hunter2@host/",
        "TORCH_LOGS": "sk-hunter2hunter2",
        "HOME": "/root",
        "SOMETHING": "else",
        "SPYRE_DEVICES": "0,1",
    }
    taken = allowed_environment(environ)
    assert set(taken) == {"OMP_NUM_THREADS", "VLLM_USE_V1", "VLLM_HOST", "TORCH_LOGS", "SPYRE_DEVICES"}
    assert "hunter2" not in str(taken)


def test_a_url_without_its_userinfo_is_a_url_again() -> None:
    assert strip_userinfo("http://user:pass@127.0.0.1:8000/metrics") == "http://127.0.0.1:8000/metrics"


def test_redaction_twice_is_redaction_once() -> None:
    text = redact_text(f"Authorization: Bearer {JWT}, https://a:b@c/?token=x")
    assert redact_text(text) == text


def test_after_a_real_run_no_file_holds_a_secret(tmp_path: Path) -> None:
    secrets = [
        "sk-proj-abcdefGHIJKL0123456789",
        "hf_QwErTyUiOpAsDfGhJkLzXcVbNm",
        "s3cr3t-pa55",
        "environment-t0ken-value",
        "query-secret-77",
    ]
    program = tmp_path / "program.py"
    program.write_text("import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass', *sys.argv[1:]])\n")
    run = record(
        tmp_path,
        [sys.executable, program, "--api-key", secrets[0], f"--hf-token={secrets[1]}", f"https://user:{secrets[2]}@host/",
         f"http://h/?access_token={secrets[4]}"],
        "--metrics-url", f"http://user:{secrets[2]}@127.0.0.1:9/metrics?key={secrets[4]}",
        env=environment(TOKEN=secrets[3], VLLM_API_KEY=secrets[3], VLLM_URL=f"http://x:{secrets[2]}@y"),
    )  # fmt: skip
    assert run.code == 0
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert files
    everything = b"".join(path.read_bytes() for path in files) + run.stderr
    for secret in secrets:
        assert secret.encode() not in everything
    assert run.manifest["command"][2:4] == ["--api-key", REDACTED]


def test_the_arguments_of_the_programs_processes_are_not_stored(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.run(['sleep', '1.5', '0.00417'])"
    run = record(tmp_path, python(code))
    assert any(row.get("name") == "sleep" for row in run.rows("usage"))
    for path in (run.path / "shards").iterdir():
        assert "0.00417" not in path.read_text()
