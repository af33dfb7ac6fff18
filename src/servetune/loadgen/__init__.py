"""The load client: sends prepared requests on a schedule and keeps what came back, with its times.

It runs in a process of its own (`worker.py`), started and watched by `run.run_load`. Import from
`servetune.loadgen.run`: this file stays empty because every start of a worker passes through it.
"""
