//! Writes a record as it happens: what a study, a load and `lowtide watch` have in common. The format is
//! that of [`lowtide_model::record`].
//!
//! A load, for example:
//!
//! ```no_run
//! use lowtide_model::record::{LOAD_SAMPLES, v1::{Holds, Line, LoadSample, Machine}};
//! use lowtide_record::Recorder;
//!
//! # fn main() -> std::io::Result<()> {
//! if let Some(path) = std::env::var_os(LOAD_SAMPLES) {
//!     let recorder = Recorder::create(path.as_ref(), Holds::Load, &Machine::default())?;
//!     let t_s = recorder.now();
//!     recorder.write(&Line::LoadSample(LoadSample { t_s, round: 1, ..LoadSample::default() }));
//! }
//! # Ok(())
//! # }
//! ```

mod clock;
pub mod files;
mod recorder;

pub use clock::clock;
pub use recorder::Recorder;
