//! Acting in another process: the only ptrace.

pub mod seccomp;
