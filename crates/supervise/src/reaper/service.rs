//! A program to start, prepared so that no work is left between fork and exec.

#![expect(unsafe_code, reason = "execve(2)")]

use std::cell::Cell;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;

use libc::{c_char, c_int};

use super::error::ServiceError;

/// The shell that runs a script without a `#!` line, as for execvp(3).
const SHELL: &CStr = c"/bin/sh";
/// Directories that are searched if PATH is not set, as by glibc.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A command with its environment.
#[derive(Debug)]
pub struct ServiceCommand {
    program: OsString,
    /// The files to try, in this order.
    candidates: Vec<CString>,
    /// Pointers into `_arguments`, and a null pointer.
    argv: Vec<*const c_char>,
    /// The arguments of a shell that runs a candidate: the shell, the candidate, further arguments,
    /// and a null pointer.
    script_argv: Vec<Cell<*const c_char>>,
    /// Pointers into `_variables`, and a null pointer.
    envp: Vec<*const c_char>,
    _arguments: Vec<CString>,
    _variables: Vec<CString>,
}

impl ServiceCommand {
    /// Prepares a command. Its environment is that of this process, without the variables in
    /// `remove`, and with those in `set`. A program without a slash is searched for in the
    /// directories of the resulting PATH.
    ///
    /// # Errors
    /// Fails if the command is empty, if a string contains a NUL byte, or if a name to set is not
    /// valid.
    pub fn new(
        command: &[OsString],
        set: &[(OsString, OsString)],
        remove: &[OsString],
    ) -> Result<Self, ServiceError> {
        let program = command.first().ok_or(ServiceError::Empty)?.clone();
        let environment = environment(set, remove)?;
        let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| &**value);
        let candidates = candidates(&program, path.unwrap_or(OsStr::new(DEFAULT_PATH)))?;
        let arguments: Vec<CString> =
            command.iter().map(|argument| c_string(argument)).collect::<Result<_, _>>()?;
        let variables: Vec<CString> = environment
            .iter()
            .map(|(name, value)| c_string(&[&**name, &**value].join(OsStr::new("="))))
            .collect::<Result<_, _>>()?;
        let argv = pointers(&arguments);
        let rest = argv.iter().skip(1).copied().map(Cell::new);
        let script_argv = [SHELL.as_ptr(), ptr::null()].map(Cell::new).into_iter().chain(rest);
        Ok(Self {
            program,
            candidates,
            script_argv: script_argv.collect(),
            envp: pointers(&variables),
            argv,
            _arguments: arguments,
            _variables: variables,
        })
    }

    /// Returns the program as given.
    pub(super) fn program(&self) -> &OsStr {
        &self.program
    }

    /// Replaces the calling process by the program, as execvp(3) does. Returns the error number if
    /// it fails. Is async-signal-safe.
    pub(super) fn exec(&self) -> c_int {
        let mut is_denied = false;
        let mut error = libc::ENOENT;
        for candidate in &self.candidates {
            error = self.exec_file(candidate);
            match error {
                libc::EACCES => is_denied = true,
                libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ESTALE | libc::ETIMEDOUT => {}
                _ => return error,
            }
        }
        if is_denied { libc::EACCES } else { error }
    }

    fn exec_file(&self, file: &CStr) -> c_int {
        let error = execve(file, &self.argv, &self.envp);
        if error != libc::ENOEXEC {
            return error;
        }
        if let Some(script) = self.script_argv.get(1) {
            script.set(file.as_ptr());
        }
        // SAFETY: `Cell` has the same layout as its content, and no code writes to the cells during
        // the call.
        let argv = unsafe {
            std::slice::from_raw_parts(self.script_argv.as_ptr().cast(), self.script_argv.len())
        };
        execve(SHELL, argv, &self.envp)
    }
}

