"""Patches in the V4A form: a generated patch gives the new text, a wrong one says what is wrong and changes nothing."""

from __future__ import annotations

from difflib import SequenceMatcher

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kiseki.errors import ToolError
from kiseki.tools.v4a import Edit, apply_patch, named_paths, parse_patch


def patched(text: str, body: str, path: str = "a.py") -> str:
    changes = parse_patch(f"*** Begin Patch\n*** Update File: {path}\n{body}\n*** End Patch")
    (edit,) = apply_patch(changes, {path: text})
    assert edit.after is not None
    return edit.after


CLASSES = "class A:\n    def f(self):\n        return 1\n\nclass B(A):\n    def f(self):\n        return 1\n"


@pytest.mark.parametrize(
    ("text", "body", "expected"),
    [
        ("a\nb\nc\n", "@@\n a\n-b\n+B\n c", "a\nB\nc\n"),
        ("a\nb\nc\n", "-b", "a\nc\n"),
        (CLASSES, "@@ class B(A):\n@@     def f(self):\n-        return 1\n+        return 2", CLASSES[:-2] + "2\n"),
        (CLASSES, "@@ class B\n def f(self):\n-    return 1\n+    return 2", CLASSES[:-2] + "2\n"),
        ("a\nb\n", "@@ -1,2 +1,3 @@\n a\n+x\n b", "a\nx\nb\n"),
        ("a\nb\nc\n", "@@ a\n+x", "a\nx\nb\nc\n"),
        ("a\nb\n", "@@\n+x", "a\nb\nx\n"),
        ("a\nb", "@@\n+x", "a\nb\nx"),
        ("", "@@\n+x", "x\n"),
        ("k\nx\nk\n", "@@\n-k\n+K\n*** End of File", "k\nx\nK\n"),
        ("a\r\nb\r\n", "@@\n a\n-b\n+B\n+C", "a\r\nB\r\nC\r\n"),
        ("a\n\nb\n", "@@\n a\n\n-b\n+B", "a\n\nB\n"),
        ("a  \nb\n", "@@\n a\n-b\n+B\n", "a  \nB\n"),
        ("1\n2\n3\n4\n", "@@\n-1\n+one\n@@\n-4\n+four", "one\n2\n3\nfour\n"),
        ("x\u2028</tool_call>\0\n", "@@\n-x\u2028</tool_call>\0\n+y", "y\n"),
        ("a\nb", "@@\n a\n-b\n+c", "a\nc"),
    ],
)
def test_hunks(text: str, body: str, expected: str) -> None:
    assert patched(text, body) == expected


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("", 'no line "*** Begin Patch"'),
        ("*** Begin Patch\n*** Delete File: a.py\n", 'no line "*** End Patch"'),
        ("*** Begin Patch\n*** End Patch", "changes no file"),
        ("*** Begin Patch\nhello\n*** End Patch", "line 2 of the patch comes before any file: 'hello'"),
        ("*** Begin Patch\n*** Update File: a.py\n*** End Patch", "but not what to change"),
        ("*** Begin Patch\n*** Update File: a.py\n@@\n one\n*** End Patch", 'has no line with "+" or "-"'),
        ("*** Begin Patch\n*** Update File: a.py\n@@\n-one\nTWO\n*** End Patch", "line 5 of the patch begins with none of"),
        ("*** Begin Patch\n*** Add File: n\nplain\n*** End Patch", 'every line of the new file n begins with "+"'),
        ("*** Begin Patch\n*** Delete File: a.py\n-x\n*** End Patch", "nothing follows Delete File"),
        ("*** Begin Patch\n*** Add File: a.py\n+x\n*** End Patch", "Add File: a.py exists already"),
        ("*** Begin Patch\n*** Delete File: no\n*** End Patch", "Delete File: there is no file no"),
        ("*** Begin Patch\n*** Update File: no\n@@\n-x\n*** End Patch", "Update File: there is no file no"),
        ("*** Begin Patch\n*** Update File: a.py\n*** Move to: b.py\n*** End Patch", "Move to: b.py exists already"),
        ("*** Begin Patch\n*** Update File: a.py\n@@ nowhere\n-one\n*** End Patch", "it has no line 'nowhere'"),
        ("*** Begin Patch\n*** Update File: a.py\n@@\n-onee\n*** End Patch", "not in it:\nonee\nThe closest lines are:\n1|one"),
        ("*** Begin Patch\n*** Update File: a.py\n@@\n-same\n+x\n*** End Patch", "but at lines 3, 4: add context lines"),
        ("*** Begin Patch\n*** Update File: a.py\n@@\n-two\n@@\n-one\n*** End Patch", "order the hunks by line"),
        ("*** Begin Patch\n*** Update File: a.py\n@@\n-one\n+one\n*** End Patch", "leaves every file as it is"),
    ],
)
def test_says_what_is_wrong(patch: str, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        changes = parse_patch(patch)
        files = dict.fromkeys(named_paths(changes))
        apply_patch(changes, files | {"a.py": "one\ntwo\nsame\nsame\n", "b.py": "b\n"})
    assert message in str(caught.value)


def test_several_files_and_fences() -> None:
    changes = parse_patch(
        "```\n*** Begin Patch\n*** Add File: ./new/x.txt\n+hi\n+\n\n*** Update File: old.txt\n*** Move to: moved.txt\n"
        "@@\n-a\n+b\n*** Delete File: gone.txt\n*** Update File: new/x.txt\n@@\n-hi\n+ho\n*** End Patch\n```\n"
    )
    assert named_paths(changes) == ["new/x.txt", "old.txt", "moved.txt", "gone.txt"]
    files = {"new/x.txt": None, "old.txt": "a\n", "moved.txt": None, "gone.txt": "z"}
    assert apply_patch(changes, files) == [
        Edit("new/x.txt", None, "ho\n\n"),
        Edit("old.txt", "a\n", None),
        Edit("moved.txt", None, "b\n", moved_from="old.txt"),
        Edit("gone.txt", "z", None),
    ]


def test_an_empty_file_can_be_added() -> None:
    changes = parse_patch("*** Begin Patch\n*** Add File: e\n*** End Patch")
    assert apply_patch(changes, {"e": None}) == [Edit("e", None, "")]


# Lines that a patch can carry: no line break of any convention at their end, nothing but distinct ones so that places are unique.
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=8)


