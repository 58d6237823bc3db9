"""`generate()` of transformers: steps and requests without a change to the program. On a stand-in for the library."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_program import Finished, run

# The parts of transformers.generation.utils that the hook looks at, with the order of calls of the real loops.
UTILS = '''
class Tensor:
    def __init__(self, *shape, device="cpu"):
        self.shape, self.ndim = shape, len(shape)
        self.device = type("Device", (), {"type": device})

class Output:
    def __init__(self, device):
        self.logits = Tensor(1, 1, 8, device=device)

class GenerationMixin:
    """Documented."""
    device = "cpu"
    config = type("Config", (), {"is_encoder_decoder": False})

    def generate(self, inputs=None, new=3, chunk=None, use_cache=True, assistant=None, fail=False, mask=False, **kw):
        """As in the library."""
        rows, length = inputs.shape
        size = chunk or length
        for end in [*range(size, length, size), length]:
            begun = end - size if end % size == 0 else end - end % size
            given = Tensor(rows, end - begun)
            self.prepare_inputs_for_generation(given, attention_mask=Tensor(rows, end) if mask else None)
        if fail:
            raise ValueError("as ever")
        self._update_model_kwargs_for_generation(Output(self.device), {})
        for made in range(1, new):
            if assistant is not None:
                assistant.generate(Tensor(rows, length + made), new=2)
            ids = Tensor(rows, length + made)
            self.prepare_inputs_for_generation(ids, 1 if use_cache else None, use_cache=use_cache)
            self._update_model_kwargs_for_generation(Output(self.device), {})
        return Tensor(rows, length + new)

    def prepare_inputs_for_generation(self, input_ids, next_sequence_length=None, attention_mask=None, **kwargs):
        query = next_sequence_length or input_ids.shape[1]
        return {"input_ids": Tensor(input_ids.shape[0], query), "decoder_input_ids": None}

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs, **kwargs):
        return model_kwargs
'''

HEAD = """
    from transformers.generation.utils import GenerationMixin, Tensor
    class Model(GenerationMixin):
        def prepare_inputs_for_generation(self, input_ids, *arguments, **keywords):
            return super().prepare_inputs_for_generation(input_ids, *arguments, **keywords)
    model = Model()
