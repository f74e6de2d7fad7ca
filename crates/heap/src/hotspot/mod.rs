//! The memory of HotSpot.
//!
//! - [`Variables`]: its own variables, which prove the addresses of its heap.
//! - [`PerfData`]: the sizes of the heap, and the pauses of its collections.
//! - [`FlagPlaces`]: the layout of its table of flags.

mod flags;
mod perf_data;
mod variables;

pub use flags::{FlagLayout, FlagPlaces};
pub use perf_data::{Part, PerfData};
pub use variables::{JavaHeap, Variables};
