#![doc = include_str!("../README.md")]

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
