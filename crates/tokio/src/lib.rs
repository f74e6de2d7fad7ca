//! A Rust server that returns its memory by itself.
//!
//! So far, this crate counts: [`Tracked`] tells how many bytes the program has allocated, at any time and at the cost of
//! half a nanosecond for each allocation.
//!
//! ```
//! use lowtide_tokio::Tracked;
//! use std::alloc::System;
//!
//! #[global_allocator]
//! static ALLOCATOR: Tracked<System> = Tracked::new(System);
//!
//! let before = lowtide_tokio::allocated_bytes().unwrap();
//! let buffer = vec![0_u8; 1 << 20];
//! let after = lowtide_tokio::allocated_bytes().unwrap();
//! assert!(after - before >= 1 << 20);
//! # drop(buffer);
//! ```

mod allocator;
mod keeper;
mod memory;
#[cfg(feature = "serve")]
mod serve;
mod sweep;
mod tracked;

pub use allocator::{Allocator, Released, release};
pub use keeper::{
    Counted, CountedBody, Ended, Figures, Keeper, KeeperBuilder, Lingering, Recycle, Report, Watch,
};
#[cfg(feature = "serve")]
pub use serve::{Limits, Overload, PeerAddr, Serve, serve};
pub use sweep::{Swept, sweep};
pub use tracked::{Tracked, allocated_bytes};
