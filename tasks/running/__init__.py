"""How a stage starts, resumes and ends, and what it writes.

`runner` runs the body of a stage module, `stage` is what the body gets. `resuming` continues a
killed training from its checkpoint, which `fingerprint` says belongs to it; `signals` turns Ctrl-C
into an orderly end. `staging` publishes outputs whole or not at all, `snapshot` and `provenance`
notice edits made meanwhile, and `outcome` records how it ended. In `make repro` a stage that needs
torch is a fork (`forked`) of a process that has imported it (`fork_server`).
"""
