"""Hostile templates end quickly, with a clear error and within bounds, and the next rendering is sound."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from atomesh.errors import ModelFileError, ServiceUnavailableError
from atomesh.frontend.templates.chat_template import ChatTemplate
from atomesh.frontend.templates.limits import TemplateLimits
from atomesh.frontend.templates.renderer import TemplateError, TemplateRenderer

QUICK_S = 5.0  # processor time is limited to a tenth of it; the rest is for a busy machine
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
EITHER = "MiB of memory|processor time"  # whichever a machine reaches first
DOUBLED = (
    "{%% set ns = namespace(x=%s) %%}{%% for i in range(64) %%}{%% set ns.x = %s %%}{%% endfor %%}"
    "{{ ns.x | tojson }}"
)
HOSTILE = {
    "loops": (LOOP, "0.5 s of processor time"),
    "filters": ("{{ range(99999) | map('string') | map('length') | list }}" * 500, "chat template"),
    "long loop": ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
    "multiplied text": ("{{ 'x' * 10**9 }}", "MiB of memory"),
    "multiplied list": ("{{ [0] * 10**9 }}", "MiB of memory"),
    "wide number": ("{{ '%0999999999d' % 1 }}", "MiB of memory"),
    "wide format": ("{{ '{:>999999999}'.format(1) }}", EITHER),
    "centred text": ("{{ 'a' | center(999999999) }}", EITHER),
    "doubled text": (DOUBLED % ("'ab'", "ns.x ~ ns.x"), EITHER),
    "doubled lists": (DOUBLED % ("[1]", "[ns.x, ns.x]"), "chat template"),
    "joined text": ("{% set x = 'a' * 99 %}{{ x.join(x.join(x.join(x.join(x.join(x))))) }}", EITHER),
    "replaced text": ("{{ ('a' * 99999).replace('a', 'b' * 99999) }}", EITHER),
    "large power": ("{{ 9 ** (9 ** 9) }}", "processor time"),
    "much output": ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "characters of output"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself too often"),
    "attribute": ("{{ ''.__class__.__mro__ }}", "must not do"),
    "attribute filter": ("{{ ((messages | attr('__class__')) | attr('__mro__'))[0] }}", "chat template"),
    "globals": ("{{ raise_exception.__globals__['sys'] }}", "must not do"),
    "format attribute": ("{{ '{0.__class__.__mro__}'.format(1) }}", "must not do"),
    "mapped format": ("{{ ['{0.__class__.__mro__}'] | map('format', 1) | list }}", "chat template"),
    "mutation": ("{{ messages.append(1) }}", "must not do"),
    "private name": ("{% set ns = namespace(__init__=1) %}", "must not do"),
    "deep parentheses": ("{{" + "(" * 5000, "chat template"),
    "deep lists": ("{{" + "[" * 5000 + "]" * 5000 + "}}", "chat template"),
    "deep blocks": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "chat template"),
    "long chain": ("{{ a" + ".b" * 50_000 + " }}", "chat template"),
    "constant folding": ("{{ ('x' | center(999999999)) | length }}", "MiB of memory"),
    "no end": ("{% for i in range(3) %}", "is not valid: Unexpected end"),
    "no tag": ("{% exec 'x' %}", "is not valid: Encountered unknown tag"),
    "include": ("{% include '/etc/passwd' %}", "chat template"),
}
CONDITIONAL = (
    "{% if messages[0].content == 'bad' %}" + LOOP + "{% else %}{{ messages[0].content }}{% endif %}"
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused(name: str) -> None:
    source, words = HOSTILE[name]
    started = time.perf_counter()
    with pytest.raises((ModelFileError, TemplateError), match=words):
        ChatTemplate({"default": source}, {}).render([{"role": "user", "content": "hi"}])
    assert time.perf_counter() - started < QUICK_S


def test_a_template_that_must_be_stopped_is_there_for_the_next_request() -> None:
    template = ChatTemplate({"default": CONDITIONAL}, {})
    for _ in range(2):
        with pytest.raises(TemplateError, match=r"limit of 0\.5 s of processor time"):
            template.render([{"role": "user", "content": "bad"}])
        assert template.render([{"role": "user", "content": "good"}]) == "good"


def test_a_process_that_was_killed_is_started_again() -> None:
    renderer = TemplateRenderer({"default": "{{ x }}"})
    os.kill(renderer._child._process.pid, signal.SIGKILL)
    renderer._child._process.wait()
    assert renderer.render("default", {"x": "here"}) == "here"
    renderer.close()
    assert renderer.render("default", {"x": "again"}) == "again"


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGKILL, ServiceUnavailableError), (signal.SIGSEGV, TemplateError)]
)
def test_only_who_stops_the_process_from_outside_spares_the_request_the_blame(
    monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    renderer = TemplateRenderer({"default": "{{ x }}"})
    child = renderer._child
    os.kill(child._process.pid, number)
    child._process.wait()
    monkeypatch.setattr(child, "is_alive", lambda: True)  # as if it ended during the rendering
    with pytest.raises(error):
        renderer.render("default", {"x": "here"})
    monkeypatch.undo()
    assert renderer.render("default", {"x": "again"}) == "again"


def test_limits_grow_with_what_is_rendered() -> None:
    small, large = TemplateLimits.for_request(100), TemplateLimits.for_request(16 * 2**20)
    assert (small.cpu_s, small.memory >> 20, small.output) == (
        pytest.approx(0.5, abs=1e-3),
        384,
        4 * 2**20 + 400,
    )
    assert (large.cpu_s, large.memory >> 20) == (8.5, 768)


def test_messages_as_large_as_a_body_may_be_render() -> None:
    renderer = TemplateRenderer({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"})
    content = "日" * 2**20
    text = renderer.render("default", {"messages": [{"content": content}] * 5})
    assert text == content * 5


def test_surrogates_pass_both_ways() -> None:
    renderer = TemplateRenderer({"default": "{{ x | tojson }}{{ x }}"})
    assert renderer.render("default", {"x": "a\udc00\n"}) == '"a\udc00\\n"a\udc00\n'


def test_the_process_ends_when_its_parent_is_killed() -> None:
    program = (
        "from atomesh.frontend.templates.renderer import TemplateRenderer\n"
        "renderer = TemplateRenderer({'default': 'x'})\n"
        "print(renderer._child._process.pid, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        orphan = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    poll = select.poll()
    poll.register(orphan, select.POLLIN)
    ended = poll.poll(10_000)
    os.close(orphan)
    assert ended
