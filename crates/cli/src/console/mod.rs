//! What lowtide prints, and how it is interrupted.

pub(crate) mod bar;
pub(crate) mod interrupt;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod question;
pub(crate) mod stream;
