//! A process that ends with the test that has started it.

use std::ops::{Deref, DerefMut};
use std::process::Child;

/// A running process. Dropping it kills it.
#[derive(Debug)]
pub struct Running(Child);

impl From<Child> for Running {
    fn from(child: Child) -> Self {
        Self(child)
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If it was waited for, both do nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_ends_when_it_is_dropped() {
        let running = Running::from(Command::new("sleep").arg("1000").spawn().unwrap());
        let process = format!("/proc/{}", running.id());
        assert!(std::fs::exists(&process).unwrap());
        drop(running);
        assert!(!std::fs::exists(&process).unwrap());
    }
}
