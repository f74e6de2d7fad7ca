//! The Python functions of a stack.

use std::sync::Arc;

use lowtide_model::leaks::LeakFrame;

/// A Python function, at a line.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PythonFunction {
    pub(super) name: String,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
}

/// Python functions of a stack, each with the number of the native frame that executes it.
pub(super) type PythonFrames = Vec<(usize, Arc<PythonFunction>)>;

impl PythonFunction {
    /// Returns the function as a frame of a stack.
    pub(super) fn frame(&self) -> LeakFrame {
        let Self { name, file, line } = self.clone();
        LeakFrame { function: name, file, line, module: None, estimated: true }
    }
}
