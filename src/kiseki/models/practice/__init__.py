"""The built-in practice model, `--model=builtin/practice`: an honest rule-based policy, no key, no network, deterministic.

It reads the prompt and the tools that it was offered, recognises some twenty families of tasks, and really works on them:
looks around, writes a script, runs it, meets the mistake that it made in the first version, fixes it, runs it again,
checks, and answers with what the tools gave. It exists so that the first run, the tests and a look at the data need no paid
model. It is not clever: word problems are solved by keyword heuristics, unknown requests end in a note.

How it is made: `flows` are generators that yield a `Turn` and receive the results of its calls, so each reads like the story of
one rollout. Every call of the model replays its flow over the conversation: no state is kept between calls.

    model.py      the ChatModel, the replay, the usage estimate
    view.py       what the policy sees: tools offered (`Kit`), results, turns
    recognise.py  prompt → flow
    task.py       a task that a script solves, and the mistakes that its first version can have
    flows.py, file_flows.py, tool_flows.py, web_flows.py, browser_flows.py, helper_flows.py   how rollouts go
    numbers.py, sequences.py, texts.py, tables.py  families of tasks
    words.py      word problems          functions.py, bodies.py   "complete this function"
"""

from kiseki.models.practice.model import MODEL_NAME, PracticeModel

__all__ = ["MODEL_NAME", "PracticeModel"]