/// Executes a file. Returns the error number. Both lists end with a null pointer.
fn execve(file: &CStr, argv: &[*const c_char], envp: &[*const c_char]) -> c_int {
    // SAFETY: the lists end with a null pointer, and the others point into C strings that a
    // `ServiceCommand` owns, or that are constant.
    unsafe {
        libc::execve(file.as_ptr(), argv.as_ptr(), envp.as_ptr());
        *libc::__errno_location()
    }
}

/// Returns the environment of this process with changes. If a variable is set more than once, the
/// last value counts.
fn environment(
    set: &[(OsString, OsString)],
    remove: &[OsString],
) -> Result<Vec<(OsString, OsString)>, ServiceError> {
    let is_invalid = |name: &OsStr| name.is_empty() || name.as_bytes().contains(&b'=');
    if let Some((name, _)) = set.iter().find(|(name, _)| is_invalid(name)) {
        return Err(ServiceError::Variable(name.clone()));
    }
    let mut variables: Vec<(OsString, OsString)> = std::env::vars_os()
        .filter(|(name, _)| !remove.contains(name) && set.iter().all(|(other, _)| other != name))
        .collect();
    for (at, (name, value)) in set.iter().enumerate() {
        if set.iter().skip(at + 1).all(|(later, _)| later != name) {
            variables.push((name.clone(), value.clone()));
        }
    }
    Ok(variables)
}

/// Returns the files that a name may refer to, as for execvp(3): an empty directory is the working
/// directory.
fn candidates(program: &OsStr, path: &OsStr) -> Result<Vec<CString>, ServiceError> {
    let name = program.as_bytes();
    if name.is_empty() {
        return Ok(Vec::new());
    }
    if name.contains(&b'/') {
        return Ok(vec![c_string(program)?]);
    }
    let files = path.as_bytes().split(|byte| *byte == b':').map(|directory| match directory {
        b"" => c_string(program),
        _ => c_string(&OsString::from_vec([directory, name].join(&b'/'))),
    });
    files.collect()
}

fn c_string(text: &OsStr) -> Result<CString, ServiceError> {
    CString::new(text.as_bytes()).map_err(|_| ServiceError::Nul(text.to_owned()))
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn found(program: &str, path: &str) -> Vec<String> {
        let files = candidates(program.as_ref(), path.as_ref()).unwrap();
        files.into_iter().map(|file| file.into_string().unwrap()).collect()
    }

    #[test]
    fn a_program_name_without_a_slash_is_searched_for_in_each_directory_of_path() {
        assert_eq!(found("x", "/a:/b"), ["/a/x", "/b/x"]);
        assert_eq!(found("x", ":/b:"), ["x", "/b/x", "x"]);
        assert_eq!(found("./x", "/a:/b"), ["./x"]);
        assert_eq!(found("", "/a"), [""; 0]);
    }

    #[test]
    fn the_last_value_of_an_environment_variable_is_used() {
        let set = [("A", "1"), ("B", "2"), ("A", "3")].map(|(n, v)| (n.into(), v.into()));
        let variables = environment(&set, &words(&["PATH", "B"])).unwrap();
        let value = |name: &str| {
            let values = variables.iter().filter(|(n, _)| n == name);
            values.map(|(_, value)| value.to_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(value("A"), ["3"]);
        assert_eq!(value("B"), ["2"]);
        assert_eq!(value("PATH"), [""; 0]);
    }

    #[test]
    fn an_empty_command_nul_byte_or_invalid_variable_name_is_an_error() {
        assert!(matches!(ServiceCommand::new(&[], &[], &[]), Err(ServiceError::Empty)));
        let nul = ServiceCommand::new(&words(&["x", "a\0b"]), &[], &[]);
        assert!(matches!(nul, Err(ServiceError::Nul(text)) if text == "a\0b"));
        let variable = ServiceCommand::new(&words(&["x"]), &[("A=B".into(), "1".into())], &[]);
        assert!(matches!(variable, Err(ServiceError::Variable(name)) if name == "A=B"));
    }
}