"""


def stand_in(tmp_path: Path, utils: str = UTILS) -> None:
    package = tmp_path / "transformers" / "generation"
    package.mkdir(parents=True, exist_ok=True)
    (package.parent / "__init__.py").write_text("__version__ = '5.0.0'")
    (package / "__init__.py").write_text("")
    (package / "utils.py").write_text(utils)


def generate(tmp_path: Path, program: str, utils: str = UTILS) -> Finished:
    stand_in(tmp_path, utils)
    return run(tmp_path, HEAD + program)


def steps(ended: Finished) -> list[str]:
    assert (ended.code, ended.stderr) == (0, ""), ended.stderr
    return [row["n"].removeprefix("spyreprof_step[by=generate ph=").rstrip("]") for row in ended.rows("steps")]


def prefill(rows: int, query: int, length: int) -> str:
    tokens = rows * query
    return f"prefill cr={rows} ct={tokens} cs={rows * length} cqk={tokens * length} gr=0 gt=0 gs=0"


def decode(rows: int, length: int) -> str:
    return f"decode cr=0 ct=0 cs=0 cqk=0 gr={rows} gt={rows} gs={rows * length}"


def test_a_prompt_is_a_prefill_and_every_further_token_a_decode(tmp_path: Path) -> None:
    ended = generate(tmp_path, "    print(model.generate(Tensor(2, 7)).shape)")
    assert ended.stdout == "(2, 10)\n"
    assert steps(ended) == [prefill(2, 7, 7), decode(2, 8), decode(2, 9)]
    requests = ended.rows("requests")
    assert [(row["prompt"], row["output"], row["reason"]) for row in requests] == [(7, None, None)] * 2
    for row in requests:
        moments = [row[key] for key in ("t0", "ts", "tf", "t1")]
        assert moments == sorted(moments)
    assert ended.hooks()["transformers generate"] == "ok"
    assert [row["transformers"] for row in ended.process_rows("versions")] == ["5.0.0"]


@pytest.mark.parametrize("mask", [False, True])
def test_chunks_of_a_prompt_are_prefills_that_grow(tmp_path: Path, mask: bool) -> None:
    ended = generate(tmp_path, f"    model.generate(Tensor(1, 10), chunk=4, new=1, mask={mask})")
    assert steps(ended) == [prefill(1, 4, 4), prefill(1, 4, 8), prefill(1, 2, 10)]
    assert [row["output"] for row in ended.rows("requests")] == [1]


def test_without_a_cache_every_step_computes_the_whole_text_as_a_prefill(tmp_path: Path) -> None:
    ended = generate(tmp_path, "    model.generate(Tensor(1, 5), use_cache=False)")
    assert steps(ended) == [prefill(1, 5, 5), prefill(1, 6, 6), prefill(1, 7, 7)]


def test_the_generation_of_an_assistant_is_part_of_the_call_that_it_assists(tmp_path: Path) -> None:
    ended = generate(tmp_path, "    model.generate(Tensor(1, 5), assistant=Model())")
    assert steps(ended) == [prefill(1, 5, 5), decode(1, 6), decode(1, 7)]
    assert len(ended.rows("requests")) == 1


def test_a_call_that_fails_ends_its_step_and_aborts_its_requests(tmp_path: Path) -> None:
    program = """
    try:
        model.generate(Tensor(1, 5), fail=True)
    except ValueError as error:
        print(error, error.__context__)
    model.generate(Tensor(1, 6), new=1)
    """
    ended = generate(tmp_path, program)
    assert ended.stdout == "as ever None\n"
    assert steps(ended) == [prefill(1, 5, 5), prefill(1, 6, 6)]
    assert [row["reason"] for row in ended.rows("requests")] == ["abort", None]


def test_on_a_device_a_step_lasts_until_the_program_has_its_tokens(tmp_path: Path) -> None:
    program = """
    import time
    class Takes(Model):
        def _update_model_kwargs_for_generation(self, outputs, kwargs):
            print(time.monotonic_ns())
            return kwargs
    Takes.device = DEVICE
    Takes().generate(Tensor(1, 5), new=2)
    """
    for device in ("cpu", "cuda"):
        folder = tmp_path / device
        folder.mkdir()
        ended = generate(folder, program.replace("DEVICE", repr(device)))
        taken_up = [int(line) for line in ended.stdout.split()]
        ends = [row["t1"] for row in ended.rows("steps")]
        assert [end < taken for end, taken in zip(ends, taken_up, strict=True)] == [device == "cpu"] * 2


def test_a_program_that_marks_its_steps_and_requests_itself_is_taken_at_its_word(tmp_path: Path) -> None:
    program = """
    import spyreprof_agent
    with spyreprof_agent.request(prompt_tokens=5) as request, spyreprof_agent.step("mixed"):
        model.generate(Tensor(1, 5))
    request.finished()
    """
    ended = generate(tmp_path, program)
    assert [row["n"] for row in ended.rows("steps")] == ["spyreprof_step[by=api ph=mixed]"]
    assert len(ended.rows("requests")) == 1


def test_calls_in_threads_are_told_apart(tmp_path: Path) -> None:
    program = """
    import threading
    threads = [threading.Thread(target=model.generate, args=(Tensor(1, 5), 40)) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    """
    ended = generate(tmp_path, program)
    assert sorted(steps(ended)) == sorted(4 * [prefill(1, 5, 5), *(decode(1, 6 + made) for made in range(39))])


def test_the_methods_look_as_they_did(tmp_path: Path) -> None:
    program = """
    import inspect
    model.generate(Tensor(1, 5))
    for owner, name in ((GenerationMixin, "generate"), (Model, "prepare_inputs_for_generation")):
        method = getattr(owner, name)
        print(inspect.signature(method), method.__qualname__, method.__module__, method.__doc__)
    """
    package = tmp_path / "bare"
    package.mkdir()
    ended = generate(tmp_path, program)
    bare = run(tmp_path, HEAD + program, agent=False, folder=package)
    assert (ended.code, ended.stdout) == (0, bare.stdout)
    assert "GenerationMixin.generate" in bare.stdout


@pytest.mark.parametrize("gone", ["generate", "prepare_inputs_for_generation", "_update_model_kwargs_for_generation"])
def test_a_version_without_these_methods_is_said_and_left_alone(tmp_path: Path, gone: str) -> None:
    ended = generate(tmp_path, "    print('went on')", UTILS.replace(f"def {gone}(", "def other("))
    assert (ended.code, ended.stdout, ended.stderr) == (0, "went on\n", "")
    assert ended.hooks()["transformers generate"] == "missing"


def test_a_static_method_in_place_of_one_that_we_cover_turns_the_hook_off(tmp_path: Path) -> None:
    program = """
    class Static(GenerationMixin):
        @staticmethod
        def _update_model_kwargs_for_generation(outputs, model_kwargs):
            return model_kwargs
    print(Static().generate(Tensor(1, 5)).shape)
    """
    ended = generate(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "(1, 8)\n", "")
    assert ended.hooks()["transformers generate"] == "failed"


def test_inputs_of_an_unknown_kind_turn_the_hook_off_and_the_program_goes_on(tmp_path: Path) -> None:
    program = """
    class Strange(GenerationMixin):
        def prepare_inputs_for_generation(self, input_ids, *arguments, **keywords):
            return {"pixels": input_ids}
    for _ in range(2):
        print(Strange().generate(Tensor(1, 5)).shape)
    """
    ended = generate(tmp_path, program)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "(1, 8)\n" * 2, "")
    assert ended.hooks()["transformers generate"] == "failed"


COMPILED_UTILS = """
import torch

class GenerationMixin:
    @torch.no_grad()
    def generate(self, inputs):
        given = self.prepare_inputs_for_generation(inputs)["input_ids"]
        outputs = given * 2
        self._update_model_kwargs_for_generation(outputs, {})
        return outputs + 1

    def prepare_inputs_for_generation(self, input_ids):
        return {"input_ids": input_ids + 1}

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs):
        return model_kwargs
"""


def test_dynamo_compiles_the_same_graph_of_a_whole_call(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = """
    import torch, torch._dynamo
    from torch._dynamo.utils import counters
    from transformers.generation.utils import GenerationMixin
    model = GenerationMixin()
    print(model.generate(torch.ones(1, 3)))
    print(torch.compile(model.generate, backend="eager")(torch.ones(1, 3)))
    for name in ("frames", "stats", "graph_break", "unimplemented"):
        print(name, sorted(counters[name].items()))
    """
    stand_in(tmp_path, COMPILED_UTILS)
    bare = run(tmp_path, program, agent=False, flags=("-W", "ignore"))
    ended = run(tmp_path, program, flags=("-W", "ignore"))
    assert bare.code == 0, bare.stderr
    assert "unique_graphs" in bare.stdout
    assert (ended.code, ended.stdout) == (0, bare.stdout)
    assert ended.hooks()["transformers generate"] == "ok"
    # What Dynamo has compiled is not seen; the call before it is.
    assert len(ended.rows("steps")) == 1