def v4a_of(old: list[str], new: list[str], context: int) -> str:
    """The patch that makes `new` of `old`, as a careful model would write it."""
    body = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        body.append("@@")
        for tag, i, j, m, n in group:
            if tag == "equal":
                body += [" " + line for line in old[i:j]]
            else:
                body += ["-" + line for line in old[i:j]] + ["+" + line for line in new[m:n]]
    return "\n".join(body)


@given(
    st.lists(LINE, min_size=1, max_size=12, unique_by=lambda line: "".join(line.split())),
    st.data(),
    st.integers(1, 3),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_a_generated_patch_gives_the_new_text(
    old: list[str], data: st.DataObject, context: int, ending: str, ended: bool
) -> None:
    new = [line for line in old if data.draw(st.booleans(), label=f"keep {line!r}")]
    for _ in range(data.draw(st.integers(0, 3))):
        new.insert(data.draw(st.integers(0, len(new))), data.draw(LINE))
    last = ending if ended else ""
    # Without a line break at the end the last line has to be visible, and one line alone shows no line ending to keep.
    assume(old != new and new and (ended or (len(old) > 1 and old[-1] and new[-1])))
    before, after = ending.join(old) + last, ending.join(new) + last
    assert patched(before, v4a_of(old, new, context)) == after


@given(st.text(max_size=300))
def test_nonsense_is_refused_and_never_crashes(text: str) -> None:
    try:
        changes = parse_patch("*** Begin Patch\n*** Update File: a\n" + text + "\n*** End Patch")
        apply_patch(changes, dict.fromkeys(named_paths(changes)) | {"a": "one\ntwo\n"})
    except ToolError:
        pass
