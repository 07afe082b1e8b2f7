"""Finding and killing processes from inside a machine by shell builtins alone: it runs where no process can be started, too.

The same hunt as `processes.end_all` on this machine: what is found is stopped first, so that it neither forks nor notices its
child's death, and killed when nothing new is found. Pure text: `script(of_…(…))` is what a POSIX shell has to run.
"""

from __future__ import annotations

from collections.abc import Iterable

RUN_COOKIE = "KISEKI_RUN"
"""Marks the processes of one program outside the session, also those that left its process tree."""
ROUNDS = 100
"""How often it looks again; three are the rule."""
COARSE_TICKS = 2
"""Start times are counted in ticks: what began so close to a call's begin may be older."""

# all: every running process; up_N: parent of N; age_N: tick of its start. kiseki_below sets `tree`: its arguments and their
# descendants. kiseki_marked N TEXT: whether N's environment holds TEXT (shells drop the NULs between its variables). A process's
# name, in parentheses, may hold anything, line breaks too.
_FUNCTIONS = r"""
kiseki_below() {
tree=" $* " grew=1
while [ $grew = 1 ]; do grew=0
for p in $all; do case $tree in *" $p "*) ;; *) eval "q=\$up_$p"
case $tree in *" $q "*) tree="$tree$p " grew=1;; esac;; esac; done; done
}
kiseki_marked() {
while IFS= read -r line || [ -n "$line" ]; do case $line in *"$2"*) return 0;; esac; line=; done <"/proc/$1/environ"
return 1
}
kiseki_list() {
all=
for entry in /proc/[0-9]*; do
p=${entry#/proc/} text=
while IFS= read -r line || [ -n "$line" ]; do text="$text $line" line=; done <"$entry/stat" || continue
case $text in *") "*) ;; *) continue;; esac
set -- ${text##*") "}
case $1 in Z|X) continue;; esac
eval "up_$p=\$2 age_$p=\${20}"
all="$all $p"
done
}
kiseki_hunt() {
found=" " killed=" " round=0
while [ $round -lt ROUNDS ]; do
round=$((round+1)) goal= new=
kiseki_list; kiseki_find
for p in $goal; do case $found in *" $p "*) ;; *) new="$new$p "; kill -STOP $p;; esac; done
if [ -n "$new" ]; then found="$found$new"
elif [ "$found" = "$killed" ]; then return 0
else for p in $found; do case $killed in *" $p "*) ;; *) kill -KILL $p;; esac; done; killed=$found
fi
done
for p in $found; do kill -KILL $p; done
}
kiseki_runs() {
while read -r name state line; do case $name in State:) case $state in Z|X) return 1;; esac; return 0;; esac
done <"/proc/$1/status"
return 1
}
kiseki_gone() {
round=0
while [ $round -lt ROUNDS ]; do
round=$((round+1)) left=
for p in $found; do kiseki_runs $p && left=1 && break; done
[ -n "$left" ] || return 0
sleep 0.05 || { sleep 1; round=$((round+20)); }
done
}
""".replace("ROUNDS", str(ROUNDS))


def script(find: str, *, listed: bool = True, gone: bool = False) -> str:
    """Kills what `find` finds, until that is nothing. Must run in a shell that is not part of it.

    `listed`: what it finds is among `all`; else it finds by itself. `gone`: waits until what was killed is gone, for some
    seconds at most.
    """
    listing = "" if listed else "kiseki_list() { :; }\n"
    hunt = "{ kiseki_hunt; kiseki_gone; }" if gone else "kiseki_hunt"
    return f"{_FUNCTIONS}{listing}kiseki_find() {{\n{find}\n}}\n{hunt} 2>/dev/null"


def of_call(shell: int, *, since: int, doubt: int, last_job: int, runners: Iterable[int], mark: str) -> str:
    """What the session shell `shell` started at tick `since` or later, with all below, and processes of that age that have left
    every tree. The call may have begun up to `doubt` ticks later.

    Not: what is as young but no younger than its background job `last_job`; what belongs to a program or one of the `runners`;
    with a `mark`, processes without it in their environment.
    """
    spared = " ".join(map(str, (shell, *runners)))
    # A runner that is only just being opened is not among `runners`; in a container its parent is outside, number 0.
    return f"""outside=
for p in $all; do eval "q=\\$up_$p"; [ "$q" = 0 ] && [ $p != 1 ] && outside="$outside $p"; done
kiseki_below {spared} $$ $outside; ours=$tree roots=
for p in $all; do eval "q=\\$up_$p a=\\$age_$p"
[ $p != 1 ] && [ "$a" -ge {since} ] || continue
[ "$a" -gt {since + doubt + COARSE_TICKS} ] || [ $p -gt {last_job} ] || continue
if [ "$q" != {shell} ]; then
case $ours in *" $p "*) continue;; esac
{_only_marked(mark)}kiseki_marked $p {RUN_COOKIE}= && continue
fi
roots="$roots $p"; done
kiseki_below $roots
{_RUNNING}"""


def of_program(runner: int | None, token: str) -> str:
    """A runner, where it still runs, all below it, and what has `token` in its environment."""
    return f"""roots={runner or ""}
for p in $all; do kiseki_marked $p {token} && roots="$roots $p"; done
kiseki_below $roots
{_RUNNING}"""


def of_everything(*, spared: Iterable[int], mark: str) -> str:
    """All but the first process and these; with a `mark`, only what has it in its environment."""
    listed = "|".join(map(str, (1, *spared)))
    return f"""for p in $all; do case $p in {listed}|$$) continue;; esac
{_only_marked(mark)}goal="$goal $p"; done"""


def of_marked(*marks: str) -> str:
    """What has one of these, given as words of a shell, in its environment, and all below it.

    By grep and awk, for `listed=False`: a shell reads a byte at a time, which on a host full of processes takes seconds.
    """
    patterns = " ".join(f"-e {mark}" for mark in marks)
    return f"""roots=$(grep -lsF {patterns} /proc/[0-9]*/environ | tr -dc '0-9\\n' | tr '\\n' ' ')
[ -z "$roots" ] || goal=$(grep -s -e '^State:' -e '^PPid:' /proc/[0-9]*/status | awk -v roots="$roots" '{_TREE}')"""


_TREE = """
{ split($1, part, "/"); pid = part[3] }
/State:/ { if ($2 != "Z" && $2 != "X") running[pid] = 1 }
/PPid:/ { parent[pid] = $2 }
END {
count = split(roots, list, " ")
for (i = 1; i <= count; i++) tree[list[i]] = 1
do { grew = 0
for (pid in parent) if (!(pid in tree) && (parent[pid] in tree)) { tree[pid] = 1; grew = 1 }
} while (grew)
for (pid in tree) if (pid in running) print pid
}"""
_RUNNING = 'for p in $all; do case $tree in *" $p "*) goal="$goal $p";; esac; done'


def _only_marked(mark: str) -> str:
    return f"kiseki_marked $p {mark} || continue\n" if mark else ""
