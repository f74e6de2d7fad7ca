//! The memory of HotSpot.
//!
//! - [`Variables`]: its own variables, which prove the addresses of its heap.
//! - [`PerfData`]: the sizes of the heap.

mod perf_data;
mod variables;

pub use perf_data::{Part, PerfData};
pub use variables::{JavaHeap, Variables};
