"""What Kiseki's speed and memory claims rest on: `python -m benchmarks` from the repository root.

Each module measures one thing and says in its docstring what and how. Wherever there is a floor (the least that the job could
cost), it is measured in the same run, since ratios hold on a busy or a slow machine where seconds do not. CPU time is taken in
fresh child processes; what only starting costs is excluded by the difference of a large and a small run.
"""
