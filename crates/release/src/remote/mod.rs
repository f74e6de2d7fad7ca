//! Acting in another process: the only ptrace.
